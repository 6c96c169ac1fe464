"""What a claim asks for: requests with their alternatives, as the scheduler reads them. Pure.

Contract: resource.k8s.io/v1 types.go (DeviceRequest, DeviceSubRequest, DeviceConstraint), KEP-4816, KEP-5075.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.kubectl.capacity import Amounts, amount

Json = Mapping[str, Any]

MOST: Final = 32
"""Requests of a claim, and devices of one: more than the API server takes is not looked at."""


@dataclass(frozen=True, slots=True)
class Want:
    """What is asked of each GPU of one request, or of one of its alternatives.

    Attributes:
        request: Its name; behind a `/` that of the alternative.
        amounts: Of each capacity that it names.
        count: How many GPUs; None: all that match.
        selectors: CEL, the class's first.
        tolerations: Of taints.
        admin: Whether claims keep what it takes; to be given, as much has to be free as for any other.
    """

    request: str
    amounts: Amounts
    count: int | None = 1
    selectors: tuple[str, ...] = ()
    tolerations: tuple[Json, ...] = ()
    admin: bool = False


class Request(NamedTuple):
    """One request: the first of its alternatives that a node has room for counts."""

    name: str
    classes: tuple[str, ...]
    alternatives: tuple[Want, ...]


class Constraint(NamedTuple):
    """What the GPUs of some requests have to have in common, or not."""

    attribute: str
    same: bool
    requests: frozenset[str]
    """Empty: of all."""

    def holds_for(self, want: Want) -> bool:
        """Whether a request, or one of its alternatives, is meant."""
        return not self.requests or bool({want.request, want.request.partition("/")[0]} & self.requests)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a pod.

    Attributes:
        name: Its own name, or of one that isn't there yet the pod's.
        requests: In order.
        constraints: Upon them.
    """

    name: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()


def claim(name: str, spec: object, classes: Mapping[str, Json]) -> Claim:
    """From a ResourceClaimSpec.

    Args:
        name: The claim's.
        spec: The spec.
        classes: DeviceClasses by name; of those that aren't there the selectors are not known.
    """
    devices = fields.mapping(fields.at(spec, "devices"))
    given = [request for _, request in fields.mappings(devices.get("requests"))][:MOST]
    constraints = [each for _, each in fields.mappings(devices.get("constraints"))][:MOST]
    return Claim(
        name, tuple(_request(each, classes) for each in given), tuple(filter(None, map(_constraint, constraints)))
    )


def _request(given: Json, classes: Mapping[str, Json]) -> Request:
    name = str(given.get("name") or "")
    listed = [each for _, each in fields.mappings(given.get("firstAvailable"))][:MOST]
    chosen = [(f"{name}/{each.get('name')}", each) for each in listed] or [(name, fields.mapping(given.get("exactly")))]
    named = dict.fromkeys(str(each.get("deviceClassName") or "") for _, each in chosen)
    return Request(name, tuple(named), tuple(_want(called, each, classes) for called, each in chosen))


def _want(name: str, given: Json, classes: Mapping[str, Json]) -> Want:
    asked = fields.mapping(fields.at(given, "capacity", "requests"))
    count = given.get("count")
    own = _expressions(given)
    return Want(
        request=name,
        amounts={str(each): value for each, text in asked.items() if (value := amount(text)) is not None},
        count=None if given.get("allocationMode") == "All" else min(count, MOST + 1) if isinstance(count, int) else 1,
        selectors=tuple(dict.fromkeys([*selectors_of(classes.get(str(given.get("deviceClassName")))), *own])),
        tolerations=tuple(each for _, each in fields.mappings(given.get("tolerations"))),
        admin=given.get("adminAccess") is True,
    )


def selectors_of(device_class: Json | None) -> Sequence[str]:
    """Those of a DeviceClass."""
    return tuple(_expressions(fields.mapping(fields.at(device_class, "spec"))))


def _expressions(given: Json) -> Iterator[str]:
    for _, selector in fields.mappings(given.get("selectors")):
        if isinstance(expression := fields.at(selector, "cel", "expression"), str):
            yield expression


def _constraint(given: Json) -> Constraint | None:
    for field in ("matchAttribute", "distinctAttribute"):
        if isinstance(attribute := given.get(field), str):
            listed = frozenset(str(each) for each in fields.sequence(given.get("requests")))
            return Constraint(attribute, field == "matchAttribute", listed)
    return None
