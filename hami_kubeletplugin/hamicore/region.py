"""The shared region of HAMi-core, as a driver makes it beforehand: limits that hold without any variable. Pure.

The library takes a file that begins with its magic for initialised and keeps what it says, whatever the environment says.
Source: Project-HAMi/HAMi-core, src/multiprocess/multiprocess_memory_limit.{c,h} (shared_region_t and try_create_shrreg), the
header of each layout compiled; x86-64 and aarch64 with glibc are alike. Tried with the real library at 8f3a89c.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MAX_GPUS_PER_CONTAINER, MIB
from hami_kubeletplugin.hamicore.contract import DEFAULT_POLICY, TASK_PRIORITY, checked

MAGIC: Final = 19920718
"""`initialized_flag`, the first four bytes: what is mapped with it is used as it is, so it is written last."""
BROKEN_SIZE: Final = 2_008_984
"""sizeof of the region of release 2.8.1, which says 1.1 too: every process after the first runs unlimited there."""

UUID_BYTES: Final = 96
_NOT_ZERO: Final = re.compile(rb"[^\0](?:\0{0,15}[^\0])*")
_NO_CORE_LIMIT: Final = 100
_SEMAPHORE: Final = struct.pack("<QiI16x", 1, 128, 0)
"""A free `sem_t` of glibc, shared between processes (sem_init with pshared=1 and value 1). Written out: the image's libc may be
another one, and a semaphore at 0 hangs every program."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things stand in one version of `shared_region_t`; offsets and sizes in bytes.

    Attributes:
        name: How `versions.json` names it.
        version: The region's major and minor version; None where it has no such fields.
        size: sizeof(shared_region_t). The file is one byte longer (try_create_shrreg writes behind its end).
        semaphores: All `sem_t` in it.
        device_num: u64, the number of GPUs.
        uuids: 16 x char[96], by NVML index.
        limit: 16 x u64, bytes.
        sm_limit: 16 x u64, percent.
        tail: i32 proc_num, utilization_switch, recent_kernel and priority, one after the other.
    """

    name: str
    version: tuple[int, int] | None
    size: int
    semaphores: tuple[int, ...]
    device_num: int
    uuids: int
    limit: int
    sm_limit: int
    tail: int


def _version_1(name: str, minor: int, *semaphores: int) -> Layout:
    return Layout(
        name=name,
        version=(1, minor),
        size=2_008_952,
        semaphores=(24, *semaphores),
        device_num=56,
        uuids=64,
        limit=1600,
        sm_limit=1728,
        tail=2_008_896,
    )


LAYOUTS: Final = {
    layout.name: layout
    for layout in (
        _version_1("1.2", 2, 2_008_920),
        _version_1("1.1", 1),
        # Development versions between the two: process slots as in neither, which a region without processes doesn't show.
        _version_1("1.1-seqlock", 1),
        Layout("0", None, 1_197_896, (16,), device_num=48, uuids=56, limit=1592, sm_limit=1720, tail=1_197_880),
    )
}
"""Every layout that can be written, by name. That of 2.8.1 is none of them: no region would make it keep a limit."""


@dataclass(frozen=True, slots=True)
class Region:
    """The content of a region file: zeros, except for some parts.

    Attributes:
        size: Of the file, bytes.
        parts: (offset, bytes), ascending and apart from each other. The first stands at 0 and begins with the magic.
    """

    size: int
    parts: tuple[tuple[int, bytes], ...]

    @property
    def pieces(self) -> tuple[tuple[int, bytes], ...]:
        """The same, less the longer runs of zeros: a few hundred bytes, fit for a command line."""
        return tuple(
            (offset + found.start(), found[0]) for offset, part in self.parts for found in _NOT_ZERO.finditer(part)
        )


def region(layout: Layout, limits: Mapping[str, Limit], policy: Policy = DEFAULT_POLICY) -> Region:
    """A region that nobody uses yet and in which limits are set; agrees with `contract.variables` of the same limits.

    Args:
        layout: Of the library that will map it.
        limits: By GPU UUID, in the order in which the container numbers its GPUs.
        policy: `corePolicy: disable` switches the core limit off in here too; the priority is by default low, as in the library.

    Raises:
        ValueError: As `contract.checked`, or a UUID that is too long.
    """
    checked(limits.values())
    names = [uuid.encode() for uuid in limits]
    if any(len(name) >= UUID_BYTES or b"\0" in name for name in names):
        raise ValueError(f"a GPU UUID has at most {UUID_BYTES - 1} bytes, none of them zero: {list(limits)}")
    unused = MAX_GPUS_PER_CONTAINER - len(limits)
    memory = [limit.memory_mib * MIB for limit in limits.values()] + [0] * unused
    cores = [min(limit.cores, 100) or _NO_CORE_LIMIT for limit in limits.values()] + [_NO_CORE_LIMIT] * unused
    start = bytearray(layout.sm_limit + 8 * MAX_GPUS_PER_CONTAINER)
    struct.pack_into("<i", start, 0, MAGIC)
    if layout.version:
        struct.pack_into("<II", start, 4, *layout.version)
    struct.pack_into("<Q", start, layout.device_num, len(limits))
    for index, name in enumerate(names):
        struct.pack_into(f"{UUID_BYTES}s", start, layout.uuids + index * UUID_BYTES, name)
    struct.pack_into(f"<{MAX_GPUS_PER_CONTAINER}Q", start, layout.limit, *memory)
    struct.pack_into(f"<{MAX_GPUS_PER_CONTAINER}Q", start, layout.sm_limit, *cores)
    switch = 0 if policy.core_policy == "disable" else 1
    # recent_kernel: 0 is idle. With -1, by which HAMi's monitor stops a container, kernels would wait for ever.
    tail = struct.pack("<4i", 0, switch, 0, int(TASK_PRIORITY[policy.priority or "low"]))
    late = []
    for offset in layout.semaphores:
        if offset < len(start):
            start[offset : offset + len(_SEMAPHORE)] = _SEMAPHORE
        else:
            late.append((offset, _SEMAPHORE))
    return Region(layout.size + 1, ((0, bytes(start)), (layout.tail, tail), *late))
