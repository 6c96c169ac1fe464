"""Nodes and a namespace of the bench's own: pods that are bound and stay Pending, claims as the scheduler leaves them."""

import asyncio
import contextlib
import itertools
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ApiConflict, ApiNotFound
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client
from hami_kubeletplugin.kube.resource_api import KubeClient

NODES: Final = ("hami-bench-1", "hami-bench-2")
_AT_ONCE: Final = 24
_AMOUNTS: Final = {"memory": "400Mi", "cores": "1", "shares": "100"}
"""Of a claim. Small, so that a hundred have room on a GPU: the daemon refuses what is more than there is."""

Json = Mapping[str, Any]
T = TypeVar("T")


class Namespace:
    """Makes objects. Use `namespace()`.

    Attributes:
        name: Of the namespace.
        pods: API path of its pods.
    """

    def __init__(self, api: KubeClient, name: str) -> None:
        self._api, self.name = api, name
        self._core = f"/api/v1/namespaces/{name}"
        self.pods = f"{self._core}/pods"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaims"
        self._numbers = itertools.count()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def create(self) -> None:
        """Make it, with the service account that pods need and that a controller manager, where one runs, makes too."""
        await self._api.ask(Call("create", "namespaces", "/api/v1/namespaces"), core_object("Namespace", self.name))
        with contextlib.suppress(ApiConflict):
            await self._post(
                "serviceaccounts", f"{self._core}/serviceaccounts", core_object("ServiceAccount", "default")
            )

    async def remove(self) -> None:
        """Delete everything in it, at once where no controller would, and itself."""
        for path in (self._claims, self.pods, self._core):
            await delete(self._api, path)

    async def pod_claims(self, node: str, devices: Sequence[int]) -> list[ClaimRef]:
        """One pod on a node, with a container and a claim for each of these device minors.

        Each claim holds a tenth of its device, allocated and reserved for the pod, and is named as those that are made from
        templates: after its pod and what the pod calls it.
        """
        name = f"pod-{next(self._numbers)}"
        names = [f"{name}-gpu-c{index}-{secrets.token_hex(3)[:5]}" for index in range(len(devices))]
        pod = await self._post("pods", self.pods, _pod(name, node, names))
        return await asyncio.gather(
            *(self._claim(claim, node, device, pod) for claim, device in zip(names, devices, strict=True))
        )

    async def claims(self, node: str, devices: Sequence[int]) -> list[ClaimRef]:
        """As `pod_claims`, each claim with a pod of its own."""
        made = await asyncio.gather(*(self.pod_claims(node, [device]) for device in devices))
        return [ref for refs in made for ref in refs]

    async def _claim(self, name: str, node: str, device: int, pod: Json) -> ClaimRef:
        claim = await self._post("resourceclaims", self._claims, _unallocated(name, pod))
        status = _allocation(node, device, pod)
        call = Call("update", "resourceclaims/status", f"{self._claims}/{name}/status", name)
        await self._ask(call, {**claim, "status": status})
        return ClaimRef(self.name, name, claim["metadata"]["uid"])

    async def _post(self, resource: str, path: str, obj: Json) -> Json:
        return await self._ask(Call("create", resource, path, obj["metadata"]["name"]), obj)

    async def _ask(self, call: Call, obj: Json) -> Json:
        async with self._places:
            return await self._api.ask(call, dict(obj))


@contextlib.asynccontextmanager
async def fresh_namespace(api: KubeClient) -> AsyncIterator[Namespace]:
    """A namespace, removed at the end with all that is in it."""
    made = Namespace(api, f"hami-bench-{secrets.token_hex(4)}")
    try:
        await made.create()
        yield made
    finally:
        await made.remove()


@contextlib.asynccontextmanager
async def namespace(api: KubeClient) -> AsyncIterator[Namespace]:
    """As that, with two nodes that nothing but these objects says are there."""
    await _remove_nodes(api)  # of a run that was killed
    try:
        for node in NODES:
            await api.ask(Call("create", "nodes", "/api/v1/nodes"), core_object("Node", node))
        async with fresh_namespace(api) as made:
            yield made
    finally:
        await _remove_nodes(api)


async def _remove_nodes(api: KubeClient) -> None:
    for node in NODES:
        await remove_slices(api, node)
        await delete(api, f"/api/v1/nodes/{node}")


async def remove_slices(api: KubeClient, node: str) -> None:
    """Delete our slices of a node."""
    for slice_ in (await api.list_slices(DRIVER, node)).items:
        await delete(api, f"/apis/resource.k8s.io/v1/resourceslices/{slice_['metadata']['name']}")


async def delete(api: Client, path: str) -> None:
    """Delete what is there, an object or all of a kind, at once."""
    with contextlib.suppress(ApiNotFound):
        # No grace: no kubelet is there to end the pods.
        await api.ask(Call("delete", path, path, query={"gracePeriodSeconds": "0"}))


async def for_each(things: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Do something with each, many at a time."""
    left = iter(things)

    async def worker() -> None:
        for thing in left:
            await work(thing)

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))


def core_object(kind: str, name: str) -> dict[str, Any]:
    """One of the core group."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def _pod(name: str, node: str, claims: Sequence[str]) -> Json:
    return core_object("Pod", name) | {
        "spec": {
            "nodeName": node,
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "containers": [
                {"name": f"c{index}", "image": "none", "resources": {"claims": [{"name": claim}]}}
                for index, claim in enumerate(claims)
            ],
        }
    }


def _unallocated(name: str, pod: Json) -> Json:
    in_pod = name.removeprefix(f"{pod['metadata']['name']}-")[:-6]
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "capacity": {"requests": _AMOUNTS}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "annotations": {"resource.kubernetes.io/pod-claim-name": in_pod}},
        "spec": {"devices": {"requests": [request]}},
    }


def _allocation(node: str, device: int, pod: Json) -> Json:
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": node,
        "device": f"hami-gpu-{device}",
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": _AMOUNTS,
    }
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}],
    }
