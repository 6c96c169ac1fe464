"""What a region says now: limits, and what each process uses. By `pread` alone, since a container may shrink the file meanwhile.

Its content is hostile: every number is bounded, nothing that it says leads anywhere, and it costs at most the file's own bytes.
Source: Project-HAMi/HAMi-core, src/multiprocess/multiprocess_memory_limit.h: `shrreg_proc_slot_t`, `device_memory_t` and
`device_util_t` as compiled from the headers of 8f3a89c and b69b1ea (1.2), ec8979d1 and 9b46404 (1.1), 1988c5d and 7970f7f
(1.1-seqlock), 7a9c88b and fb11ec3 (0). Everything here blocks.
"""

import os
import stat
import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.names import MAX_GPUS_PER_CONTAINER
from hami_kubeletplugin.api.quoting import printable
from hami_kubeletplugin.hamicore.region import LAYOUTS, MAGIC, UUID_BYTES, Layout

_FIND: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SLOTS: Final = 1024
"""SHARED_REGION_MAX_PROCESS_NUM."""
_TRIES: Final = 4
"""At a slot that is written all the while; then it is taken as it is."""
_PID: Final = struct.Struct("<i")
_NUMBER: Final = struct.Struct("<Q")
_MEMORY: Final = struct.Struct("<QQQQQ")
"""Of `device_memory_t`: context, module, data, offset, total."""
_GPUS: Final = struct.Struct(f"<{MAX_GPUS_PER_CONTAINER}Q")
_TAIL: Final = struct.Struct("<4i")
_MOST: Final = 1 << 50
"""Bytes: no GPU has a PiB, nor have all of a process's."""


@dataclass(frozen=True, slots=True)
class _Slots:
    """Where things stand in the slot of a process; bytes.

    Attributes:
        size: Of a slot.
        used: Of the first `device_memory_t`, and how long each is.
        busy: Of the first `device_util_t`, and how long each is.
        sequence: u64, odd while the slot is written; None if there is none.
    """

    size: int
    used: tuple[int, int]
    busy: tuple[int, int]
    sequence: int | None


_SLOTS_OF: Final = {
    "1.2": _Slots(1960, (8, 64), (1160, 48), 1936),
    "1.1": _Slots(1960, (8, 64), (1160, 48), None),
    "1.1-seqlock": _Slots(1960, (16, 64), (1168, 48), 8),
    "0": _Slots(1168, (8, 40), (776, 24), None),
}
_SM: Final = 16
"""Of `sm_util` in `device_util_t`."""


class Counted(NamedTuple):
    """What HAMi-core counts on one GPU: bytes, and percent of its compute."""

    total: int
    context: int
    module: int
    buffer: int
    busy: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a region says. GPUs are in the container's order: 16 limits, and as much else as was asked for.

    Attributes:
        layout: How it is laid out.
        gpus: How many GPUs it is for, 0 to 16; -1 if it says another number.
        uuids: Their UUIDs, as far as they can be shown; empty where none stands.
        memory: Limits, bytes; 0 is none.
        cores: Limits, percent; 0, or 100 and more, is none.
        switch: `utilization_switch`: 0 takes all core limits off.
        recent_kernel, priority: As they stand there.
        last_kernel: UNIX time, seconds; 0 before the first one; None if the layout has none.
        processes: What each counted process uses: its PID in its own name space, and each GPU.
    """

    layout: Layout
    gpus: int
    uuids: tuple[str, ...]
    memory: tuple[int, ...]
    cores: tuple[int, ...]
    switch: int
    recent_kernel: int
    priority: int
    last_kernel: int | None
    processes: tuple[tuple[int, tuple[Counted, ...]], ...]


def read_region(
    path: Path, *, layout: Layout | None, gpus: int, pids: Container[int] | None, folder: int | None = None
) -> Content | None:
    """Read one.

    Args:
        path: Of the file.
        layout: Of the library that the container has, if that is known; else what size and version say.
        gpus: So many GPUs are counted.
        pids: Processes of the container, each as it calls itself; others' slots do not count. None: not known, so all do.
        folder: An open directory that `path` is relative to.

    Returns:
        None if there is no file.

    Raises:
        StorageError: It is no region: another kind of file, cut short, or of no layout that is known.
    """
    try:
        handle = _opened(path, folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    try:
        return _content(handle, os.fstat(handle).st_size, layout, gpus, pids)
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise StorageError(f"{path}: {error}") from error
    finally:
        os.close(handle)


def _opened(path: Path, folder: int | None) -> int:
    """Only if it is a regular file: root in a container may put any device there, and to open one can do something."""
    found = os.open(path, _FIND, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise StorageError(f"{path}: is no regular file")
        return os.open(f"/proc/self/fd/{found}", _OPEN)
    finally:
        os.close(found)


def _content(handle: int, size: int, told: Layout | None, gpus: int, pids: Container[int] | None) -> Content:
    """Raises a ValueError if it is no region."""
    start = _whole(handle, max(layout.sm_limit for layout in LAYOUTS.values()) + _GPUS.size, 0)
    if _PID.unpack_from(start)[0] != MAGIC:
        raise ValueError("nobody has written a region there yet, or its magic is gone")
    layout = _layout(size, start, told)
    tail = _whole(handle, _TAIL.size + (_NUMBER.size if layout.version else 0), layout.tail)
    count, switch, recent_kernel, priority = _TAIL.unpack_from(tail)
    number = _NUMBER.unpack_from(start, layout.device_num)[0]
    texts = (start[layout.uuids + i * UUID_BYTES : layout.uuids + (i + 1) * UUID_BYTES] for i in range(gpus))
    return Content(
        layout=layout,
        gpus=number if number <= MAX_GPUS_PER_CONTAINER else -1,
        uuids=tuple(_text(text) for text in texts),
        memory=_GPUS.unpack_from(start, layout.limit),
        cores=_GPUS.unpack_from(start, layout.sm_limit),
        switch=switch,
        recent_kernel=recent_kernel,
        priority=priority,
        last_kernel=_NUMBER.unpack_from(tail, _TAIL.size)[0] if layout.version else None,
        processes=_processes(handle, layout, min(max(count, 0), _SLOTS), gpus, pids),
    )


def _layout(size: int, start: bytes, told: Layout | None) -> Layout:
    """The told one, if the size allows it: version fields are the container's to write. Else by these."""
    fitting = [layout for layout in LAYOUTS.values() if layout.size + 1 == size]
    if told in fitting:
        return told
    version = struct.unpack_from("<II", start, 4)
    for layout in fitting:
        if layout.version in {None, version}:
            return layout
    raise ValueError(f"it has {size} bytes, and is of no layout that is known")


