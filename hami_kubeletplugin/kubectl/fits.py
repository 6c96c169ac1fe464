"""Whether a GPU has room for what is asked, and what is missing if it hasn't. Pure.

Contract: k8s.io/dynamic-resource-allocation structured/internal/incubating (1.37.2): CmpRequestOverCapacity, device taints.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.kubectl import selectors
from hami_kubeletplugin.kubectl.capacity import Amount, Amounts, Capacity, amount, shown
from hami_kubeletplugin.kubectl.inventory import Gpu
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.taints import in_the_way
from hami_kubeletplugin.kubectl.wanted import Want

NOTHING: Final[Amounts] = {}
_KNOWN: Final = (names.MEMORY, names.CORES, names.SHARES)
_COUNT: Final = re.compile(r"[1-9][0-9]{0,2}")
_NAMED: Final = 2
"""So many claims are named that have something of a GPU."""


class Lack(NamedTuple):
    """One thing that is missing on a GPU.

    Attributes:
        what: `pool`, `selector`, `taint`, or the name of a capacity.
        text: In words.
    """

    what: str
    text: str


def parse(text: str) -> Want:
    """`memory=20Gi,cores=50,count=2`, as people write it.

    Raises:
        SettingsError: Something in it is wrong.
    """
    amounts: dict[str, Amount] = {}
    count = 1
    for part in text.split(","):
        name, _, given = (word.strip() for word in part.partition("="))
        if name == "count":
            if not _COUNT.fullmatch(given):
                raise SettingsError(f"--fits: count must be a number of GPUs from 1 to 999, got {quoted(given)}")
            count = int(given)
            continue
        value = amount(given)
        if name not in _KNOWN or value is None or name in amounts:
            raise SettingsError(
                f"--fits: must be amounts such as memory=20Gi,cores=50 of {', '.join(_KNOWN)}, each once, and count=N; "
                f"got {quoted(part)}"
            )
        amounts[name] = value
    if 0 < amounts.get(names.MEMORY, names.MIB) < names.MIB:
        raise SettingsError(
            f"--fits: memory={amounts[names.MEMORY]} are bytes: for MiB write {amounts[names.MEMORY]}Mi"
        )
    return Want("", amounts, count)


def consumption(want: Want, capacity: Mapping[str, Capacity]) -> Amounts:
    """What it would take of a GPU: with all that it doesn't name. With admin access as much has to be free."""
    return {name: has.consumed_by(want.amounts.get(name)) for name, has in capacity.items()}


def suits(gpu: Gpu, want: Want) -> bool:
    """Whether it would be enough if nobody had anything of it; so it is one of those that "all" means."""
    return (
        want.amounts.keys() <= gpu.capacity.keys()
        and all(
            gpu.capacity[name].allows(value) and value <= gpu.capacity[name].total
            for name, value in consumption(want, gpu.capacity).items()
        )
        and not any(selectors.judge(each, gpu.pool.driver, gpu.device) is False for each in want.selectors)
    )


def lacks(gpu: Gpu, want: Want, taken: Amounts = NOTHING) -> list[Lack]:
    """What is missing; nothing, if it fits.

    Args:
        gpu: The GPU.
        want: What is asked.
        taken: What others of the same pod take of it.
    """
    if gpu.pool.trouble:
        return [Lack("pool", gpu.pool.trouble)]
    for expression in want.selectors:
        if selectors.judge(expression, gpu.pool.driver, gpu.device) is False:
            return [Lack("selector", f"is not what is selected: {printable(expression, 160)}")]
    found = [Lack("taint", f"taint {taint} is not tolerated") for taint in in_the_way(gpu.taints, want.tolerations)]
    absent = [printable(name, 64) for name in want.amounts if name not in gpu.capacity]
    found += [Lack(name, f"has no {name}") for name in absent]
    if not gpu.shareable:
        in_use = (gpu.claims or taken) and not want.admin
        return found + ([Lack(names.SHARES, f"{_whose(gpu)} it whole")] if in_use else [])
    for name, wanted in consumption(want, gpu.capacity).items():
        text = _lack(gpu, name, wanted, taken.get(name, 0))
        found += [Lack(printable(name, 64), text)] if text else []
    return found


def unjudged(gpus: Iterable[Gpu], want: Want) -> list[str]:
    """Selectors of which it can't be told here whether these GPUs satisfy them."""
    all_of = list(gpus)
    return [
        expression
        for expression in want.selectors
        if any(selectors.judge(expression, gpu.pool.driver, gpu.device) is None for gpu in all_of)
    ]


def times(gpu: Gpu, want: Want) -> int:
    """How often what fits would fit, one after the other."""
    needed = consumption(want, gpu.capacity)
    return min((gpu.available(name) // value for name, value in needed.items() if value), default=1)


def _lack(gpu: Gpu, name: str, wanted: Amount, taken: Amount) -> str:
    """Empty: there is enough."""
    has = gpu.capacity[name]
    amounts = {"wanted": shown(name, wanted), "total": shown(name, has.total)}
    if not has.allows(wanted) or wanted > has.total:
        return f"{printable(name, 64)}: {amounts['wanted']} wanted, one claim may have {shown(name, has.most_at_once)} of it"
    available = gpu.available(name) - taken
    if wanted <= available:
        return ""
    if name == names.SHARES:
        if wanted == has.total:
            return (
                f"the whole GPU is wanted, {_whose(gpu)} a share of it"
                if gpu.claims
                else "others of this pod have a share"
            )
        if len(gpu.claims) == 1:
            return f"{_whose(gpu)} the whole GPU"
        return f"no slot to share it is free, {_whose(gpu)} one" if gpu.claims else "others of this pod have all slots"
    others = f", {shown(name, taken)} of it for others of this pod" if taken else ""
    left = shown(name, gpu.available(name))
    return f"{printable(name, 64)}: {amounts['wanted']} wanted, {left} of {amounts['total']} available{others}"


def _whose(gpu: Gpu) -> str:
    """The claims on a GPU, and the verb."""
    called = [printable("/".join(claim), 130) for claim in dict.fromkeys(gpu.claims)]
    more = f" and {len(called) - _NAMED} more" if len(called) > _NAMED else ""
    return f"{', '.join(called[:_NAMED])}{more} {'has' if len(called) == 1 else 'have'}"


def summed(found: Iterable[tuple[Any, list[Lack]]]) -> dict[str, int]:
    """How many GPUs lack what."""
    counted: dict[str, int] = {}
    for _, lacking in found:
        for what in {lack.what for lack in lacking}:
            counted[what] = counted.get(what, 0) + 1
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))
