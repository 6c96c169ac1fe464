"""Which containers of a pod use one claim, one after the other, and what it has to hold for that. Pure.

An init container has ended when a later container starts, but its claim would be held until the whole pod has ended. So each
uses the claim of a later container, raised to the larger of both in every amount, as HAMi counts a pod's peak
(Project-HAMi/HAMi pkg/scheduler/score.go, applyPeakUsage). A sidecar runs beside all that come after it, so its claim is for
those before it only.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.webhook.conversion.claims import Holder, Sharing, field_path
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.placements import MIB_OF_A_PERCENT, difficulty

_Size = tuple[int, int, int, int]
"""Of a demand: GPUs that nobody else is on, GPUs, MiB and percent of compute of all of them."""


@dataclass(slots=True)
class _Growing:
    """A claim while it is found out who uses it."""

    owner: Holder
    demand: Demand
    guests: list[Holder] = field(default_factory=list)

    def with_one_more(self, guest: Holder) -> Demand:
        return _raised(self.owner.demand, self.demand, guest.demand)


def shared(holders: Sequence[Holder], where: str) -> tuple[Sharing, ...]:
    """Find whose claim each init container uses: the later one of which least is raised, then the one that is most alike.

    What stands in `resources.claims` already has to be the same for both: a node refuses containers of which one sees more GPUs
    than the other with which it has some in common, and whose GPUs those are is not known here.

    Args:
        holders: In the order in which they start.
        where: As for `convert`.

    Raises:
        AdmissionError: A container's `resources.claims` is no list.
    """
    had = {holder.place: _claims(holder, where) for holder in holders}
    owners: list[Holder] = []
    followed: set[str] = set()
    for holder in reversed(holders):
        if not _runs_to_its_end(holder) or had[holder.place] not in followed:
            owners.append(holder)
            followed.add(had[holder.place])
    owners.reverse()
    growing = [_Growing(owner, owner.demand) for owner in sorted(owners, key=_runs_to_its_end)]
    owning = {owner.place for owner in owners}
    guests = [holder for holder in holders if holder.place not in owning]
    # The largest first: those after it find what it has had raised.
    for guest in sorted(guests, key=lambda each: difficulty(each.demand), reverse=True):
        after = [g for g in growing if had[g.owner.place] == had[guest.place] and _is_later(g.owner, guest)]
        chosen = min(after, key=lambda each: _cost(each, guest))
        chosen.demand = chosen.with_one_more(guest)
        chosen.guests.append(guest)
    return tuple(Sharing(each.owner, tuple(each.guests), each.demand) for each in growing)


def notes(sharing: Sharing, where: str) -> Iterator[str]:
    """Who gets more than he asked for as long as the pod is there, and which init container less, in words."""
    owner, demand = sharing.owner, sharing.demand
    if more := gained(owner.demand, demand):
        raising = [guest.name for guest in sharing.guests if gained(owner.demand, _raised_alone(owner, guest))]
        asking = f"containers {', '.join(raising)} ask" if len(raising) > 1 else f"container {raising[0]} asks"
        yield f"{field_path(owner.place, where)} ({owner.name}): gets {more}, as init {asking} for that"
    for guest in sharing.guests:
        for less in _lost(guest.demand, demand):
            yield (
                f"{field_path(guest.place, where)} ({guest.name}): {less}, as it uses the claim of container "
                f"{owner.name}, which says so"
            )


def gained(asked: Demand, given: Demand) -> str:
    """What a container gets more than it asked for, in words; empty: nothing."""
    parts: list[str] = []
    if given.gpus > asked.gpus:
        parts.append(f"{given.gpus} GPUs")
    memory = (given.memory_mib, given.memory_percent)
    if asked.memory_percent != 100 and memory != (asked.memory_mib, asked.memory_percent):
        parts.append(_memory(given))
    if given.exclusive and not asked.exclusive:
        parts.append("nobody else on it")
    elif given.cores > asked.cores:
        unlimited = " set aside" if _unlimited(given) else ""
        parts.append(f"{given.cores} percent of the compute{unlimited}")
    return ", ".join(parts)


def _memory(demand: Demand) -> str:
    each = " of each GPU" if demand.gpus > 1 else ""
    if demand.memory_percent == 100:
        return f"all of the memory{each}"
    percent = f"{demand.memory_percent} percent of the memory{each}"
    mib = f"{demand.memory_mib} MiB{each}"
    if demand.memory_percent is None:
        return mib
    return percent if demand.memory_mib is None else f"{percent}, at least {mib}"


def _lost(asked: Demand, given: Demand) -> Iterator[str]:
    """What a guest doesn't have as it asked for it; amounts are none of that."""
    if _unlimited(asked) and not _unlimited(given):
        yield f"is limited to {given.cores} percent of the compute"
    # Low is the default.
    if (asked.priority or "low") != (given.priority or "low"):
        yield f"has priority {given.priority or 'low'}"


def _unlimited(demand: Demand) -> bool:
    """Whether compute is: to HAMi-core all of it is no limit."""
    return demand.cores in {0, 100} or demand.core_policy == "disable"


def _raised_alone(owner: Holder, guest: Holder) -> Demand:
    return _raised(owner.demand, owner.demand, guest.demand)


def _raised(owner: Demand, so_far: Demand, guest: Demand) -> Demand:
    """What has room for one more. How limits are kept is as the owner says, which runs on.

    Compute that is set aside for a guest must not be a limit for an owner that has none.
    """
    cores = max(so_far.cores, guest.cores)
    lifted = not owner.cores and 0 < cores < 100
    return replace(
        owner,
        gpus=max(so_far.gpus, guest.gpus),
        memory_mib=_larger(so_far.memory_mib, guest.memory_mib),
        memory_percent=_larger(so_far.memory_percent, guest.memory_percent),
        cores=cores,
        exclusive=so_far.exclusive or guest.exclusive,
        core_policy="disable" if lifted else owner.core_policy,
    )


def _larger(one: int | None, other: int | None) -> int | None:
    return max(one or 0, other or 0) or None


def _cost(growing: _Growing, guest: Holder) -> tuple[object, ...]:
    after = growing.with_one_more(guest)
    size = _size(after)
    return (
        _beyond(size, _size(growing.demand)),
        any(True for _ in _lost(guest.demand, after)),
        _beyond(size, _size(guest.demand)),
    )


def _size(demand: Demand) -> _Size:
    gpus = demand.gpus
    mib = max(demand.memory_mib or 0, (demand.memory_percent or 0) * MIB_OF_A_PERCENT)
    return gpus if demand.exclusive else 0, gpus, gpus * mib, gpus * demand.cores


def _beyond(one: _Size, other: _Size) -> _Size:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2], one[3] - other[3]


def _is_later(owner: Holder, guest: Holder) -> bool:
    return owner.place.list == "containers" or owner.place.number > guest.place.number


def _runs_to_its_end(holder: Holder) -> bool:
    """Whether it has ended when the next one starts: an init container that is no sidecar."""
    return holder.place.list == "initContainers" and holder.container.get("restartPolicy") != "Always"


def _claims(holder: Holder, where: str) -> str:
    """What it names already, to be compared."""
    path = f"{field_path(holder.place, where)}.resources.claims"
    return json.dumps(fields.checked_sequence(holder.container["resources"].get("claims"), path), sort_keys=True)
