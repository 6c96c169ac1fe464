"""How much of each GPU a prepared claim holds. Pure."""

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_kubeletplugin.api.names import SHARES_TOTAL
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare


@dataclass(frozen=True, slots=True)
class Usage:
    """What is held of one GPU.

    Attributes:
        slots: Sharing slots.
        memory_mib: MiB.
        cores: Percent of its compute.
        shares: In how many shares.
    """

    slots: int
    memory_mib: int
    cores: int = 0
    shares: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Both together."""
        return self._with(operator.add, other)

    def __sub__(self, other: "Usage") -> "Usage":
        """What is left without the other."""
        return self._with(operator.sub, other)

    def __or__(self, other: "Usage") -> "Usage":
        """The larger one of each."""
        return self._with(max, other)

    def _with(self, both: Callable[[int, int], int], other: "Usage") -> "Usage":
        return Usage(
            both(self.slots, other.slots),
            both(self.memory_mib, other.memory_mib),
            both(self.cores, other.cores),
            both(self.shares, other.shares),
        )


UNUSED: Final = Usage(0, 0)


def usage(claim: Prepared, slot: int) -> Mapping[str, Usage]:
    """By GPU UUID, since a device's name is not for ever. Admin access holds nothing.

    Args:
        claim: The claim.
        slot: Slots of a share that doesn't say how many it has.
    """
    used: dict[str, Usage] = defaultdict(lambda: UNUSED)
    for share in claim.shares:
        if not claim.uses[share.use].admin:
            slots = share.slots or _unsaid(claim, share, slot)
            used[share.uuid] += Usage(slots, share.limit.memory_mib, share.limit.cores, shares=1)
    return dict(used)


def _unsaid(claim: Prepared, share: PreparedShare, slot: int) -> int:
    """Records of version 0.1.0 don't say it; but a GPU that is wholly a container's own had all of its slots."""
    return SHARES_TOTAL if claim.uses[share.use].is_whole else slot
