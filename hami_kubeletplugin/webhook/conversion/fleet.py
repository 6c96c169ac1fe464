"""What a pod asks for, held against the GPUs that are published: warnings, since one that has it may be on its way. Pure."""

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.annotations import Selection
from hami_kubeletplugin.webhook.conversion.demand import Demand

CONTEXT_MIB: Final = 350
"""What a CUDA context takes of a limit, some 300 MiB, with a little room: with 345 MiB cuMemGetInfo fails (HAMi#1370)."""
_NOW: Final = "the pod waits until there is one"
_NAMED: Final = 3
"""So many GPUs or types are named in a warning."""


class Kind(NamedTuple):
    """What is alike in GPUs: all that an amount or a type can be held against."""

    model: str | None
    """None: not known, so it may be any."""
    memory_mib: int
    cores: int = 100
    """Percent that all users of a GPU can have together."""


Node = tuple[tuple[Kind, int], ...]
"""Kinds of GPUs, each with how many of them a node has."""


class Fleet(Protocol):
    """The GPUs that there are."""

    @property
    def nodes(self) -> frozenset[Node]:
        """The different nodes; none: not known, or there are no GPUs yet."""

    def has(self, uuid: str) -> bool:
        """Whether a GPU with that UUID is among them, or may be."""


def unmatched(chosen: Selection, fleet: Fleet | None, where: str) -> Iterator[str]:
    """UUIDs and types of a pod's annotations that no GPU has, in words.

    Args:
        chosen: What the annotations say.
        fleet: The GPUs; None: not known.
        where: As for `convert`.
    """
    if fleet is None or not fleet.nodes or not (chosen.uuids or chosen.types or chosen.not_types):
        return
    strange = [uuid for uuid in chosen.uuids if not fleet.has(uuid)]
    yield from _strange(names.USE_UUID, strange, chosen.uuids, "is", where)
    kinds = {kind._replace(memory_mib=0, cores=0) for node in fleet.nodes for kind, _ in node}
    strange = [part for part in chosen.types if not any(_admits(Selection(types=(part,)), kind) for kind in kinds)]
    yield from _strange(names.USE_TYPE, strange, chosen.types, "is a", where)
    if len(strange) < max(len(chosen.types), 1) and not _admitted(chosen, fleet.nodes):
        yield f"{where}metadata.annotations[{names.NOUSE_TYPE}]: leaves no GPU that is published now: {_NOW}"


def _strange(name: str, strange: Collection[str], listed: Collection[str], verb: str, where: str) -> Iterator[str]:
    if strange:
        which = " or ".join(map(quoted, list(strange)[:_NAMED])) + (" or ..." if len(strange) > _NAMED else "")
        effect = f": {_NOW}" if len(strange) == len(listed) else ""
        yield f"{where}metadata.annotations[{name}]: no GPU that is published now {verb} {which}{effect}"


def beyond(demand: Demand, chosen: Selection, fleet: Fleet | None, rules: Conversion, where: str) -> Iterator[str]:
    """What of a container's demand no GPU or node has, or no program can live with, in words.

    Args:
        demand: What it asks for.
        chosen: Which GPUs will do.
        fleet: The GPUs; None: not known.
        rules: Names.
        where: The container's field path.
    """
    if 0 < len(chosen.uuids) < demand.gpus:
        yield (
            f"{where}: {rules.resource_count_name}: asks for {demand.gpus} different GPUs, and {names.USE_UUID} names "
            f"{len(chosen.uuids)}: the pod waits for ever"
        )
    nodes = _admitted(chosen, fleet.nodes) if fleet else ()
    if nodes:
        yield from _larger(demand, nodes, rules, where)
        most = max(sum(count for _, count in node) for node in nodes)
        fitting = max(sum(count for kind, count in node if _holds(demand, kind)) for node in nodes)
        if 0 < fitting < demand.gpus:
            such = "" if fitting == most else " that have as much"
            yield (
                f"{where}: {rules.resource_count_name}: no node has {demand.gpus} GPUs{such} now, the most is {fitting}: "
                "the pod waits until one has"
            )
    least = _least_mib(demand, nodes)
    if least is not None and least < CONTEXT_MIB:
        yield f"{where}: {too_few(least)}"


def too_few(mib: int) -> str:
    """What is said of less memory than a context takes."""
    context = f"a CUDA context takes, some {CONTEXT_MIB}"
    return f"{mib} MiB of a GPU's memory are less than {context}: programs will fail to allocate any"


def together(claims: Iterable[Demand], chosen: Selection, fleet: Fleet | None, where: str) -> Iterator[str]:
    """Whole GPUs of all containers, and one beside them for each who shares, more than a node has, in words."""
    demands = list(claims)
    nodes = _admitted(chosen, fleet.nodes) if fleet else ()
    alone = sum(demand.gpus for demand in demands if demand.exclusive or chosen.exclusive)
    beside = max((demand.gpus for demand in demands if not (demand.exclusive or chosen.exclusive)), default=0)
    most = max((sum(count for _, count in node) for node in nodes), default=alone + beside)
    # Of one container `beyond` says it.
    if alone and alone + beside > most >= max(demand.gpus for demand in demands):
        others = f" and {beside} to share" if beside else ""
        yield (
            f"{where}spec: its containers ask for {alone} whole GPUs{others} together, and no node has so many now, the most is "
            f"{most}: the pod waits until one has"
        )


def _larger(demand: Demand, nodes: Iterable[Node], rules: Conversion, where: str) -> Iterator[str]:
    kinds = [kind for node in nodes for kind, _ in node]
    memory, cores = max(kind.memory_mib for kind in kinds), max(kind.cores for kind in kinds)
    if demand.memory_mib is not None and demand.memory_mib > memory:
        yield (
            f"{where}: {rules.resource_memory_name}: no GPU that is published now has {demand.memory_mib} MiB, the most is "
            f"{memory}: {_NOW}"
        )
    if demand.cores > cores:
        yield (
            f"{where}: {rules.resource_core_name}: no GPU that is published now has {demand.cores} percent, the most is {cores}: "
            f"{_NOW}"
        )


def _least_mib(demand: Demand, nodes: Iterable[Node]) -> int | None:
    """Of a percentage, what it is of the smallest GPU."""
    percent = demand.memory_percent
    if percent is None:
        return demand.memory_mib
    return min((max(kind.memory_mib * percent // 100, 1) for node in nodes for kind, _ in node), default=None)


@lru_cache(maxsize=8)
def _admitted(chosen: Selection, nodes: frozenset[Node]) -> tuple[Node, ...]:
    """What is left of the nodes of those GPUs that will do; once for all pods that choose alike."""
    left = (tuple((kind, count) for kind, count in node if _admits(chosen, kind)) for node in nodes)
    return tuple(filter(None, left))


def _admits(chosen: Selection, kind: Kind) -> bool:
    return kind.model is None or chosen.admits_model(kind.model)


def _holds(demand: Demand, kind: Kind) -> bool:
    return demand.cores <= kind.cores and (demand.memory_mib is None or demand.memory_mib <= kind.memory_mib)
