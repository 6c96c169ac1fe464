"""The requests that this program makes, as methods: `KubeClient`.

Everything here speaks `resource.k8s.io/v1`. Servers that have only v1beta2 or v1beta1 are served too: the version is settled
by the first answer that is not "404, no such path", and settled anew when that answer comes again, as after an upgrade.
Contract: k8s.io/dynamic-resource-allocation client/client.go (order and the switch on 404), k8s.io/api resource/v1beta1.
"""

import dataclasses
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from hami_kubeletplugin.api.errors import ApiNotServed, ApiUnavailable
from hami_kubeletplugin.kube.call import Call, Object, items_of, whole
from hami_kubeletplugin.kube.client import Client, Event

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
PAGE: Final = 250
"""Objects of one answer, so that a namespace of ten thousand pods is never in memory as a whole."""
SLICES_PAGE: Final = 50
"""ResourceSlices of one answer: each may be a hundred times as long as other objects."""
_SLICES: Final = f"resourceslices.{GROUP}"
_CLAIMS: Final = f"resourceclaims.{GROUP}"


_WRITTEN: Final = ("name", "uid", "resourceVersion")
"""What each object has that was written into etcd."""

T = TypeVar("T")


class Listed(NamedTuple, Generic[T]):
    """Objects, or what is kept of each, and the resource version to watch from."""

    items: list[T]
    resource_version: str


class KubeClient(Client):
    """The Kubernetes API as far as we need it. Objects are JSON as dicts; all methods raise `ApiError`."""

    _version = VERSIONS[0]
    _server_version: tuple[int, int] | None = None

    async def get_claim(self, namespace: str, name: str) -> Object:
        """A ResourceClaim. Its `status.allocation` is alike in all API versions.

        Raises:
            ApiNotFound: No such claim.
        """
        return await self._ask_resource_api(
            Call("get", _CLAIMS, _claim_path(namespace, name), f"{namespace}/{name}"),
        )

    async def get_pod(self, namespace: str, name: str, *, cached: bool = False) -> Object:
        """A pod.

        Args:
            namespace: Its namespace.
            name: Its name.
            cached: From the API server's watch cache: costs half, since etcd isn't asked, but may be some moments old.

        Raises:
            ApiNotFound: No such pod; with `cached` it may only be too new.
        """
        return await self.ask(pod_call(namespace, name, cached=cached))

    async def create_event(self, obj: Mapping[str, Any]) -> Object:
        """Create an Event, in the namespace of what it is about.

        Raises:
            ApiConflict: There is one of that name.
        """
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        path = f"/api/v1/namespaces/{segment(namespace)}/events"
        return await self.ask(Call("create", "events", path, f"{namespace}/{name}"), obj)

    async def get_node(self, name: str, *, cached: bool = False) -> Object:
        """A node.

        Args:
            name: Its name.
            cached: See `get_pod`.

        Raises:
            ApiNotFound: No such node.
        """
        query = {"resourceVersion": "0"} if cached else None
        call = Call("get", "nodes", f"/api/v1/nodes/{segment(name)}", name, query)
        return whole(call, await self.ask(call), "uid")

    async def server_version(self) -> tuple[int, int]:
        """The server's (major, minor). A change makes us look for the newest API version again."""
        answer = await self.ask(Call("get", "/version", "/version", mark="gitVersion"))
        # Some vendors write the minor as `34+`.
        found = [re.match("[0-9]+", str(answer.get(field))) for field in ("major", "minor")]
        if found[0] is None or found[1] is None:
            raise ApiUnavailable(f"get /version failed: {answer.get('gitVersion')!r} has no major and minor number")
        version = int(found[0][0]), int(found[1][0])
        if version != self._server_version:
            self._server_version, self._version = version, VERSIONS[0]
        return version

    async def list_slices(self, driver: str, node: str | None = None) -> Listed[Object]:
        """The ResourceSlices of a driver, on one node or on all."""
        call = Call("list", _SLICES, "/resourceslices", query=_of(driver, node))
        answer = await self._ask_resource_api(call)
        items = [_read(item) for item in items_of(call, answer, *_WRITTEN)]
        return Listed(items, answer["metadata"]["resourceVersion"])

    def slice_pages(self, driver: str) -> AsyncGenerator[Listed[Object]]:
        """The ResourceSlices of a driver on all nodes, by and by: those of a thousand nodes are ten million characters.

        Raises:
            ApiExpired: Too slow: the server has forgotten that state.
        """
        return self.selected_slices(_of(driver, None))

    def selected_slices(self, selector: Mapping[str, str]) -> AsyncGenerator[Listed[Object]]:
        """ResourceSlices by a field selector, e.g. `{"fieldSelector": "spec.nodeName=n1"}`, by and by.

        Raises:
            ApiExpired: Too slow: the server has forgotten that state.
        """

        async def ask(page: Mapping[str, str]) -> Object:
            query = {**selector, **page}
            call = Call("list", _SLICES, "/resourceslices", query=query)
            answer = await self._ask_resource_api(call)
            return answer | {"items": [_read(item) for item in items_of(call, answer)]}

        return pages(ask, SLICES_PAGE)

    def watch_slices(self, driver: str, node: str | None, since: str) -> AsyncGenerator[Event]:
        """Changes of these slices after resource version `since`, bookmarks included, for some minutes.

        Raises:
            ApiExpired: `since` is too old: list again.
        """
        return self.watch_selected_slices(_of(driver, node), since)

    async def watch_selected_slices(self, selector: Mapping[str, str], since: str) -> AsyncGenerator[Event]:
        """As `watch_slices`, by a field selector as in `selected_slices`."""
        seconds = watch_seconds()
        query = {**selector, **watch_query(since, seconds)}
        call = Call("watch", _SLICES, f"/apis/{GROUP}/{self._version}/resourceslices", query=query)
        async with aclosing(self.watch(call, seconds)) as events:
            async for event in events:
                fields = () if event.type == "BOOKMARK" else _WRITTEN
                yield Event(event.type, _read(whole(call, event.object, *fields)))

    async def create_slice(self, obj: Mapping[str, Any]) -> Object:
        """Create a ResourceSlice; returns what the server made of it.

        Raises:
            ApiInvalid: The server refuses it.
        """
        name = obj["metadata"].get("name") or obj["metadata"]["generateName"]
        call = Call("create", _SLICES, "/resourceslices", name)
        return whole(call, await self._ask_resource_api(call, obj), *_WRITTEN)

    async def update_slice(self, obj: Mapping[str, Any]) -> Object:
        """Replace a ResourceSlice, if it still has the resource version of `obj`.

        Raises:
            ApiConflict: Somebody wrote in between.
            ApiNotFound: It is gone.
        """
        name = obj["metadata"]["name"]
        call = Call("update", _SLICES, f"/resourceslices/{segment(name)}", name)
        return whole(call, await self._ask_resource_api(call, obj), *_WRITTEN)

    async def delete_slice(self, obj: Mapping[str, Any]) -> None:
        """Delete a ResourceSlice, if it is still the one that we saw.

        Raises:
            ApiConflict: Somebody wrote in between.
            ApiNotFound: It is gone.
        """
        name = obj["metadata"]["name"]
        call = Call("delete", _SLICES, f"/resourceslices/{segment(name)}", name)
        await self._ask_resource_api(call, delete_options(obj))

    async def _ask_resource_api(self, call: Call, obj: Mapping[str, Any] | None = None) -> Object:
        first = self._version
        for version in (first, *(v for v in VERSIONS if v != first)):
            path = f"/apis/{GROUP}/{version}{call.path}"
            body = _write(obj, version) if obj is not None and call.verb in {"create", "update"} else obj
            try:
                answer = await self.ask(dataclasses.replace(call, path=path), body)
            except ApiNotServed:
                continue
            self._version = version
            return _read(answer)
        served = ", ".join(VERSIONS)
        raise ApiNotServed(
            f"{call} failed: the API server serves none of {GROUP} {served}; Kubernetes 1.35 or newer is needed"
        )


