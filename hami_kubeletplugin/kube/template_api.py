"""What the webhook asks of the Kubernetes API besides its certificate: `TemplateClient`.

ResourceClaimTemplates are read and written as `resource.k8s.io/v1` only: it is served since 1.34, and 1.35 is the oldest
Kubernetes that is supported. Slices are found in whatever version there is, see `resource_api`.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.resource_api import (
    GROUP,
    PAGE,
    KubeClient,
    Listed,
    delete_options,
    pages,
    segment,
    watch_query,
    watch_seconds,
)

_MERGE_PATCH: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Namespaced:
    """A resource of which there are objects in each namespace.

    Attributes:
        name: Plural, in lower case.
        group: API group; empty for the core.
    """

    name: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.name}.{self.group}" if self.group else self.name

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of one object, of all in a namespace, or of all."""
        root = f"/apis/{self.group}/v1" if self.group else "/api/v1"
        within = f"/namespaces/{segment(namespace)}" if namespace else ""
        return f"{root}{within}/{self.name}" + (f"/{segment(name)}" if name else "")

    def call(self, verb: str, namespace: str = "", name: str = "", **more: Any) -> Call:
        """A call to it. What is created goes to the path of all; its name is for messages."""
        path = self.path(namespace, "" if verb == "create" else name)
        return Call(verb, str(self), path, f"{namespace}/{name}" if name else namespace, **more)


TEMPLATES: Final = Namespaced("resourceclaimtemplates", GROUP)
LEASES: Final = Namespaced("leases", "coordination.k8s.io")


class TemplateClient(KubeClient):
    """The Kubernetes API as far as the webhook needs it. Objects are JSON as dicts; all methods raise `ApiError`."""

    async def watch_templates(self, since: str) -> AsyncGenerator[Event]:
        """Changes of them after resource version `since`, bookmarks included, for some minutes.

        Raises:
            ApiExpired: `since` is too old: list again.
        """
        seconds = watch_seconds()
        call = TEMPLATES.call("watch", query=watch_query(since, seconds))
        async with aclosing(self.watch(call, seconds)) as events:
            async for event in events:
                yield event

    async def get_template(self, namespace: str, name: str) -> Object:
        """A ResourceClaimTemplate.

        Raises:
            ApiNotFound: No such template.
        """
        return await self.ask(TEMPLATES.call("get", namespace, name))

    async def create_template(self, obj: Mapping[str, Any]) -> Object:
        """Create a ResourceClaimTemplate; returns what the server made of it.

        Raises:
            ApiConflict: There is one of that name.
            ApiNotFound: There is no such namespace.
        """
        return await self.ask(TEMPLATES.call("create", *key_of(obj)), obj)

    async def annotate_template(self, namespace: str, name: str, annotations: Mapping[str, str]) -> Object:
        """Set annotations, whatever version the template has by now; returns it.

        Raises:
            ApiNotFound: No such template.
        """
        call = TEMPLATES.call("patch", namespace, name, content_type=_MERGE_PATCH)
        return await self.ask(call, {"metadata": {"annotations": dict(annotations)}})

    async def delete_template(self, obj: Mapping[str, Any]) -> None:
        """Delete a ResourceClaimTemplate, if it is still the one that we saw.

        Raises:
            ApiConflict: Somebody wrote in between.
            ApiNotFound: It is gone.
        """
        await self.ask(TEMPLATES.call("delete", *key_of(obj)), delete_options(obj))

    def pages(self, resource: Namespaced, namespace: str = "") -> AsyncGenerator[Listed[Object]]:
        """The objects of a resource in a namespace, or in all, by and by; all pages show the state of the first.

        Raises:
            ApiExpired: Too slow: the server has forgotten that state.
        """
        return pages(lambda page: self.ask(resource.call("list", namespace, query=page)), PAGE)

    async def get_lease(self, namespace: str, name: str) -> Object:
        """A Lease.

        Raises:
            ApiNotFound: No such lease.
        """
        return await self.ask(LEASES.call("get", namespace, name))

    async def create_lease(self, obj: Mapping[str, Any]) -> Object:
        """Create a Lease.

        Raises:
            ApiConflict: Somebody was faster.
        """
        return await self.ask(LEASES.call("create", *key_of(obj)), obj)

    async def update_lease(self, obj: Mapping[str, Any]) -> Object:
        """Replace a Lease, if it still has the resource version of `obj`.

        Raises:
            ApiConflict: Somebody was faster.
        """
        return await self.ask(LEASES.call("update", *key_of(obj)), obj)


def key_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of an object."""
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
