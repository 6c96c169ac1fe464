"""How many processes of a container have HAMi-core's library mapped.

By device and inode, since a container can call any file libvgpu.so. Contract: Linux Documentation/filesystems/proc.rst, 1.14
/proc/<pid>/maps. Everything here blocks.
"""

import contextlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hami_kubeletplugin.hamicore.host import is_library
from hami_kubeletplugin.hamicore.processes import PROC, Process

_PIECE: Final = 256 * 1024
_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of the maps of all processes of a container; the 65530 mappings that one may have (vm.max_map_count) make some 8 MB."""
_SPACES: Final = 2
"""Of a line, between the columns before device and inode."""
_OWN: Final = 16 * 1024 * 1024


class Answers(NamedTuple):
    """What the processes of a container have mapped. Those that ended meanwhile, or have no mapping yet, are not counted.

    Attributes:
        loaded: So many have the library.
        without: So many have it not.
        complete: Whether all were looked at; if not, they have more mappings than are read, or enough of them had the library.
    """

    loaded: int
    without: int
    complete: bool


def our_mappings(hami_dir: Path, proc: Path = PROC) -> frozenset[bytes]:
    """Device and inode, as they stand in maps, of the libraries that were installed on this node, of whatever version.

    The kernel says itself how it calls them, by mapping them here: on overlayfs and btrfs, stat tells other devices than maps.
    """
    folder = os.path.realpath(hami_dir / "lib")
    with contextlib.ExitStack() as mapped:
        for name in _names(folder):
            with contextlib.suppress(OSError, ValueError):  # gone, or empty
                mapped.enter_context(_mapped(f"{folder}/{name}"))
        try:
            with (proc / "self/maps").open("rb") as file:
                lines = file.read(_OWN).splitlines()
        except OSError:
            return frozenset()
    fields = [line.split(None, 5) for line in lines]
    of_folder = [each for each in fields if len(each) == 6 and os.path.dirname(each[5]) == os.fsencode(folder)]
    ours = [each for each in of_folder if is_library(os.fsdecode(os.path.basename(each[5])))]
    return frozenset(b" %b %b " % (device, inode) for _, _, _, device, inode, _ in ours)


def count(
    processes: Sequence[Process], ours: frozenset[bytes], proc: Path = PROC, *, enough: int | None = None
) -> Answers:
    """Look at the processes of a container.

    Args:
        processes: All of them.
        ours: As `our_mappings` says.
        proc: Where procfs is.
        enough: Look no further when so many have the library.
    """
    loaded, without, left = 0, 0, _LIMIT
    for process in processes:
        if left <= 0 or loaded == enough:
            return Answers(loaded, without, False)
        answer, size = _has_loaded(process, ours, left, proc)
        left -= size
        loaded += answer is True
        without += answer is False
    return Answers(loaded, without, left > 0)


def _has_loaded(process: Process, ours: frozenset[bytes], limit: int, proc: Path) -> tuple[bool | None, int]:
    """Whether a process has the library mapped now, None if it can't be told; and how many bytes were read."""
    rest, size = b"", 0
    try:
        with (proc / str(process.pid) / "maps").open("rb") as file:
            while size < limit:
                piece = file.read(_PIECE)
                size += len(piece)
                if not piece:
                    return (None if size == 0 else _mapped_in(rest, ours)), size
                whole, newline, rest = (rest + piece).rpartition(b"\n")
                if _mapped_in(whole + newline, ours):
                    return True, size
    except OSError:
        pass
    return None, size


def _mapped_in(lines: bytes, ours: frozenset[bytes]) -> bool:
    """Whether one of our libraries stands in its columns, the fourth and fifth: the path behind them may hold anything."""
    for file in ours:
        at = lines.find(file)
        while at >= 0:
            if lines.count(b" ", lines.rfind(b"\n", 0, at) + 1, at) == _SPACES:
                return True
            at = lines.find(file, at + 1)
    return False


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if is_library(name)]
    except OSError:
        return []


def _mapped(path: str) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
