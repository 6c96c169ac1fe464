"""How long many pods at once wait for a node, as Kubernetes comes and with its limits on requests raised; with a GPU and without.

Real are etcd, API server, controllers, scheduler and our webhook. Nodes are only objects, so a pod has started here when it is
bound: what a kubelet does then it does on each node by itself.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.control_plane import ControlPlane, Rates, control_plane
from bench.figures import Figure, say
from bench.follower import Pods, followed
from bench.nodes import add_nodes
from bench.objects import Namespace
from bench.plot import Axis, Curve, curves, svg
from bench.process import Places, Process
from bench.webhook import installation, until_called
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

COUNTS: Final = (1, 2, 4, 6, 8, 10, 30, 100, 300, 1000)
NODES, PROFILE = 100, "a100x8"
ROUNDS = 5
"""Of small crowds; of large ones as many as make some hundred pods."""
SETTINGS: Final[Mapping[str, Rates | None]] = {"defaults": None, "raised": Rates(manager=1000, scheduler=1000)}
KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {},
    "GPU": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "10"},
}
TALK: Final = (
    Curve("HAMi, device plugin (talk)", ((1, 1.986), (2, 5.773), (4, 13.375), (6, 22.528), (8, 31.384), (10, 42.549))),
    Curve("HAMi-DRA (talk)", ((1, 1.609), (2, 1.831), (4, 2.079), (6, 2.311), (8, 2.446), (10, 2.717))),
)
"""Seconds by pods, for orientation: KCD Beijing 2026, "Comparison of Pod Creation Time", on a machine and until a state that the
talk doesn't name."""
_ALLOWANCE: Final = 2.0
"""Seconds in which what Kubernetes' parts may send at once is full again: 30 at 20 a second, 100 at 50; after few pods sooner."""


async def measure(programs: Path, places: Places) -> list[Figure]:
    """Everything, on a control plane for each setting.

    Args:
        programs: Folder of hack/cluster/build.
        places: For the webhook and the control planes.
    """
    found = []
    for setting, rates in SETTINGS.items():
        work = places.disk / setting
        work.mkdir()
        async with control_plane(programs, work, rates) as plane:
            found += await _measure(plane, places, setting)
    return found


def drawing(figures: Sequence[Figure]) -> str:
    """The SVG."""
    across, up = Axis("pods created at once", 1, 1000), Axis("seconds until the last is bound", 0.01, 200)
    return svg(across, up, [*curves(figures), *TALK])


async def _measure(plane: ControlPlane, places: Places, setting: str) -> list[Figure]:
    async with KubeClient(from_kubeconfig(plane.kubeconfig), timeout=120) as api:
        objects = Namespace(api, "rates")  # never removed: the control plane goes as a whole
        await objects.create()
        await add_nodes(api, NODES, PROFILE)
        async with (
            installation(api, plane.kubeconfig, places) as installed,
            installed.running() as webhook,
            followed(api, objects.pods) as pods,
        ):
            await until_called(api, objects.pods, pod("called", KINDS["GPU"]))
            processes = {**plane.processes, "hami-webhook": webhook.process}
            return await _bind(Crowds(api, objects.pods, pods), processes, setting)


async def _bind(crowds: "Crowds", processes: Mapping[str, Process], setting: str) -> list[Figure]:
    for kind in KINDS:  # a first one, which doesn't count
        await crowds.bind(kind, 1)
    times: dict[tuple[str, int], list[float]] = {each: [] for each in itertools.product(KINDS, COUNTS)}
    cpu: dict[tuple[str, str], float] = {}
    for count in COUNTS:
        say(f"rates: {count} at once, {setting}")
        for _, kind in itertools.product(range(max(1, min(ROUNDS, 100 // count))), KINDS):
            before = {name: process.cpu_seconds() for name, process in processes.items()}
            times[kind, count].append(await crowds.bind(kind, count))
            for name, process in processes.items():
                cpu[kind, name] = 1000 * (process.cpu_seconds() - before[name]) / count
    return [
        *(Figure(f"{kind}, {setting}", "s", found, at=count) for (kind, count), found in times.items()),
        *(
            Figure(f"CPU of {name}, {kind}, {setting}, the last crowd", "ms/pod", [spent])
            for (kind, name), spent in cpu.items()
        ),
    ]


class Crowds:
    """Makes pods; they stay.

    Args:
        api: An administrator's.
        path: Of the namespace's pods.
        pods: All pods of that namespace.
    """

    def __init__(self, api: KubeClient, path: str, pods: Pods) -> None:
        self._api, self._path, self._pods = api, path, pods
        self._numbers = itertools.count()

    async def bind(self, kind: str, count: int) -> float:
        """Seconds from the creation of so many pods at once until the last one has a node."""
        names = {f"{kind.lower()}-{next(self._numbers)}" for _ in range(count)}
        started = time.perf_counter()
        await asyncio.gather(
            *(self._api.ask(Call("create", "pods", self._path, name), pod(name, KINDS[kind])) for name in names)
        )
        await self._pods.until(lambda: self._pods.bound.keys() >= names, f"nodes for {count} {kind} pods")
        took = max(self._pods.bound[name] for name in names) - started
        await asyncio.sleep(min(_ALLOWANCE, 0.1 * count))
        return took


def pod(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
    """One as people write it; nothing ever runs it."""
    container = {"name": "main", "image": "none", "resources": {"limits": {**limits}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
