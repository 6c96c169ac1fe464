"""Which processes of this node are in containers that have a region or cache of ours mounted, and whether they loaded HAMi-core.

From `/proc`, as far as it shows other containers: that needs the node's PID name space (hostPID), and root. Everything there is
about running processes, hostile ones among them: what vanishes or can't be read is left out, and nothing is read without bound.
Contract: Linux Documentation/filesystems/proc.rst, 1.8 /proc/<pid>/stat, 1.14 /proc/<pid>/maps, 3.5 /proc/<pid>/mountinfo.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")

_CACHE: Final = "cache"
_OURS: Final = re.compile(rb"/([0-9A-Za-z-]{1,64})/(use-[0-9]{1,4})(?:\.region)?(?://deleted)?")
"""What is mounted, below `<hami_dir>/cache`: see `ClaimDir`."""
_CLAIM: Final = re.compile(rb"/([0-9A-Za-z-]{1,64})")
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_LIBRARY: Final = re.compile(rb"/libvgpu\.so[^/\n]*$", re.MULTILINE)
_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one file; the mountinfo of a node with thousands of mounts has about 1 MB."""
_PIECE: Final = 256 * 1024
_PIECES: Final = 256
"""64 MB of maps; the 65530 mappings that a process usually may have (vm.max_map_count) make some 8 MB."""


class UseKey(NamedTuple):
    """What a container use is called on the host: its claim's UID and the name of its files."""

    claim_uid: str
    use: str


class Process(NamedTuple):
    """One process.

    Attributes:
        started: Ticks since the node's boot; with the PID it tells a process from a later one.
        pid: As `/proc` shows it.
        name: As it calls itself: at most 15 characters that can be shown, whatever it made of them.
    """

    started: int
    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Look:
    """What `/proc` showed.

    Attributes:
        others: Whether there are processes in another mount name space than ours. If not, containers can't be seen at all.
        processes: The processes of each container use that has any, in the order in which they started.
    """

    others: bool
    processes: Mapping[UseKey, tuple[Process, ...]]


class _Home(NamedTuple):
    """Where a process is: its mount name space, and its root directory in it."""

    namespace: str
    device: int
    inode: int


class Source(NamedTuple):
    """A directory as mountinfo names what is mounted: its file system's device number and the path within that."""

    device: bytes
    path: bytes


def source(mountinfo: bytes, directory: str) -> Source | None:
    """Where a directory really is. Pure.

    Args:
        mountinfo: Of a process that sees the directory.
        directory: Absolute, without links.
    """
    path, found, longest = os.fsencode(directory), None, -1
    for device, root, mount in _mounts(mountinfo):
        point = mount.rstrip(b"/")
        inside = path.removeprefix(point)
        # Of several mounts at one point the last one is on top.
        if path.startswith(point) and inside[:1] in {b"", b"/"} and len(point) >= longest:
            found, longest = Source(device, root.rstrip(b"/") + inside), len(point)
    return found


def claims(mountinfo: bytes, directory: str) -> Mapping[bytes, bytes]:
    """Which claims have a file system of their own: UID by device number. Pure.

    Args:
        mountinfo: Of a process that sees the directory.
        directory: That of the claims' directories; absolute, without links.
    """
    path = os.fsencode(directory)
    below = ((device, mount.removeprefix(path)) for device, _, mount in _mounts(mountinfo) if mount.startswith(path))
    return {device: match[1] for device, rest in below if (match := _CLAIM.fullmatch(rest))}


def places(mountinfo: bytes, cache: Source, own: Mapping[bytes, bytes]) -> frozenset[UseKey]:
    """The container uses whose files a process has mounted. Pure.

    Args:
        mountinfo: The process's.
        cache: Where the claims' directories really are: a container can make mounts of its own whose path only looks alike.
        own: The claims that have a file system of their own, as `claims` finds them.
    """
    found = set()
    for device, root, _ in _mounts(mountinfo):
        if uid := own.get(device):
            place = b"/" + uid + root
        elif device == cache.device and root.startswith(cache.path):
            place = root[len(cache.path) :]
        else:
            continue
        if match := _OURS.fullmatch(place):
            found.add(UseKey(match[1].decode(), match[2].decode()))
    return frozenset(found)


def maps_library(maps: bytes) -> bool:
    """Whether a process has a libvgpu.so mapped, by its maps or whole lines of them. Pure."""
    return _LIBRARY.search(maps) is not None


def look(hami_dir: Path, proc: Path = PROC) -> Look:
    """One pass over all processes. Blocks: some 20 us for each, and some more for each mount name space."""
    own = _link(proc / "self/ns/mnt")
    mountinfo, directory = _read(proc / "self/mountinfo"), os.path.realpath(hami_dir / _CACHE)
    cache, claims_own = source(mountinfo, directory), claims(mountinfo, directory)
    others: dict[int, _Home] = {}
    for pid in _pids(proc):
        with contextlib.suppress(OSError):
            there = os.stat(proc / str(pid) / "root")
            home = _Home(os.readlink(proc / str(pid) / "ns/mnt"), there.st_dev, there.st_ino)
            if home.namespace != own:
                others[pid] = home
    mounted = _mounted(others, cache, claims_own, proc) if cache else {}
    found: dict[UseKey, list[Process]] = {}
    for pid, home in others.items():
        if (here := mounted.get(home.namespace)) and (process := _process(proc, pid)):
            for place in here:
                found.setdefault(place, []).append(process)
    return Look(bool(others), {place: tuple(sorted(processes)) for place, processes in found.items()})


def _mounted(
    homes: Mapping[int, _Home], cache: Source, own: Mapping[bytes, bytes], proc: Path
) -> dict[str, frozenset[UseKey]]:
    """The container uses of each mount name space.

    A process shows the mounts below its own root only; one that changed its root is where its name space is all the same.
    """
    seen: set[_Home] = set()
    mounted: dict[str, frozenset[UseKey]] = {}
    for pid, home in homes.items():
        if home not in seen and (content := _read(proc / str(pid) / "mountinfo")):
            seen.add(home)
            mounted[home.namespace] = mounted.get(home.namespace, frozenset()) | places(content, cache, own)
    return mounted


def has_loaded(process: Process, proc: Path = PROC) -> bool | None:
    """Whether a process has HAMi-core's library mapped now; None if it can't be told, as when it has ended. Blocks."""
    rest, empty = b"", True
    try:
        with (proc / str(process.pid) / "maps").open("rb") as file:
            for _ in range(_PIECES):
                piece = file.read(_PIECE)
                if not piece:
                    return None if empty else maps_library(rest)
                empty = False
                whole, newline, rest = (rest + piece).rpartition(b"\n")
                if maps_library(whole + newline):
                    return True
    except OSError:
        pass
    return None


def _mounts(mountinfo: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Device number, path within the file system and mount point: fields 3 to 5."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ", 5)
        if len(fields) == 6:
            yield fields[2], _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())


def _process(proc: Path, pid: int) -> Process | None:
    """Of its stat: `pid (comm) state ppid ...`, where comm is what the process likes, and the start is field 22."""
    before, _, after = _read(proc / str(pid) / "stat").rpartition(b")")
    try:
        started = int(after.split()[19])
    except (IndexError, ValueError):
        return None
    name = before.partition(b"(")[2].decode(errors="replace")
    return Process(started, pid, "".join(char if char.isprintable() else "?" for char in name)[:15])


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT)
    except OSError:
        return b""
