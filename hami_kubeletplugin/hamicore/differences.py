"""What a region says of limits, and where that is not what the claim was given. Pure.

A region is its container's to write (0666, as the library makes it): so a container can raise its own limit. How `region` writes
limits is how they are read here: bytes for MiB, and 100 where there is no core limit.
"""

from collections.abc import Mapping
from typing import Final

from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.hamicore.reading import Content

_MOST: Final = 1 << 30
"""MiB: a PiB, that no GPU has."""


def limits(content: Content, given: Mapping[str, Limit]) -> tuple[Limit, ...]:
    """The limits that a region has, in units of those that were given; equal where they hold what was given.

    Args:
        content: The region's.
        given: By GPU UUID, in the container's order.
    """
    return tuple(
        Limit(_memory(content.memory[index]), _cores(content.cores[index], limit.cores))
        for index, limit in enumerate(given.values())
    )


def differences(content: Content, given: Mapping[str, Limit], policy: Policy) -> tuple[str, ...]:
    """What of it isn't as it was given, in words; nothing where all limits hold.

    The number of GPUs and their UUIDs are the library's own to write, from its first process on: others mean that the container
    sees other GPUs than those that it was given, and so has these limits on the wrong ones. Mostly nobody wrote that: it has GPUs
    from elsewhere, as from the NVIDIA runtime or another driver.
    """
    found = []
    if content.gpus not in {0, len(given)}:
        seen = content.gpus if content.gpus >= 0 else "an impossible number of"
        more = ", as with some that no claim of ours gave it" if content.gpus > len(given) else ""
        found.append(f"it sees {seen} GPUs instead of {len(given)}{more}")
    for index, ((uuid, limit), now) in enumerate(zip(given.items(), limits(content, given), strict=True)):
        if content.uuids[index] not in {"", uuid}:
            found.append(f"GPU {index} is {content.uuids[index]} instead of {uuid}")
        if now.memory_mib != limit.memory_mib:
            has = f"{now.memory_mib} MiB" if now.memory_mib else "none"
            found.append(f"the memory limit of {uuid} is {has} instead of {limit.memory_mib} MiB")
        if now.cores != limit.cores:
            found.append(f"the core limit of {uuid} is {_percent(now.cores)} instead of {_percent(limit.cores)}")
    limited = any(0 < limit.cores < 100 for limit in given.values())
    if limited and content.switch == 0 and policy.core_policy != "disable":
        found.append("core limits are switched off")
    return tuple(found)


def _memory(size: int) -> int:
    """MiB. A part of one counts as a whole: one byte more is another limit."""
    return min(-(-size // MIB), _MOST)


def _cores(percent: int, given: int) -> int:
    """Percent. `given` is what it says if it stands for that: 100 and no limit are written alike."""
    if percent == (min(given, 100) or 100):
        return given
    return percent if 0 < percent < 100 else 0


def _percent(cores: int) -> str:
    return f"{cores} %" if cores else "none"
