"""The bench's own namespace: pods that stay Pending, and claims as the scheduler leaves them."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ApiConflict, ApiNotFound
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.kube.client import Call
from hami_kubeletplugin.kube.resource_api import KubeClient

NAMESPACE: Final = "hami-bench"
NODE: Final = "hami-bench-node"
_AT_ONCE: Final = 24

Json = Mapping[str, Any]


class Namespace:
    """Makes and removes objects. Use `namespace()`."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self._numbers = itertools.count()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def pod_claims(self, devices: Sequence[int]) -> list[ClaimRef]:
        """One pod with a container and a claim for each of these device minors.

        Each claim holds a tenth of its device, allocated and reserved for the pod.
        """
        name = f"pod-{next(self._numbers)}"
        names = [f"{name}-{index}" for index in range(len(devices))]
        pod = await self._post("pods", _core("pods"), _pod(name, names))
        return await asyncio.gather(
            *(self._claim(claim, device, pod) for claim, device in zip(names, devices, strict=True))
        )

    async def claims(self, devices: Sequence[int]) -> list[ClaimRef]:
        """As `pod_claims`, each claim with a pod of its own."""
        made = await asyncio.gather(*(self.pod_claims([device]) for device in devices))
        return [ref for refs in made for ref in refs]

    async def _claim(self, name: str, device: int, pod: Json) -> ClaimRef:
        claim = await self._post("resourceclaims", _CLAIMS, _unallocated(name))
        status = _allocation(device, pod)
        call = Call("update", "resourceclaims/status", f"{_CLAIMS}/{name}/status", name)
        await self._ask(call, {**claim, "status": status})
        return ClaimRef(NAMESPACE, name, claim["metadata"]["uid"])

    async def _post(self, resource: str, path: str, obj: Json) -> Json:
        return await self._ask(Call("create", resource, path, obj["metadata"]["name"]), obj)

    async def _ask(self, call: Call, obj: Json) -> Json:
        async with self._places:
            return await self._api.ask(call, dict(obj))


@contextlib.asynccontextmanager
async def namespace(api: KubeClient) -> AsyncIterator[Namespace]:
    """A node and a namespace, removed at the end with all that is in them; so are leftovers of a run that was killed."""
    await _remove(api)
    try:
        await api.ask(Call("create", "nodes", "/api/v1/nodes"), _object("Node", NODE))
        await _eventually(lambda: _create_namespace(api))
        with contextlib.suppress(ApiConflict):  # made by the controller manager, where one runs
            account = {"metadata": {"name": "default"}}
            await api.ask(Call("create", "serviceaccounts", _core("serviceaccounts")), account)
        yield Namespace(api)
    finally:
        await _remove(api)


async def _create_namespace(api: KubeClient) -> None:
    await api.ask(Call("create", "namespaces", "/api/v1/namespaces"), _object("Namespace", NAMESPACE))


async def _eventually(attempt: Callable[[], Awaitable[None]]) -> None:
    """The namespace of an earlier run may still be terminating."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ApiConflict):
                return await attempt()
            await asyncio.sleep(0.2)


async def _remove(api: KubeClient) -> None:
    for slice_ in (await api.list_slices(DRIVER, NODE)).items:
        with contextlib.suppress(ApiNotFound):
            await api.delete_slice(slice_)
    paths = (_CLAIMS, _core("pods"), f"/api/v1/namespaces/{NAMESPACE}", f"/api/v1/nodes/{NODE}")
    for path in paths:
        with contextlib.suppress(ApiNotFound, ApiConflict):
            await api.ask(Call("delete", path, path))


def _core(resource: str) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/{resource}"


_CLAIMS: Final = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"


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
