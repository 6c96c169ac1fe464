"""Whether one node has GPUs for all that a pod asks for together. Pure.

The scheduler tries all ways. Here the first GPU that will do is taken, as it does first: so what is found may be had, and of what
isn't found is only said that there seems to be no room.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.kubectl.capacity import Amount, Amounts
from hami_kubeletplugin.kubectl.fits import consumption, lacks, suits
from hami_kubeletplugin.kubectl.inventory import Gpu
from hami_kubeletplugin.kubectl.wanted import Claim, Constraint, Want

_MOST_WAYS: Final = 256
"""Combinations of attributes' values that are tried on a node."""


class Placed(NamedTuple):
    """GPUs that a request would get."""

    claim: str
    want: Want
    gpus: tuple[Gpu, ...]


class _Taken:
    """What is taken so far, beside what claims have."""

    def __init__(self, amounts: Mapping[int, Amounts] | None = None) -> None:
        self._amounts: dict[int, dict[str, Amount]] = defaultdict(lambda: defaultdict(int))
        for key, value in (amounts or {}).items():
            self._amounts[key].update(value)

    def of(self, gpu: Gpu) -> Amounts:
        return self._amounts.get(id(gpu), {})

    def add(self, gpu: Gpu, want: Want) -> None:
        for name, value in consumption(want, gpu.capacity).items():
            self._amounts[id(gpu)][name] += value

    def copy(self) -> "_Taken":
        return _Taken(self._amounts)


def place(claims: Sequence[Claim], gpus: Sequence[Gpu]) -> list[Placed] | None:
    """GPUs of one node for all of these claims; None: none were found.

    Args:
        claims: In the pod's order.
        gpus: In the scheduler's order.
    """
    taken, placed = _Taken(), list[Placed]()
    for claim in claims:
        for same in _ways(claim, gpus):
            tried = taken.copy()
            found = _place(claim, gpus, same, tried)
            if found is not None:
                taken, placed = tried, placed + found
                break
        else:
            return None
    return placed


def _ways(claim: Claim, gpus: Sequence[Gpu]) -> Iterator[list[tuple[Constraint, Any]]]:
    """For each constraint that wants something to be the same, one of the values that there are."""
    same = [constraint for constraint in claim.constraints if constraint.same]
    values = [
        list(dict.fromkeys(value for gpu in gpus if (value := attribute(gpu, constraint.attribute)) is not None))
        for constraint in same
    ]
    for chosen in islice(product(*values), _MOST_WAYS):
        yield list(zip(same, chosen, strict=True))


def _place(claim: Claim, gpus: Sequence[Gpu], same: list[tuple[Constraint, Any]], taken: _Taken) -> list[Placed] | None:
    placed: list[Placed] = []
    for request in claim.requests:
        for want in request.alternatives:
            wanted = [(constraint, value) for constraint, value in same if constraint.holds_for(want)]
            distinct = [each for each in claim.constraints if not each.same and each.holds_for(want)]
            others = [(each.want, gpu) for each in placed for gpu in each.gpus]
            fitting = [
                gpu
                for gpu in gpus
                if all(attribute(gpu, constraint.attribute) == value for constraint, value in wanted)
                and all(attribute(gpu, each.attribute) is not None for each in distinct)
                and not any(_alike(gpu, other, each) for each in distinct for by, other in others if each.holds_for(by))
                and not lacks(gpu, want, taken.of(gpu))
            ]
            chosen = _different(fitting, distinct)[: want.count]
            if len(chosen) >= needed(gpus, want):
                for gpu in chosen:
                    taken.add(gpu, want)
                placed.append(Placed(claim.name, want, tuple(chosen)))
                break
        else:
            return None
    return placed


def needed(gpus: Sequence[Gpu], want: Want) -> int:
    """How many of these GPUs it has to get."""
    return want.count or max(1, sum(1 for gpu in gpus if suits(gpu, want)))


def _different(gpus: Sequence[Gpu], distinct: Sequence[Constraint]) -> list[Gpu]:
    chosen: list[Gpu] = []
    for gpu in gpus:
        if not any(_alike(gpu, other, each) for each in distinct for other in chosen):
            chosen.append(gpu)
    return chosen


def _alike(one: Gpu, other: Gpu, constraint: Constraint) -> bool:
    return attribute(one, constraint.attribute) == attribute(other, constraint.attribute)


def attribute(gpu: Gpu, name: str) -> object:
    """A value, by its whole name or, of the driver's own, without the domain; None: there is none."""
    given: Mapping[str, Any] = fields.mapping(gpu.device.get("attributes"))
    domain, _, short = name.rpartition("/")
    found = fields.mapping(given.get(name, given.get(short) if domain == gpu.pool.driver else None))
    return next((value for value in found.values() if isinstance(value, str | int)), None)
