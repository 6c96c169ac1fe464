"""What a pod asks for: claims that are allocated, claims that wait, and what keeps claims from being there at all. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.kubectl.capacity import amount
from hami_kubeletplugin.kubectl.cluster import Around
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.wanted import MOST, Claim, Request, Want, claim, selectors_of
from hami_kubeletplugin.webhook.conversion.leftovers import is_hamis

Json = Mapping[str, Any]

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: a resource of containers that Kubernetes itself takes for it (KEP-5004)."""
IGNORE: Final = "ignore"


@dataclass(slots=True)
class Asked:
    """What a pod asks for.

    Attributes:
        waiting: Claims without an allocation, with what they ask for.
        allocated: Names of the others, with the NodeSelector of their allocation; None: it is good everywhere.
        problems: Why it can't be scheduled, whatever GPUs there are.
    """

    waiting: list[Claim] = field(default_factory=list)
    allocated: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def asked(around: Around) -> Asked:
    """Look at the pod's claims and resources."""
    found, status = Asked(), fields.mapping(around.pod.get("status"))
    made = {str(entry.get("name")): entry for _, entry in fields.mappings(status.get("resourceClaimStatuses"))}
    for _, entry in fields.mappings(fields.at(around.pod, "spec", "resourceClaims")):
        called, template = printable(entry.get("name"), 63), entry.get("resourceClaimTemplateName")
        entry_made = made.get(str(entry.get("name")))
        name = entry.get("resourceClaimName") or fields.at(entry_made, "resourceClaimName")
        if isinstance(name, str) and name:
            _look(found, name, around.claims.get(name), around)
        elif entry_made is None and str(template) not in around.templates:
            found.problems.append(f"claim {called}: there is no ResourceClaimTemplate {printable(template, 253)}")
        elif entry_made is None:
            found.problems.append(
                f"claim {called} has not been created yet: kube-controller-manager makes it from {printable(template, 253)}"
            )
    extended = fields.at(status, "extendedResourceClaimStatus", "resourceClaimName")
    if isinstance(extended, str) and extended in around.claims:
        _look(found, extended, around.claims[extended], around)
    else:
        requests = tuple(_extended(around))
        found.waiting += [Claim("that the scheduler makes", requests)] if requests else []
    found.problems += _unconverted(around)
    return found


def _look(found: Asked, name: str, object_: Json | None, around: Around) -> None:
    if object_ is None:
        found.problems.append(f"there is no ResourceClaim {printable(name, 253)}")
        return
    if fields.at(object_, "metadata", "deletionTimestamp"):
        found.problems.append(f"claim {printable(name, 253)} is being deleted")
    allocation = fields.at(object_, "status", "allocation")
    if isinstance(allocation, Mapping):
        found.allocated[name] = allocation.get("nodeSelector")
        reserved = fields.sequence(fields.at(object_, "status", "reservedFor"))
        if len(reserved) >= 256:
            found.problems.append(f"claim {printable(name, 253)} is in use by 256 pods, and no more may")
        return
    wanted = claim(name, object_.get("spec"), around.classes)
    for each in dict.fromkeys(called for request in wanted.requests for called in request.classes):
        if each not in around.classes:
            found.problems.append(f"claim {printable(name, 253)}: there is no DeviceClass {printable(each, 253)}")
    found.waiting.append(wanted)


def _containers(pod: Json) -> Iterator[Json]:
    for kind in ("initContainers", "containers"):
        yield from (each for _, each in fields.mappings(fields.at(pod, "spec", kind)))


def _resources(container: Json) -> Iterator[tuple[str, Any]]:
    """Resource and amount."""
    limits = fields.mapping(fields.at(container, "resources", "limits"))
    given = {**fields.mapping(fields.at(container, "resources", "requests")), **limits}
    return ((str(name), text) for name, text in given.items())


def _class_for(resource: str, classes: Mapping[str, Json]) -> str | None:
    implicit = resource.removeprefix(IMPLICIT) if resource.startswith(IMPLICIT) else None
    named = (name for name, each in classes.items() if fields.at(each, "spec", "extendedResourceName") == resource)
    return implicit if implicit in classes else next(named, None)


def _extended(around: Around) -> Iterator[Request]:
    """What the scheduler makes a claim of, without any webhook.

    An init container uses again what containers that come later get, and what more it needs, the other init containers do
    (kubernetes dynamicresources/extendeddynamicresources.go).
    """
    containers = [*_containers(around.pod)]
    needed: dict[str, list[int]] = {}
    for at, container in enumerate(containers):
        for resource, text in _resources(container):
            name, count = _class_for(resource, around.classes), amount(text)
            if name is not None and count:
                needed.setdefault(name, [0] * len(containers))[at] = min(int(count), MOST + 1)
    ends = [_ends(around.pod, container) for container in containers]
    for name, counts in needed.items():
        stay = [0 if ended else count for count, ended in zip(counts, ends, strict=True)]
        more = [count - sum(stay[at:]) if ends[at] else 0 for at, count in enumerate(counts)]
        most = max(more)
        for at, container in enumerate(containers):
            if count := stay[at] or (most if more.index(most) == at else 0):
                called = printable(container.get("name"), 63)
                want = Want(called, {}, count, tuple(selectors_of(around.classes[name])))
                yield Request(called, (name,), (want,))


def _ends(pod: Json, container: Json) -> bool:
    """Whether it is an init container that is no sidecar."""
    inits = fields.sequence(fields.at(pod, "spec", "initContainers"))
    return container.get("restartPolicy") != "Always" and any(container is each for each in inits)


def _unconverted(around: Around) -> Iterator[str]:
    ours = Conversion().resources
    named = [
        (printable(container.get("name"), 63), resource)
        for container in _containers(around.pod)
        for resource, _ in _resources(container)
        if resource in ours and _class_for(resource, around.classes) is None
    ]
    if named:
        container, resource = named[0]
        ignored = fields.at(around.pod, "metadata", "labels", names.IGNORE_LABEL) == IGNORE
        why = (
            f"its label {names.IGNORE_LABEL}={IGNORE} says that the webhook leaves it alone"
            if ignored
            else "hami-webhook was not there when it was created, or is not asked in its namespace: create the pod anew when it "
            "runs, or apply what kubectl hami convert prints"
        )
        yield f"container {container} asks for {resource}, and no webhook has made a claim of it: {why}"
    scheduler = fields.at(around.pod, "spec", "schedulerName")
    if is_hamis(scheduler):
        yield f"its schedulerName is {printable(scheduler, 63)}: kube-scheduler does not look at it"
