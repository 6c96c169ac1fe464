"""The real control plane, whose nodes are only objects, and pods on it as the webhook makes them of people's."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bench.control_plane import Rates, control_plane
from bench.follower import Pods, followed
from bench.nodes import add_nodes
from bench.objects import Namespace, delete
from bench.process import until
from hami_kubeletplugin.api.errors import ApiConflict
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize

PROFILE: Final = "a100x8"
SIZES: Final = (GpuSize(None, 40960),)
RAISED: Final = Rates(manager=1000, scheduler=1000)
WHOLE: Final = {"nvidia.com/gpu": "1"}
_REPOSITORY: Final = Path(__file__).parents[1]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What people write of a pod.

    Attributes:
        limits: Those of each container.
        annotations: The pod's.
        selector: Its nodeSelector.
    """

    limits: Sequence[Mapping[str, str]] = ({},)
    annotations: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)

    def pod(self, name: str) -> Json:
        """It, named so; nothing ever runs it."""
        containers = [
            {"name": f"c{number}", "image": "none", "resources": {"limits": {**each}}}
            for number, each in enumerate(self.limits)
        ]
        metadata = {"name": name, "annotations": {**self.annotations}}
        spec = {"nodeSelector": {**self.selector}, "containers": containers}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


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
        selectors = ({"kubernetes.io/hostname": node} for node in nodes)
        names = [await self._create(Wanted([WHOLE], selector=selector)) for selector in selectors]
        await self._pods.until(lambda: self._pods.bound.keys() >= {*names}, "a pod on each node")

    async def refused(self, limits: Sequence[Mapping[str, str]]) -> Refusal:
        """Create a pod that fits nowhere, and a plain one; both are gone afterwards."""
        started = time.perf_counter()
        name = await self._create(Wanted(limits))
        await until(lambda: self._has_claims(name), f"the claims of {name}")
        meanwhile = time.perf_counter()
        plain = await self._create(Wanted())
        await self._pods.until(
            lambda: plain in self._pods.bound and name in self._pods.refused,
            "the verdict about a pod that fits nowhere",
        )
        await self._remove({name, plain})
        return Refusal(self._pods.refused[name] - started, self._pods.bound[plain] - meanwhile)

    async def rate(self, wanted: Wanted, count: int) -> float:
        """Pods a second that get a node, of so many at once; they stay."""
        started = time.perf_counter()
        names = {*await asyncio.gather(*(self._create(wanted) for _ in range(count)))}
        await self._pods.until(lambda: self._pods.bound.keys() >= names, f"nodes for {count} pods")
        return count / (max(self._pods.bound[name] for name in names) - started)

    async def _remove(self, names: set[str]) -> None:
        """And wait until they and their claims are gone."""
        await asyncio.gather(*(delete(self._api, f"{self._namespace.pods}/{name}") for name in names))
        await self._pods.until(lambda: not names & self._pods.there, "these pods to be gone")

    async def _create(self, wanted: Wanted) -> str:
        name = f"pod-{next(self._numbers)}"
        pod = wanted.pod(name)
        made = convert(pod, self._rules, lambda: SIZES)
        for template in made.templates:
            path = f"/apis/resource.k8s.io/v1/namespaces/{self._namespace.name}/resourceclaimtemplates"
            with contextlib.suppress(ApiConflict):  # an earlier pod's
                await self._api.ask(Call("create", "resourceclaimtemplates", path), template.object())
        await self._api.ask(Call("create", "pods", self._namespace.pods), patched(pod, made.patch))
        return name

    async def _has_claims(self, name: str) -> bool:
        found = await self._api.ask(Call("get", "pods", f"{self._namespace.pods}/{name}", name))
        return len(found["status"].get("resourceClaimStatuses") or ()) == len(found["spec"]["resourceClaims"])


@contextlib.asynccontextmanager
async def idle_nodes(programs: Path, work: Path, count: int, rates: Rates | None = RAISED) -> AsyncIterator[Scheduling]:
    """A control plane of its own with so many nodes of 8 GPUs.

    Args:
        programs: Folder of hack/cluster/build.
        work: An empty folder.
        count: Nodes.
        rates: What its parts may ask of the API server; None: as Kubernetes comes.
    """
    async with (
        control_plane(programs, work, rates) as plane,
        KubeClient(from_kubeconfig(plane.kubeconfig), timeout=60) as api,
    ):
        namespace = Namespace(api, "scheduling")
        await namespace.create()
        await _make_device_class(api)
        await add_nodes(api, count, PROFILE)
        async with followed(api, namespace.pods) as pods:
            yield Scheduling(api, namespace, pods)


@contextlib.asynccontextmanager
async def busy_nodes(programs: Path, work: Path, count: int) -> AsyncIterator[Scheduling]:
    """The same, with one GPU of each node taken."""
    async with idle_nodes(programs, work, count) as scheduling:
        await scheduling.take_a_gpu_of([f"gpu-{number:03}" for number in range(count)])
        yield scheduling


async def _make_device_class(api: KubeClient) -> None:
    """The one of daemonset.yaml."""
    manifest = yaml.safe_load_all((_REPOSITORY / "daemonset.yaml").read_text())
    (found,) = (each for each in manifest if each["kind"] == "DeviceClass")
    await api.ask(Call("create", "deviceclasses", "/apis/resource.k8s.io/v1/deviceclasses"), found)
