"""Pods on a real node, from their creation until they run: with a GPU and without, in turns: the machine's mood meets both.

Webhook and node daemon are processes with the rights that their pods would have; API server, scheduler, controllers, kubelet and
container runtime are hack/cluster's. GPUs are simulated.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, say
from bench.follower import Pods, followed
from bench.manifests import kubeconfig_of
from bench.objects import fresh_namespace
from bench.process import HAMI_CORE, REGION_HOOK, Places, program, until
from bench.webhook import installation, until_called
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

SINGLES = 20
"""Pods of each kind, one after the other."""
CROWD = 40
"""Pods at once."""
CROWDS = 3
"""Of each kind."""
REPLICAS = 200
PROFILE, SHARES = "a100x8", 100
"""GPUs, and pods on each: enough for REPLICAS, so that no pod waits for another one's GPU."""
SETTLE = 4.0
"""Seconds after pods are gone, until the node has cleaned up after them and the controllers' allowance of requests is full."""

_MERGE: Final = "application/merge-patch+json"

Json = dict[str, Any]
KINDS: Final[dict[str, Json]] = {"plain": {}, "GPU": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}


async def measure(kubeconfig: Path, places: Places) -> list[Figure]:
    """Everything, in order."""
    async with working(kubeconfig, places) as work:
        return [*await singles(work), *await crowds(work), *await deployments(work)]


async def measure_crowds(kubeconfig: Path, places: Places) -> list[Figure]:
    """Only many at once: on a cluster whose controllers are allowed more requests, this shows what that limit costs."""
    async with working(kubeconfig, places) as work:
        return await crowds(work)


@contextlib.asynccontextmanager
async def working(kubeconfig: Path, places: Places) -> AsyncIterator["Work"]:
    """Webhook and daemon on the cluster's only node, and a namespace to work in."""
    mark = str(kubeconfig.parent.absolute())
    async with (
        KubeClient(from_kubeconfig(kubeconfig), timeout=30) as api,
        installation(api, kubeconfig, places) as installed,
        fresh_namespace(api) as objects,
        contextlib.AsyncExitStack() as stack,
    ):
        machine = (await api.ask(Call("list", "nodes", "/api/v1/nodes")))["items"][0]
        daemon = await kubeconfig_of(
            api, "hami-kubeletplugin", kubeconfig, places.memory / "daemon.kubeconfig", machine
        )
        options = (
            *("run", "--node-name", machine["metadata"]["name"], "--simulate", PROFILE),
            *(
                "--device-split-count",
                str(SHARES),
                "--driver-edits",
                "none",
                "--hami-core",
                HAMI_CORE,
                "--region-hook",
                REGION_HOOK,
            ),
            *("--hami-dir", places.disk / "vgpu", "--kubeconfig", daemon),
        )
        log = stack.enter_context((places.disk / "daemon.log").open("wb"))
        await stack.enter_async_context(program("hami-kubeletplugin", *options, log=log, mark=mark))
        await stack.enter_async_context(installed.running())
        await until_called(api, objects.pods, pod("called", KINDS["GPU"]))

        async def published() -> bool:
            return bool((await api.list_slices(DRIVER, machine["metadata"]["name"])).items)

        await until(published, "the node's ResourceSlices")
        pods = await stack.enter_async_context(followed(api, objects.pods))
        work = Work(api, objects.name, pods)
        say("pods: a first one of each kind, which doesn't count")
        for kind in KINDS:
            await work.start(kind, 1)
        await work.clear()
        yield work


