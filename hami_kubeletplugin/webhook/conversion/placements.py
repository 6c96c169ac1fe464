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

_MIB_OF_A_PERCENT: Final = 1024
"""Of a GPU with 100 GiB; only to put claims in order."""


def placements(counts: Sequence[int], most: int) -> int:
    """The choices that it makes on a node where one GPU less is free than the pod wants; not counted on beyond `most`.

    That is the most that equal claims can cost. Of others so much only if the more demanding come first: a claim that has room
    nowhere, behind four that have it on eight GPUs, is found out after 8 x 8 x 8 x 8 tries.

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


def by_difficulty(claims: Mapping[str, Demand]) -> dict[str, Demand]:
    """The claims of a pod, the most demanding first.

    The scheduler takes them in order, and one that has room nowhere is found out at once if no other comes before it.
    """
    return dict(sorted(claims.items(), key=lambda claim: _difficulty(claim[1]), reverse=True))


def _difficulty(demand: Demand) -> tuple[bool, int, float, int]:
    if demand.memory_mib is not None:
        memory: float = demand.memory_mib
    elif demand.memory_percent == 100:
        memory = math.inf
    else:
        memory = (demand.memory_percent or 0) * _MIB_OF_A_PERCENT
    return demand.exclusive, demand.gpus, memory, demand.cores