def _processes(
    handle: int, layout: Layout, count: int, gpus: int, pids: Container[int] | None
) -> tuple[tuple[int, tuple[Counted, ...]], ...]:
    """Those that are there. The library gives a PID one slot; of several the first counts."""
    slots, first = _SLOTS_OF[layout.name], layout.sm_limit + _GPUS.size
    content = os.pread(handle, count * slots.size, first)
    found: dict[int, tuple[Counted, ...]] = {}
    for at in range(0, len(content) - slots.size + 1, slots.size):
        pid = _PID.unpack_from(content, at)[0]
        if pid > 0 and pid not in found and (pids is None or pid in pids):
            slot = _settled(handle, first + at, slots, content[at : at + slots.size])
            found[pid] = tuple(_counted(slot, slots, gpu) for gpu in range(gpus))
    return tuple(found.items())


def _settled(handle: int, at: int, slots: _Slots, slot: bytes) -> bytes:
    """A slot as it was while nobody wrote it: its sequence was even before, and is the same afterwards."""
    if slots.sequence is None:
        return slot
    for _ in range(_TRIES):
        before = slot[slots.sequence : slots.sequence + _NUMBER.size]
        if before[0] % 2 == 0 and os.pread(handle, _NUMBER.size, at + slots.sequence) == before:
            break
        again = os.pread(handle, slots.size, at)
        if len(again) < slots.size:
            break
        slot = again
    return slot


def _counted(slot: bytes, slots: _Slots, gpu: int) -> Counted:
    context, module, data, _, total = _MEMORY.unpack_from(slot, slots.used[0] + gpu * slots.used[1])
    busy = _NUMBER.unpack_from(slot, slots.busy[0] + gpu * slots.busy[1] + _SM)[0]
    return Counted(min(total, _MOST), min(context, _MOST), min(module, _MOST), min(data, _MOST), min(busy, 100))


def total(processes: Sequence[tuple[int, tuple[Counted, ...]]], gpu: int, most: int) -> Counted:
    """All processes together on one GPU, at most `most` bytes of anything, and 100 percent. Pure."""
    rows = [counted[gpu] for _, counted in processes]
    return Counted(
        min(sum(row.total for row in rows), most),
        min(sum(row.context for row in rows), most),
        min(sum(row.module for row in rows), most),
        min(sum(row.buffer for row in rows), most),
        min(sum(row.busy for row in rows), 100),
    )


def _whole(handle: int, length: int, offset: int) -> bytes:
    content = os.pread(handle, length, offset)
    if len(content) < length:
        raise ValueError("it has been cut short")
    return content


def _text(content: bytes) -> str:
    return printable(content.partition(b"\0")[0].decode("ascii", errors="replace").replace("\ufffd", "?"))
