"""The publishers of many nodes in one process: the daemon's own code, each with a client, a token and a watch of its own.

`python -m bench.fleet` is that process; `fleet()` starts it and follows what it says.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.process import Process, program
from hami_kubeletplugin import files
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.gpu.nodefile import SimulatedNode
from hami_kubeletplugin.gpu.simulate import inventory
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.observe.log import configure
from hami_kubeletplugin.publish.publisher import Publisher

PROFILE: Final = "a100x8"
_PATIENCE: Final = 300.0
"""Seconds until all slices are right."""
_TELL: Final = 0.25
"""Seconds between reports of the process; times in them are exact."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One that runs.

    Attributes:
        process: Its process.
        report: What it writes.
    """

    process: Process
    report: Path

    async def right(self, since: float | None = None) -> list[float]:
        """When each node's slices were last found, or made, right: seconds after that UNIX time, or after the publishers' start.

        Raises:
            TimeoutError: Some were not, after that time.
        """
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            await asyncio.sleep(_TELL)
            if self.report.exists():
                told = json.loads(self.report.read_text())
                began = told["began"] if since is None else since
                times = [at - began for at in told["published"] if at is not None and at >= began]
                if len(times) == len(told["published"]):
                    return times
        raise TimeoutError(f"the slices of all nodes: not right in {_PATIENCE:g} s")


@contextlib.asynccontextmanager
async def fleet(kubeconfig: Path, tokens: Path, work: Path) -> AsyncIterator[Fleet]:
    """Run the publishers of these nodes until the end of the block. Their slices stay.

    Args:
        kubeconfig: Where the API server is.
        tokens: JSON, the token of each node.
        work: For its report and its log.
    """
    report = work / "fleet.json"
    report.unlink(missing_ok=True)
    options = ("--kubeconfig", kubeconfig, "--tokens", tokens, "--report", report)
    with (work / "fleet.log").open("ab") as log:
        async with program("python", "-m", "bench.fleet", *options, log=log) as process:
            yield Fleet(process, report)


async def run(kubeconfig: Path, tokens: Mapping[str, str], report: Path) -> None:
    """Be that process, until it is killed."""
    access, hardware = from_kubeconfig(kubeconfig), SimulatedNode(profile=PROFILE)
    async with contextlib.AsyncExitStack() as clients:
        publishers = []
        for node, token in tokens.items():
            client = await clients.enter_async_context(KubeClient(dataclasses.replace(access, token=token)))
            publisher = Publisher(client, driver=DRIVER, node=node, sharing=Sharing())
            publisher.offer(inventory(hardware, node))
            publishers.append(publisher)
        async with asyncio.TaskGroup() as tasks:
            for publisher in publishers:
                tasks.create_task(publisher.run())
            await _tell(time.time(), publishers, report)


async def _tell(began: float, publishers: Sequence[Publisher], report: Path) -> None:
    told: list[float | None] = []
    while True:
        await asyncio.sleep(_TELL)
        now = [publisher.published_at for publisher in publishers]
        if now != told:  # at rest it writes nothing, so that its CPU time is the publishers'
            files.write(report, json.dumps({"began": began, "published": now}).encode(), durable=False)
            told = now


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    for option in ("--kubeconfig", "--tokens", "--report"):
        parser.add_argument(option, type=Path, required=True)
    options = parser.parse_args()
    configure("console", "warning")
    asyncio.run(run(options.kubeconfig, json.loads(options.tokens.read_text()), options.report))


if __name__ == "__main__":
    main()