class Work:
    """Starts pods and clears them away.

    Args:
        api: An administrator's.
        namespace: Where.
        pods: All pods of that namespace.
    """

    def __init__(self, api: KubeClient, namespace: str, pods: Pods) -> None:
        self._api, self._pods = api, pods
        self._core, self._apps = f"/api/v1/namespaces/{namespace}", f"/apis/apps/v1/namespaces/{namespace}"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self._numbers = itertools.count()

    async def start(self, kind: str, count: int) -> float:
        """Milliseconds from the creation of so many pods at once until the last one runs."""
        names = [f"{kind.lower()}-{next(self._numbers)}" for _ in range(count)]
        path = f"{self._core}/pods"
        started = time.perf_counter()
        await asyncio.gather(
            *(self._api.ask(Call("create", "pods", path, name), pod(name, KINDS[kind])) for name in names)
        )
        await self._pods.until(lambda: self._pods.running.keys() >= {*names}, f"{count} {kind} pods to run")
        return 1000 * (max(self._pods.running[name] for name in names) - started)

    async def scale(self, kind: str, replicas: int) -> float:
        """Seconds that a Deployment takes from none to so many running pods."""
        name = f"{kind.lower()}-{next(self._numbers)}"
        await self._api.ask(Call("create", "deployments.apps", f"{self._apps}/deployments"), deployment(name, kind))
        before = len(self._pods.running)
        call = Call(
            "patch", "deployments.apps/scale", f"{self._apps}/deployments/{name}/scale", name, content_type=_MERGE
        )
        started = time.perf_counter()
        await self._api.ask(call, {"spec": {"replicas": replicas}})
        await self._pods.until(
            lambda: len(self._pods.running) == before + replicas, f"{replicas} {kind} pods of a Deployment to run"
        )
        return max(self._pods.running.values()) - started

    async def clear(self) -> None:
        """Delete all, orderly, and wait until nothing is left: not a container, not a claim."""
        for path in (f"{self._apps}/deployments", f"{self._core}/pods"):
            await self._api.ask(Call("delete", path, path))
        await self._pods.until(lambda: not self._pods.there, "pods to be gone")

        async def none() -> bool:
            return not (await self._api.ask(Call("list", "resourceclaims", self._claims)))["items"]

        await until(none, "claims to be gone")
        await asyncio.sleep(SETTLE)


async def singles(work: Work) -> list[Figure]:
    """One pod at a time."""
    say(f"pods: {SINGLES} of each kind, one at a time")
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(SINGLES):
        for kind in in_turns(number):
            times[kind].append(await work.start(kind, 1))
    await work.clear()
    return compared("one pod, from apply to Running", times, 1.1)


async def crowds(work: Work) -> list[Figure]:
    """Many pods at once."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(CROWDS):
        for kind in in_turns(number):
            say(f"pods: {CROWD} {kind} pods at once")
            times[kind].append(await work.start(kind, CROWD))
            await work.clear()
    return compared(f"{CROWD} pods at once, until the last runs", times, 1.15)


async def deployments(work: Work) -> list[Figure]:
    """From nothing to many pods, at the pace of Kubernetes' own controllers."""
    rates: dict[str, float] = {}
    for kind in KINDS:
        if rates:
            await work.clear()
        say(f"pods: a Deployment from 0 to {REPLICAS} {kind} pods")
        rates[kind] = REPLICAS / await work.scale(kind, REPLICAS)
    return [Figure(f"Deployment from 0 to {REPLICAS}, {kind}", "pods/s", [rate]) for kind, rate in rates.items()]


def in_turns(number: int) -> Sequence[str]:
    """Each kind first half of the times."""
    return [*KINDS] if number % 2 == 0 else [*reversed(KINDS)]


def compared(what: str, times: dict[str, list[float]], aim: float) -> list[Figure]:
    """Both kinds, and how much longer GPU pods take."""
    plain, gpu = (Figure(f"{what}, {kind}", "ms", times[kind]) for kind in ("plain", "GPU"))
    return [plain, gpu, Figure("    ratio", "times", [gpu.p50 / plain.p50], aim)]


def pod(name: str, limits: Json) -> Json:
    """One whose container does nothing and goes at once when it is told to."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": _spec(limits)}


def deployment(name: str, kind: str) -> Json:
    """One without pods yet."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _spec(KINDS[kind])},
        },
    }


def _spec(limits: Json) -> Json:
    container = {"name": "main", "image": "localhost/pause:1", "imagePullPolicy": "Never"}
    return {
        "containers": [container | {"resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 1,
    }