async def pages(ask: Callable[[Mapping[str, str]], Awaitable[Object]], size: int) -> AsyncGenerator[Listed[Object]]:
    """A list in pieces, all of which show the state of the first.

    Args:
        ask: Sends the request with these parameters.
        size: Objects of one answer.
    """
    following = ""
    while True:
        answer = await ask({"limit": str(size)} | ({"continue": following} if following else {}))
        metadata = answer["metadata"]
        yield Listed(answer.get("items") or [], metadata["resourceVersion"])
        following = metadata.get("continue", "")
        if not following:
            return


async def kept(found: AsyncGenerator[Listed[Object]], keep: Callable[[Object], T | None]) -> Listed[T]:
    """What is kept of each object of a list in pages; of the objects themselves only one page is in memory at a time.

    Args:
        found: The pages.
        keep: What to keep of an object; None: nothing.
    """
    items: list[T] = []
    version = ""
    async with aclosing(found):
        async for page in found:
            items += [made for made in map(keep, page.items) if made is not None]
            version = page.resource_version
    return Listed(items, version)


def claim_call(namespace: str, name: str, version: str) -> Call:
    """The request for a claim, in one of `VERSIONS`."""
    return Call("get", _CLAIMS, f"/apis/{GROUP}/{version}{_claim_path(namespace, name)}", f"{namespace}/{name}")


def pod_call(namespace: str, name: str, *, cached: bool) -> Call:
    """The request for a pod."""
    path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"
    return Call("get", "pods", path, f"{namespace}/{name}", {"resourceVersion": "0"} if cached else None)


def _claim_path(namespace: str, name: str) -> str:
    return f"/namespaces/{segment(namespace)}/resourceclaims/{segment(name)}"


def segment(name: str) -> str:
    """A name as one segment of a path, whatever is in it."""
    return quote(name, safe="")


def watch_seconds() -> int:
    """How long a watch is to last: spread, so that all who watch don't come back at the same time."""
    return random.randint(240, 480)  # noqa: S311 - no secret


def watch_query(since: str, seconds: int) -> dict[str, str]:
    """Parameters of a watch from a resource version on."""
    return {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": since,
        "timeoutSeconds": str(seconds),
    }


def delete_options(obj: Mapping[str, Any]) -> Object:
    """The body of a delete that hits only the object that we saw, as we saw it."""
    metadata = obj["metadata"]
    return {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
    }


def _of(driver: str, node: str | None) -> dict[str, str]:
    return {"fieldSelector": f"spec.driver={driver}" + ("" if node is None else f",spec.nodeName={node}")}


def _write(obj: Mapping[str, Any], version: str) -> Object:
    """A slice in the form of an API version: v1beta1 wraps all fields of a device but its name below `basic`."""
    out = {**obj, "apiVersion": f"{GROUP}/{version}", "kind": "ResourceSlice"}
    if version == "v1beta1":
        devices = [
            {"name": d["name"], "basic": {k: v for k, v in d.items() if k != "name"}}
            for d in obj["spec"].get("devices") or ()
        ]
        out["spec"] = {**obj["spec"], "devices": devices}
    return out


def _read(obj: Object) -> Object:
    """The opposite of `_write`, for objects that have devices in them."""
    spec = obj.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if isinstance(devices, list) and any(isinstance(device, dict) and "basic" in device for device in devices):
        obj["spec"]["devices"] = [{"name": d["name"], **d.get("basic", {})} for d in devices]
    return obj
