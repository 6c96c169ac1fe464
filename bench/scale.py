"""A large cluster, as far as the API server has to bear it: nodes are only objects, their publishers are the daemon's own.

What is real: etcd, API server, controllers, scheduler, our publishers with tokens and rights of daemonset.yaml, the webhook. All
share the same cores, so that times are those of a busy machine; counts are the API server's own, and don't depend on that.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import admission, templates
from bench.control_plane import ControlPlane, Rates, control_plane
from bench.figures import Figure, Watch, say
from bench.fleet import Fleet, fleet
from bench.manifests import token_of
from bench.objects import core_object, for_each
from bench.process import Places, Process
from bench.served import WRITES, Counts, Tally
from bench.webhook import installation
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

NODES: Final = 1000
REST_SECONDS: Final = 60.0
AWAY_SECONDS: Final = 10.0
CONVERSIONS: Final = 5
SETTLE: Final = 10.0
"""Seconds after much work, until controllers and garbage collectors are done with it."""
RATES: Final = Rates(manager=500, scheduler=500)
"""So that the bench doesn't wait for what controllers do with a thousand nodes and namespaces."""

_SERVERS: Final = ("kube-apiserver", "etcd", "kube-scheduler")


async def measure(programs: Path, places: Places) -> list[Figure]:
    """Everything, in order.

    Args:
        programs: Folder of hack/cluster/build.
        places: For the control plane, the webhook and the publishers.
    """
    work = places.disk / "control-plane"
    work.mkdir()
    async with control_plane(programs, work, RATES) as cluster:
        return await _measure(cluster, places)


async def _measure(cluster: ControlPlane, places: Places) -> list[Figure]:
    access = from_kubeconfig(cluster.kubeconfig)
    counts = Counts(access)
    async with (
        KubeClient(access, timeout=60) as api,
        installation(api, cluster.kubeconfig, places) as installed,
    ):
        say(f"scale: making {NODES} nodes")
        tokens = await nodes(api, places.memory / "tokens.json")
        await asyncio.sleep(SETTLE)
        before = await Weight.of(cluster.processes, REST_SECONDS / 2)
        figures = []
        async with published(cluster, counts, tokens, places, "first time") as (first, _):
            figures += first
            await asyncio.sleep(SETTLE)
            figures += await rest(cluster, counts, before)
            figures += await size_of_slices(api)
            figures += await conversion(cluster.kubeconfig, places)
        async with published(cluster, counts, tokens, places, "all restarted") as (again, running):
            figures += again
            await asyncio.sleep(SETTLE)
            figures += await api_server_away(cluster, counts, running)
            figures += await templates.measure(api, installed, counts)
        return figures


async def nodes(api: KubeClient, tokens: Path) -> Path:
    """Make them; writes a token for each, bound to it, as a daemon on it would have."""
    made: dict[str, str] = {}

    async def make(number: int) -> None:
        name = f"node-{number:04}"
        node = await api.ask(Call("create", "nodes", "/api/v1/nodes", name), core_object("Node", name))
        made[name] = await token_of(api, "hami-kubeletplugin", node)

    await for_each(range(NODES), make)
    await asyncio.to_thread(tokens.write_text, json.dumps(made))
    return tokens


@contextlib.asynccontextmanager
async def published(
    cluster: ControlPlane, counts: Counts, tokens: Path, places: Places, when: str
) -> AsyncIterator[tuple[list[Figure], Fleet]]:
    """Start all publishers at the same moment and have them at work for as long as the block lasts."""
    say(f"scale: {NODES} publishers start at once, {when}")
    async with contextlib.AsyncExitStack() as stack:
        async with counts.tally() as tally:
            running = await stack.enter_async_context(fleet(cluster.kubeconfig, tokens, places.memory))
            times = await running.right()
        figures = [
            Figure(f"{when}: publisher's start to slices right", "s", times),
            Figure("    until all are right", "s", [max(times)]),
            Figure("    CPU time of the process that all share", "s", [running.process.cpu_seconds()]),
            *asked(tally),
        ]
        yield figures, running


