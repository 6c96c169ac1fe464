"""Why a pod waits: what its claims ask for, held against each node and GPU as they are now. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.kubectl import nodes
from hami_kubeletplugin.kubectl.asked import Asked, asked
from hami_kubeletplugin.kubectl.cluster import Around, Seen
from hami_kubeletplugin.kubectl.fits import Lack, lacks, unjudged
from hami_kubeletplugin.kubectl.inventory import Gpu
from hami_kubeletplugin.kubectl.placing import Placed, needed, place
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.wanted import Claim, Request

Json = Mapping[str, Any]

_EVENTS: Final = 5
"""The last of different reasons."""
_STEPS: Final = 1_000_000
"""Selectors and amounts that are held against GPUs: some seconds."""
_SAMPLE: Final = 64
"""GPUs that selectors are tried on, to say which aren't judged."""


@dataclass(frozen=True, slots=True)
class Node:
    """What keeps the pod from one node.

    Attributes:
        name: The node's.
        reasons: Apart from single GPUs; none, and no `lacking`: it has room.
        lacking: (claim, request, GPU) with what is missing there, of requests that don't get their GPUs.
        placed: The GPUs that it would get.
    """

    name: str
    reasons: tuple[str, ...]
    lacking: tuple[tuple[str, str, Gpu, tuple[Lack, ...]], ...]
    placed: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """The answer.

    Attributes:
        state: Where the pod is on its way, in words.
        problems: What keeps it from starting, whatever GPUs there are.
        told: What scheduler, kubelet and others say, the newest last.
        asked: What it asks for.
        nodes: Those with GPUs, if it is not scheduled and waits for some.
        notes: What couldn't be looked at.
    """

    state: str
    problems: tuple[str, ...]
    told: tuple[str, ...]
    asked: Asked
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]


def why(around: Around, seen: Seen) -> Why:
    """Find out.

    Args:
        around: The pod and its objects.
        seen: The cluster's GPUs.
    """
    pod, wanted = around.pod, asked(around)
    waits = fields.at(pod, "status", "phase") in (None, "Pending") and not fields.at(pod, "spec", "nodeName")
    found = tuple(_nodes(around, seen, wanted)) if waits and wanted.waiting else ()
    gates = [printable(each.get("name"), 80) for _, each in fields.mappings(fields.at(pod, "spec", "schedulingGates"))]
    problems = wanted.problems if waits else []
    if gates and waits:
        problems = [f"its schedulingGates are not lifted yet: {', '.join(gates)}", *problems]
    return Why(
        _state(pod),
        tuple(problems),
        tuple(_told(around)),
        wanted,
        found,
        tuple(_notes(around, seen, wanted)) if waits else (),
    )


def _state(pod: Json) -> str:
    phase, node = fields.at(pod, "status", "phase"), fields.at(pod, "spec", "nodeName")
    if fields.at(pod, "metadata", "deletionTimestamp"):
        return "is being deleted"
    if phase in (None, "Pending"):
        return f"is scheduled to node {printable(node, 253)} and has not started there" if node else "is not scheduled"
    return f"is {printable(phase, 32)}" + (f" on node {printable(node, 253)}" if node else "")


def _told(around: Around) -> Iterator[str]:
    """The last event of each reason but progress, then what the pod's status says."""
    events = sorted(around.events, key=_time)
    last = {str(each.get("reason")): each for each in events if each.get("type") == "Warning"}
    for reason, event in list(last.items())[-_EVENTS:]:
        who = fields.at(event, "reportingComponent") or fields.at(event, "source", "component") or "somebody"
        yield f"{printable(who, 80)}, {printable(reason, 80)}: {printable(event.get('message'))}"
    for _, condition in fields.mappings(fields.at(around.pod, "status", "conditions")):
        if (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and "FailedScheduling" not in last
        ):
            yield f"scheduler: {printable(condition.get('message'))}"
    for kind in ("initContainerStatuses", "containerStatuses"):
        for _, status in fields.mappings(fields.at(around.pod, "status", kind)):
            waiting = fields.mapping(fields.at(status, "state", "waiting"))
            if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
                yield (
                    f"container {printable(status.get('name'), 63)} waits, {printable(waiting['reason'], 80)}: "
                    f"{printable(waiting.get('message') or '-')}"
                )


def _time(event: Json) -> str:
    given = [fields.at(event, "series", "lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")]
    return next((each for each in given if isinstance(each, str)), "")


