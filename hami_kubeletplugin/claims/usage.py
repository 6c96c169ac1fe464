"""How much of each GPU prepared claims hold. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.claims.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Usage:
    """What is held of one GPU.

    Attributes:
        shares: How many shares, each of which takes a slot at least.
        limit: Memory and cores of all of them together.
    """

    shares: int
    limit: Limit


UNUSED: Final = Usage(0, Limit(0))


def usage(claims: Iterable[Prepared]) -> Mapping[str, Usage]:
    """By GPU UUID. Admin access holds nothing."""
    used: dict[str, Usage] = defaultdict(lambda: UNUSED)
    for claim in claims:
        for share in claim.shares:
            if share.share_id is not None:
                before = used[share.uuid]
                used[share.uuid] = Usage(before.shares + 1, before.limit + share.limit)
    return dict(used)
