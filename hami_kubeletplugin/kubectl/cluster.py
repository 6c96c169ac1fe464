"""What is asked of the API server: lists for `usage`, and what is about one pod for `why`."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import ApiForbidden, ApiNotFound, ApiNotServed
from hami_kubeletplugin.hanging import OwnThreads
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.paged import Reader
from hami_kubeletplugin.kubectl import taints
from hami_kubeletplugin.kubectl.inventory import Inventory, inventory

GROUP: Final = "resource.k8s.io"
_API: Final = f"/apis/{GROUP}/v1"
_RULES: Final = ("v1", "v1beta2")
"""Versions that DeviceTaintRules are served in: from 1.37 on, and in 1.36 where somebody has switched them on."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster, and what could not be looked at."""

    inventory: Inventory
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Around:
    """What is to know about one pod.

    Attributes:
        pod: The pod.
        claims: Its claims that are there, by name.
        templates: Names of ResourceClaimTemplates that it names and that are there.
        events: About it.
        classes: DeviceClasses by name.
        nodes: Nodes by name; None: they may not be read.
    """

    pod: Object
    claims: Mapping[str, Object]
    templates: frozenset[str]
    events: list[Object]
    classes: Mapping[str, Object]
    nodes: Mapping[str, Object] | None


def listed(resource: str, path: str, **query: str) -> Call:
    """The request for a list."""
    return Call("list", resource, path, query=query)


def look(reader: Reader, driver: str) -> Seen:
    """Read slices, claims and taint rules.

    Raises:
        ApiError: Slices or claims can't be read.
    """
    with _at_once() as pool:
        slices = pool.submit(
            _all,
            reader,
            listed(f"resourceslices.{GROUP}", f"{_API}/resourceslices", fieldSelector=f"spec.driver={driver}"),
        )
        claims = pool.submit(_all, reader, listed(f"resourceclaims.{GROUP}", f"{_API}/resourceclaims"))
        rules = pool.submit(_taint_rules, reader)
        found, notes = rules.result()
        return Seen(inventory(slices.result(), claims.result(), driver, taints.rules(found)), notes)


def look_around(reader: Reader, namespace: str, name: str) -> Around:
    """Read a pod and what belongs to it.

    Raises:
        ApiNotFound: There is no such pod.
        ApiError: Something that is needed can't be read.
    """
    inside = f"/namespaces/{_segment(namespace)}"
    pod = reader.get(Call("get", "pods", f"/api/v1{inside}/pods/{_segment(name)}", f"{namespace}/{name}"))
    uid = str(fields.at(pod, "metadata", "uid") or "")
    with _at_once() as pool:
        events = pool.submit(
            _all, reader, listed("events", f"/api/v1{inside}/events", fieldSelector=f"involvedObject.uid={uid}")
        )
        classes = pool.submit(_all, reader, listed(f"deviceclasses.{GROUP}", f"{_API}/deviceclasses"))
        nodes = pool.submit(_nodes, reader)
        claims = {}
        for claim in claim_names(pod):
            path = f"{_API}{inside}/resourceclaims/{_segment(claim)}"
            claims[claim] = _if_there(reader, Call("get", f"resourceclaims.{GROUP}", path, f"{namespace}/{claim}"))
        templates = {}
        for template in template_names(pod):
            path = f"{_API}{inside}/resourceclaimtemplates/{_segment(template)}"
            call = Call("get", f"resourceclaimtemplates.{GROUP}", path, f"{namespace}/{template}")
            templates[template] = _if_there(reader, call)
        return Around(
            pod,
            {each: found for each, found in claims.items() if found},
            frozenset(each for each, found in templates.items() if found),
            events.result(),
            _named(classes.result()),
            nodes.result(),
        )


def claim_names(pod: Mapping[str, Any]) -> list[str]:
    """The claims that a pod has, as far as they are made."""
    given = [entry.get("resourceClaimName") for _, entry in fields.mappings(fields.at(pod, "spec", "resourceClaims"))]
    made = [
        entry.get("resourceClaimName")
        for _, entry in fields.mappings(fields.at(pod, "status", "resourceClaimStatuses"))
    ]
    extended = fields.at(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    return list(dict.fromkeys(name for name in (*given, *made, extended) if isinstance(name, str) and name))


def template_names(pod: Mapping[str, Any]) -> list[str]:
    """Those that a pod names."""
    entries = fields.mappings(fields.at(pod, "spec", "resourceClaims"))
    named = (entry.get("resourceClaimTemplateName") for _, entry in entries)
    return list(dict.fromkeys(name for name in named if isinstance(name, str) and name))


@contextmanager
def _at_once() -> Iterator[OwnThreads]:
    """Threads that nobody waits for once something went wrong, or somebody pressed Ctrl-C.

    Nor does the end of the process, or it would be cut short, and with it the removal of files with the kubeconfig's keys.
    """
    pool = OwnThreads()
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


def _segment(name: str) -> str:
    """One segment of a path, whatever is in the name."""
    return quote(name, safe="")


def _all(reader: Reader, call: Call) -> list[Object]:
    return list(reader.all(call))


def _taint_rules(reader: Reader) -> tuple[list[Object], tuple[str, ...]]:
    for version in _RULES:
        try:
            return _all(reader, listed(f"devicetaintrules.{GROUP}", f"/apis/{GROUP}/{version}/devicetaintrules")), ()
        except (ApiNotServed, ApiNotFound):
            continue
        except ApiForbidden as error:
            return [], (f"taints that rules give to GPUs are not shown: {error}",)
    return [], ()  # then the scheduler knows of none either


def _nodes(reader: Reader) -> dict[str, Object] | None:
    try:
        return _named(reader.all(listed("nodes", "/api/v1/nodes")))
    except ApiForbidden:
        return None


def _if_there(reader: Reader, call: Call) -> Object | None:
    try:
        return reader.get(call)
    except ApiNotFound:
        return None


def _named(objects: Iterable[Object]) -> dict[str, Object]:
    return {str(fields.at(each, "metadata", "name")): each for each in objects}