def _notes(around: Around, seen: Seen, wanted: Asked) -> Iterator[str]:
    yield from seen.notes
    if around.nodes is None and wanted.waiting:
        yield "nodes may not be listed with these rights, so cordons, taints, labels and selectors of nodes were not looked at"
    gpus = seen.inventory.gpus
    if (most := _within(wanted.waiting, seen)) < len(seen.inventory.pools):
        yield f"only the first {most} of {len(seen.inventory.pools)} nodes were looked at: the claims have very many selectors"
    listed = [
        expression
        for claim in wanted.waiting
        for request in claim.requests
        if not _foreign(request, gpus)
        for want in request.alternatives
        for expression in unjudged(gpus[:_SAMPLE], want)
    ]
    for expression in dict.fromkeys(listed):
        yield f"a selector was not judged, and taken for satisfied: {printable(expression, 300)}"
    for claim in wanted.waiting:
        for request in claim.requests:
            if gpus and _foreign(request, gpus):
                classes = ", ".join(printable(each, 253) for each in request.classes)
                yield f"request {printable(request.name, 63)} of class {classes} is for devices of another driver: not looked at"


def _foreign(request: Request, gpus: Sequence[Gpu]) -> bool:
    """Whether its selectors say that it is for no device of our driver."""
    texts = [text for want in request.alternatives for text in want.selectors if "device.driver" in text]
    return bool(texts) and not any(f'"{gpu.pool.driver}"' in text for gpu in gpus[:1] for text in texts)


def _nodes(around: Around, seen: Seen, wanted: Asked) -> Iterator[Node]:
    by_node: dict[str, list[Gpu]] = {}
    for pool, gpus in seen.inventory.pools:
        by_node.setdefault(pool.node, []).extend(gpus)
    claims = [
        Claim(
            claim.name,
            tuple(each for each in claim.requests if not _foreign(each, seen.inventory.gpus)),
            claim.constraints,
        )
        for claim in wanted.waiting
    ]
    if not any(claim.requests for claim in claims):
        return
    for name, gpus in list(by_node.items())[: _within(claims, seen)]:
        reasons = [*_reasons(name, around, wanted)]
        lacking = [*_lacking(claims, gpus, reasons)]
        placed = None if lacking or reasons else place(claims, gpus)
        if placed is None and not lacking and not reasons:
            reasons.append(
                "each request alone has room here, all of them together, as they are constrained, seem to have none"
            )
        yield Node(name, tuple(reasons), tuple(lacking), tuple(placed or ()))


def _within(claims: Sequence[Claim], seen: Seen) -> int:
    """So many nodes can be looked at: claims with thousands of selectors would otherwise take minutes."""
    steps = sum(1 + len(want.selectors) for claim in claims for each in claim.requests for want in each.alternatives)
    a_node = max((len(gpus) for _, gpus in seen.inventory.pools), default=0) * steps
    return _STEPS // max(a_node, 1)


def _reasons(name: str, around: Around, wanted: Asked) -> Iterator[str]:
    node = (around.nodes or {}).get(name)
    if around.nodes is not None and node is None:
        yield "there is no such node"
    elif node is not None:
        yield from nodes.against(node, around.pod)
    labels = None if around.nodes is None else fields.mapping(fields.at(node, "metadata", "labels"))
    for claim, selector in wanted.allocated.items():
        if isinstance(selector, Mapping) and not nodes.selected(selector, labels, name):
            yield f"claim {printable(claim, 253)} is allocated elsewhere"


def _lacking(
    claims: Sequence[Claim], gpus: Sequence[Gpu], reasons: list[str]
) -> Iterator[tuple[str, str, Gpu, tuple[Lack, ...]]]:
    """Of requests that have too few GPUs; says so in `reasons`, if it is more than one GPU that is wanted."""
    for claim in claims:
        for request in claim.requests:
            ways = [(needed(gpus, want), [lacks(gpu, want) for gpu in gpus]) for want in request.alternatives]
            if any(missing.count([]) >= number for number, missing in ways):
                continue
            found = [_least(of_each) for of_each in zip(*(missing for _, missing in ways), strict=True)]
            number = min((number for number, _ in ways), default=1)
            if number > 1:
                every = "all " if all(want.count is None for want in request.alternatives) else ""
                reasons.append(
                    f"request {printable(request.name, 63)} wants {every}{number} GPUs, "
                    f"{found.count([])} of {len(gpus)} have room"
                )
            for gpu, lacking in zip(gpus, found, strict=True):
                if lacking:
                    yield claim.name, request.name, gpu, tuple(lacking)


def _least(of_each: Sequence[list[Lack]]) -> list[Lack]:
    """What is missing for the alternative that comes nearest."""
    meant = [missing for missing in of_each if all(lack.what != "selector" for lack in missing)]
    return min(meant or of_each, key=len)
