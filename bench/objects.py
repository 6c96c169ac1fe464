"""A namespace of the bench's own: pods that stay Pending, and claims as the scheduler leaves them."""

import asyncio
import contextlib
import itertools
import secrets
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ApiConflict, ApiNotFound
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.kube.client import Call
from hami_kubeletplugin.kube.resource_api import KubeClient

NODE: Final = "hami-bench-node"
_AT_ONCE: Final = 24

Json = Mapping[str, Any]


class Namespace:
    """Makes objects. Use `namespace()`."""

    def __init__(self, api: KubeClient, name: str) -> None:
        self._api, self._name = api, name
        self._core = f"/api/v1/namespaces/{name}"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaims"
        self._numbers = itertools.count()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def create(self) -> None:
        """Make it, with the service account that pods need and that a controller manager, where one runs, makes too."""
        await self._api.ask(Call("create", "namespaces", "/api/v1/namespaces"), _object("Namespace", self._name))
        with contextlib.suppress(ApiConflict):
            await self._post("serviceaccounts", f"{self._core}/serviceaccounts", _object("ServiceAccount", "default"))

    async def remove(self) -> None:
        """Delete everything in it, at once where no controller would, and itself."""
        for path in (self._claims, f"{self._core}/pods", self._core):
            await _delete(self._api, path)

    async def pod_claims(self, devices: Sequence[int]) -> list[ClaimRef]:
        """One pod with a container and a claim for each of these device minors.

        Each claim holds a tenth of its device, allocated and reserved for the pod.
        """
        name = f"pod-{next(self._numbers)}"
        names = [f"{name}-{index}" for index in range(len(devices))]
        pod = await self._post("pods", f"{self._core}/pods", _pod(name, names))
        return await asyncio.gather(
            *(self._claim(claim, device, pod) for claim, device in zip(names, devices, strict=True))
        )

    async def claims(self, devices: Sequence[int]) -> list[ClaimRef]:
        """As `pod_claims`, each claim with a pod of its own."""
        made = await asyncio.gather(*(self.pod_claims([device]) for device in devices))
        return [ref for refs in made for ref in refs]

    async def _claim(self, name: str, device: int, pod: Json) -> ClaimRef:
        claim = await self._post("resourceclaims", self._claims, _unallocated(name))
        status = _allocation(device, pod)
        call = Call("update", "resourceclaims/status", f"{self._claims}/{name}/status", name)
        await self._ask(call, {**claim, "status": status})
        return ClaimRef(self._name, name, claim["metadata"]["uid"])

    async def _post(self, resource: str, path: str, obj: Json) -> Json:
        return await self._ask(Call("create", resource, path, obj["metadata"]["name"]), obj)

    async def _ask(self, call: Call, obj: Json) -> Json:
        async with self._places:
            return await self._api.ask(call, dict(obj))


@contextlib.asynccontextmanager
async def namespace(api: KubeClient) -> AsyncIterator[Namespace]:
    """A node and a namespace, removed at the end with all that is in them."""
    made = Namespace(api, f"hami-bench-{secrets.token_hex(4)}")
    await _remove_node(api)  # of a run that was killed
    try:
        await api.ask(Call("create", "nodes", "/api/v1/nodes"), _object("Node", NODE))
        await made.create()
        yield made
    finally:
        await made.remove()
        await _remove_node(api)


async def _remove_node(api: KubeClient) -> None:
    for slice_ in (await api.list_slices(DRIVER, NODE)).items:
        await _delete(api, f"/apis/resource.k8s.io/v1/resourceslices/{slice_['metadata']['name']}")
    await _delete(api, f"/api/v1/nodes/{NODE}")


async def _delete(api: KubeClient, path: str) -> None:
    with contextlib.suppress(ApiNotFound):
        await api.ask(Call("delete", path, path))


def _object(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def _pod(name: str, claims: Sequence[str]) -> Json:
    return _object("Pod", name) | {
        "spec": {
            "schedulerName": "nobody",
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "containers": [
                {"name": f"c{index}", "image": "none", "resources": {"claims": [{"name": claim}]}}
                for index, claim in enumerate(claims)
            ],
        }
    }


def _unallocated(name: str) -> Json:
    amounts = {"memory": "4000Mi", "cores": "10", "shares": "1000"}
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "capacity": {"requests": amounts}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def _allocation(device: int, pod: Json) -> Json:
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": f"hami-gpu-{device}",
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"memory": "4000Mi", "cores": "10", "shares": "1000"},
    }
    field = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    return {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}],
    }
