"""How much the scheduler has to try before it finds that a node has no room for the GPUs of a pod. Pure.

kube-scheduler's allocator goes through the claims of a pod one after the other, and of a request through all sets of as many
devices as it counts (k8s.io/dynamic-resource-allocation structured/internal/incubating); what turns out not to fit makes it take
back the last choice and try another. It does so for each node within one scheduling cycle, in which no other pod is scheduled.
"""

import math
from collections.abc import Mapping, Sequence
from math import comb
from typing import Final

from hami_kubeletplugin.webhook.conversion.demand import Demand

_GPUS: Final = 8
"""Of a usual node."""
_SMALLEST: Final = 15 * 1024
"""MiB that every GPU has, as good as."""
MIB_OF_A_PERCENT: Final = 1024
"""Of a GPU with 100 GiB; only to put claims in order."""


def placements(counts: Sequence[int], most: int) -> int:
    """The choices that it makes on a node where one GPU less is free than the pod wants; not counted on beyond `most`.

    That is the most that equal claims can cost, and others of which the more demanding come first. For the rest see `unlike`.

    Args:
        counts: GPUs of each request, in the order of the claims.
        most: Enough to know that it is more.
    """
    free, ways, tried = sum(counts) - 1, 1, 0
    for count in counts:
        tried += ways * sum(comb(free, picked) for picked in range(1, min(count, free) + 1))
        ways *= comb(free, count)
        free -= count
        if ways == 0 or tried > most:
            break
    return tried


def unlike(claims: Sequence[Demand], most: int) -> int:
    """The choices before a claim that has room nowhere, behind some that have it on all GPUs of a node; as for `placements`.

    It can be behind one only that does not demand as much in every respect: otherwise it has room where that one has.

    Args:
        claims: As they stand in the pod.
        most: Enough to know that it is more.
    """
    before, tried = 1, 0
    for number, claim in enumerate(claims):
        if not all(_covers(earlier, claim) for earlier in claims[:number]):
            tried = before
        before = min(before * comb(_GPUS, min(claim.gpus, _GPUS // 2)), most + 1)
    return tried


def by_difficulty(claims: Mapping[str, Demand]) -> dict[str, Demand]:
    """The claims of a pod, the most demanding first.

    The scheduler takes them in order, and one that has room nowhere is found out at once if no other comes before it.
    """
    return dict(sorted(claims.items(), key=lambda claim: difficulty(claim[1]), reverse=True))


def _covers(one: Demand, other: Demand) -> bool:
    """Whether where one has room the other has it, too. How much a percentage is depends on the GPU."""
    least, needed = one.memory_mib or 0, other.memory_mib or 0
    if one.exclusive:
        return needed <= max(least, _SMALLEST)
    if other.exclusive:
        return False
    return least >= needed and (one.memory_percent or 0) >= (other.memory_percent or 0) and one.cores >= other.cores


def difficulty(demand: Demand) -> tuple[bool, int, float, int, int]:
    """What to sort by: the larger, the more demanding."""
    percent = demand.memory_percent or 0
    memory = math.inf if percent == 100 else max(demand.memory_mib or 0, percent * MIB_OF_A_PERCENT)
    return demand.exclusive, demand.gpus, memory, demand.cores, demand.memory_mib or 0
