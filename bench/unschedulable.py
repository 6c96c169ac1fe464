"""Pods that fit nowhere: how long the scheduler takes to say so, and how long a pod without any GPU waits meanwhile.

Real are etcd, API server, controllers and scheduler; nodes are only objects. Pods are what the webhook makes of people's.
"""

import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bench.control_plane import Rates, control_plane
from bench.figures import Figure, say
from bench.follower import Pods, followed
from bench.nodes import add_nodes
from bench.objects import Namespace, delete
from bench.process import Places, until
from hami_kubeletplugin.api.errors import ApiConflict
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.webhook.conversion.convert import convert

NODES, PROFILE = 100, "a100x8"
ROUNDS = 3
WHOLE: Final = {"nvidia.com/gpu": "1"}
SHARE: Final = {"nvidia.com/gpumem": "1000"}
NOWHERE: Final = {"nvidia.com/gpumem": "1000000"}
"""No GPU has so much memory."""
KINDS: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "a GPU with too much memory": [NOWHERE],
    "8 GPUs, 7 free": [{"nvidia.com/gpu": "8"}],
    "9 GPUs on nodes of 8": [{"nvidia.com/gpu": "9"}],
    "7 GPUs and one of too much memory": [{"nvidia.com/gpu": "7"}, NOWHERE],
    "4 containers with a share, and one with too much": [*[SHARE] * 4, NOWHERE],
}
"""Limits of the containers, on nodes of 8 GPUs of which one is taken."""
_REPOSITORY: Final = Path(__file__).parents[1]

Json = dict[str, Any]


class Refusal(NamedTuple):
    """Seconds.

    Attributes:
        verdict: From the creation of a pod until the scheduler says that no node has room for it.
        bystander: From the creation of a plain pod, right when the first one's claims were there, until that has a node.
    """

    verdict: float
    bystander: float


class Scheduling:
    """Makes pods in a namespace, as the webhook makes them of people's.

    Args:
        api: An administrator's.
        namespace: Theirs.
        pods: All pods there.
        rules: Of the conversion.
    """

    def __init__(self, api: KubeClient, namespace: Namespace, pods: Pods, rules: Conversion | None = None) -> None:
        self._api, self._namespace, self._pods = api, namespace, pods
        self._rules, self._numbers = rules or Conversion(), itertools.count()

    async def take_a_gpu_of(self, nodes: Sequence[str]) -> None:
        """Have a pod with a whole GPU on each of these nodes."""
        names = [await self._create([WHOLE], {"kubernetes.io/hostname": node}) for node in nodes]
        await self._pods.until(lambda: self._pods.bound.keys() >= {*names}, "a pod on each node")

    async def refused(self, limits: Sequence[Mapping[str, str]]) -> Refusal:
        """Create a pod that fits nowhere, and a plain one; both are gone afterwards."""
        started = time.perf_counter()
        name = await self._create(limits)
        await until(lambda: self._has_claims(name), f"the claims of {name}")
        meanwhile = time.perf_counter()
        plain = await self._create([{}])
        await self._pods.until(
            lambda: plain in self._pods.bound and name in self._pods.refused,
            "the verdict about a pod that fits nowhere",
        )
        for each in (name, plain):
            await delete(self._api, f"{self._namespace.pods}/{each}")
        await self._pods.until(lambda: not {name, plain} & self._pods.there, "these pods to be gone")
        return Refusal(self._pods.refused[name] - started, self._pods.bound[plain] - meanwhile)

    async def _create(self, limits: Sequence[Mapping[str, str]], selector: Mapping[str, str] | None = None) -> str:
        wanted = _pod(f"pod-{next(self._numbers)}", limits, selector or {})
        made = convert(wanted, self._rules, list)
        for template in made.templates:
            path = f"/apis/resource.k8s.io/v1/namespaces/{self._namespace.name}/resourceclaimtemplates"
            try:
                await self._api.ask(Call("create", "resourceclaimtemplates", path), template.object())
            except ApiConflict:  # an earlier pod's
                continue
        await self._api.ask(Call("create", "pods", self._namespace.pods), patched(wanted, made.patch))
        name: str = wanted["metadata"]["name"]
        return name

    async def _has_claims(self, name: str) -> bool:
        found = await self._api.ask(Call("get", "pods", f"{self._namespace.pods}/{name}", name))
        return len(found["status"].get("resourceClaimStatuses") or ()) == len(found["spec"]["resourceClaims"])


@contextlib.asynccontextmanager
async def busy_nodes(programs: Path, work: Path, count: int) -> AsyncIterator[Scheduling]:
    """A control plane of its own with so many nodes of 8 GPUs, of each of which one is taken.

    Args:
        programs: Folder of hack/cluster/build.
        work: An empty folder.
        count: Nodes.
    """
    async with (
        control_plane(programs, work, Rates(manager=1000, scheduler=1000)) as plane,
        KubeClient(from_kubeconfig(plane.kubeconfig), timeout=60) as api,
    ):
        namespace = Namespace(api, "unschedulable")
        await namespace.create()
        await _make_device_class(api)
        await add_nodes(api, count, PROFILE)
        async with followed(api, namespace.pods) as pods:
            scheduling = Scheduling(api, namespace, pods)
            await scheduling.take_a_gpu_of([f"gpu-{number:03}" for number in range(count)])
            yield scheduling


async def measure(programs: Path, places: Places) -> list[Figure]:
    """Each kind of pod, in turns with one for a single GPU.

    Args:
        programs: Folder of hack/cluster/build.
        places: For the control plane.
    """
    work = places.disk / "control-plane"
    work.mkdir()
    found: dict[str, list[Refusal]] = {kind: [] for kind in KINDS}
    async with busy_nodes(programs, work, NODES) as scheduling:
        for _, (kind, limits) in itertools.product(range(ROUNDS), KINDS.items()):
            say(f"unschedulable: {kind}")
            found[kind].append(await scheduling.refused(limits))
    return [
        figure
        for kind, refusals in found.items()
        for figure in (
            Figure(f"{kind}: unschedulable", "s", [each.verdict for each in refusals], 0.5),
            Figure("    a plain pod meanwhile", "s", [each.bystander for each in refusals], 0.5),
        )
    ]


async def _make_device_class(api: KubeClient) -> None:
    """The one of daemonset.yaml."""
    manifest = yaml.safe_load_all((_REPOSITORY / "daemonset.yaml").read_text())
    (found,) = (each for each in manifest if each["kind"] == "DeviceClass")
    await api.ask(Call("create", "deviceclasses", "/apis/resource.k8s.io/v1/deviceclasses"), found)


def _pod(name: str, limits: Sequence[Mapping[str, str]], selector: Mapping[str, str]) -> Json:
    containers = [
        {"name": f"c{number}", "image": "none", "resources": {"limits": {**each}}} for number, each in enumerate(limits)
    ]
    spec = {"nodeSelector": {**selector}, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
