"""`python -m bench PART... [--kubeconfig FILE] [--programs FOLDER] [--json FILE]`; `hack/bench` brings the cluster."""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import admission, figures, pods, prepare, scale
from bench.control_plane import control_plane
from bench.process import Places
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.observe.log import configure

PARTS: Final = {
    "daemon": prepare.measure,
    "admission": admission.measure,
    "pods": pods.measure,
    "crowds": pods.measure_crowds,
}
"""On a cluster that is there."""
APART: Final = {"scale": scale.measure}
"""On a control plane of its own."""


async def conditions(kubeconfig: Path, places: Places) -> dict[str, Any]:
    """What the figures depend on."""
    async with KubeClient(from_kubeconfig(kubeconfig)) as api:
        kubernetes = ".".join(map(str, await api.server_version()))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kubernetes": kubernetes,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "records on": file_system(places.disk),
        "CDI specs on": file_system(places.memory),
    }


def file_system(path: Path) -> str:
    """Its type, e.g. ext4: that of the longest mount point above."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    above = [(len(words[1]), words[2]) for words in mounts if path.is_relative_to(words[1])]
    return max(above)[1]


@contextlib.asynccontextmanager
async def folders() -> AsyncIterator[Places]:
    """One on a disk and one in memory, removed at the end. Short paths, since a socket's may have 107 bytes."""
    disk, memory = (Path(tempfile.mkdtemp(prefix="hami-bench-", dir=base)) for base in ("/var/tmp", "/dev/shm"))
    try:
        yield Places(disk, memory)
    finally:
        for folder in (disk, memory):
            await asyncio.to_thread(shutil.rmtree, folder)


async def measured(
    part: str, kubeconfig: Path | None, programs: Path | None
) -> tuple[dict[str, Any], Sequence[figures.Figure]]:
    """The figures of a part, and what they depend on."""
    async with folders() as places, contextlib.AsyncExitStack() as stack:
        if part in APART:
            if programs is None:
                raise SystemExit(f"{part} needs --programs")
            work = places.disk / "control-plane"
            work.mkdir()
            cluster = await stack.enter_async_context(control_plane(programs, work, scale.RATES))
            around = await conditions(cluster.kubeconfig, places)
            found = await APART[part](cluster, places)
        else:
            if kubeconfig is None:
                raise SystemExit(f"{part} needs --kubeconfig")
            around = await conditions(kubeconfig, places)
            found = await PARTS[part](kubeconfig, places)
        return around | {"load at the end": os.getloadavg()}, found


async def main() -> None:
    """Run, print the table on stderr and the JSON on stdout or into a file."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    every = [*PARTS, *APART]
    parser.add_argument("parts", nargs="+", choices=every, metavar="PART", help=f"of {', '.join(every)}")
    parser.add_argument("--kubeconfig", type=Path, help=f"an administrator's, for {', '.join(PARTS)}")
    parser.add_argument(
        "--programs",
        type=lambda given: Path(given).absolute(),
        help=f"where Kubernetes' own are, for {', '.join(APART)}",
    )
    parser.add_argument("--json", type=Path, help="where the JSON goes, to what is there already; default: stdout")
    options = parser.parse_args()
    configure("console", "error")
    results: dict[str, Any] = {}
    for part in options.parts:
        around, found = await measured(part, options.kubeconfig, options.programs)
        results[part] = figures.document(around, found)
        print(f"\n{part}\n{figures.table(found)}\n", file=sys.stderr)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(f"{json.dumps(earlier | results, indent=2)}\n")
    else:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