@dataclass(frozen=True, slots=True)
class Weight:
    """What the servers take: megabytes (RSS) and percent of a core, by program."""

    memory: Mapping[str, float]
    cpu: Mapping[str, float]

    @classmethod
    async def of(cls, processes: Mapping[str, Process], seconds: float) -> "Weight":
        """Over the next seconds."""
        cpu = await asyncio.gather(*(processes[name].idle_cpu(seconds) for name in _SERVERS))
        memory = {name: processes[name].rss() for name in _SERVERS}
        return cls(memory, dict(zip(_SERVERS, cpu, strict=True)))


async def rest(cluster: ControlPlane, counts: Counts, before: Weight) -> list[Figure]:
    """What the slices, and their publishers' watches, cost the servers while nothing happens."""
    say(f"scale: at rest for {REST_SECONDS:g} s")
    earlier = await counts.now()
    after = await Weight.of(cluster.processes, REST_SECONDS)
    served = (await counts.now()).since(earlier)
    hours = REST_SECONDS / 3600
    writes = served.of(*WRITES, resource="resourceslices")
    figures = [
        Figure(f"writes of slices at rest (in {REST_SECONDS:g} s)", "per hour", [writes / hours], 0),
        Figure("requests of all daemons at rest", "per s", [served.flow["dispatched"] / REST_SECONDS]),
    ]
    for name in _SERVERS:
        more = after.memory[name] - before.memory[name]
        figures += [
            Figure(f"{name}: memory (RSS) with bare nodes", "MB", [before.memory[name]]),
            Figure("    with slices, and a watch for each node", "MB", [after.memory[name]]),
            Figure("    more for each node", "kB", [1000 * more / NODES]),
            Figure("    CPU with bare nodes", "%", [before.cpu[name]]),
            Figure("    CPU with slices, and a watch for each node", "%", [after.cpu[name]]),
        ]
    return figures


async def size_of_slices(api: KubeClient) -> list[Figure]:
    """As JSON, with all that the API server adds."""
    items = (await api.list_slices(DRIVER)).items
    return [Figure("a node's slices, as JSON", "kB", [len(json.dumps(item)) / 1000 for item in items])]


async def conversion(kubeconfig: Path, places: Places) -> list[Figure]:
    """`hami-webhook convert` of a pod with a percentage of memory: of people's commands the one that asks for all slices."""
    pod, command, watch = places.memory / "pod.json", Path(sys.executable).parent / "hami-webhook", Watch()
    await asyncio.to_thread(
        pod.write_text, json.dumps(admission.pod("percentage", labels=None, gpu=1, **{"gpumem-percentage": 50}))
    )
    for _ in range(CONVERSIONS):
        async with watch.lap():
            process = await asyncio.create_subprocess_exec(
                *(command, "convert", "-f", pod, "--kubeconfig", kubeconfig), stdout=asyncio.subprocess.DEVNULL
            )
            if await process.wait():
                raise RuntimeError("hami-webhook convert failed")
    return [Figure("hami-webhook convert, a percentage of memory", "ms", watch.laps)]


async def api_server_away(cluster: ControlPlane, counts: Counts, running: Fleet) -> list[Figure]:
    """It crashes and comes back with what it had: who asks how much, and when."""
    say(f"scale: the API server is away for {AWAY_SECONDS:g} s")
    async with counts.tally() as tally:
        killed = time.time()
        cluster.processes["kube-apiserver"].kill()
        await asyncio.sleep(AWAY_SECONDS)
        await cluster.start("kube-apiserver")
        away = time.time() - killed
        times = [max(0.0, seconds - away) for seconds in await running.right(since=killed)]
    return [
        Figure(f"API server away for {away:.0f} s: its first answer to slices found right", "s", times),
        Figure("    until all are right", "s", [max(times)]),
        *asked(tally),
    ]


def asked(tally: Tally) -> list[Figure]:
    """What that cost the API server."""
    served = tally.served
    return [
        Figure("    writes of slices", "", [served.of(*WRITES, resource="resourceslices")]),
        Figure("    requests of daemons", "per node", [served.flow["dispatched"] / NODES]),
        Figure("    lists of slices", "per node", [served.of("LIST", resource="resourceslices") / NODES]),
        Figure("    refused for being too many", "", [served.flow["rejected"]]),
        Figure("    most requests in a second", "per s", [tally.peak]),
        Figure("    most lists of slices in a second", "per s", [tally.peak_lists]),
    ]
