"""Which processes of this node are in containers that have a region or cache of ours mounted.

From `/proc`, as far as it shows other containers: that needs the node's PID name space (hostPID), and root. Everything there is
about running processes, hostile ones among them: what vanishes or can't be read is left out, and nothing is read without bound.
Contract: Linux Documentation/filesystems/proc.rst, 1.8 /proc/<pid>/stat, 3.5 /proc/<pid>/mountinfo.
"""

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hami_kubeletplugin.api.quoting import printable
from hami_kubeletplugin.hamicore.mounts import parsed

PROC: Final = Path("/proc")

_CACHE: Final = "cache"
_OURS: Final = re.compile(rb"/([0-9A-Za-z-]{1,64})/(use-[0-9]{1,4})(?:\.region)?(?://deleted)?")
"""What is mounted, below `<hami_dir>/cache`: see `ClaimDir`."""
_CLAIM: Final = re.compile(rb"/([0-9A-Za-z-]{1,64})")
_POD: Final = re.compile(
    rb"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:[./]|$)", re.MULTILINE
)
"""A pod's UID in the path of its cgroup, as the kubelet's drivers for cgroups write it; static pods have a hash."""
_CONTAINER: Final = re.compile(rb"/(?:[a-z-]+[-:])?([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
"""A container's id behind that, as containerd, CRI-O and Docker have it there."""
_NAMESPACE_PIDS: Final = re.compile(rb"^NSpid:.*?(\d+)$", re.MULTILINE)
_PIECE: Final = 64 * 1024
_STATUS: Final = 1024 * 1024
"""Bytes of a process's status, in which the up to 65536 groups of a process come before what is read."""
_SMALL: Final = 4096
"""Bytes of a file that has less, or of which the first ones are enough."""
_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of our own mountinfo; that of a node with thousands of mounts has about 1 MB."""
MOUNTINFO: Final = 256 * 1024
"""Bytes of a process's mountinfo that are read, some thousand mounts. Ours are among the first, since they are made with the
container, and the kernel lists mounts in the order in which they were made."""


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


class Owner(NamedTuple):
    """In which pod (UID) a process is, and in which of its containers by the runtime's id; empty: in none, or not to be told."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Look:
    """What `/proc` showed.

    Attributes:
        others: Whether there are processes in another mount name space than ours. If not, containers can't be seen at all.
        processes: The processes of each container use that has any, in the order in which they started.
        crowded: UIDs of pods with more mounts, or more name spaces and roots of processes, than are read: what is in these pods
            is not known for sure.
    """

    others: bool
    processes: Mapping[UseKey, tuple[Process, ...]]
    crowded: frozenset[str] = frozenset()


class _Home(NamedTuple):
    """Where a process is: its mount name space, and its root directory in it."""

    namespace: str
    device: int
    inode: int


@dataclass(slots=True)
class _Budget:
    """What is still spent on the mountinfo of a pod, or of all that is in none: nobody's mounts keep us from the others'.

    Attributes:
        reads, size: So many files, and bytes of them.
        seconds: Of CPU time. The kernel passes all mounts to find those that a changed root shows, 100,000 in a tenth of one.
        exceeded: Whether that was too little.
    """

    reads: int
    size: int
    seconds: float
    exceeded: bool = False

    @staticmethod
    def of(pod: str) -> "_Budget":
        return _Budget(64, 4 * 1024 * 1024, 0.5) if pod else _Budget(4096, 64 * 1024 * 1024, 5.0)

    def read(self, path: str) -> tuple[bytes, bool] | None:
        """Whole lines of a mountinfo, and whether that is all of it.

        Returns:
            None if it can't be read, or nothing may be spent on it any more.
        """
        if self.reads <= 0 or self.size <= 0 or self.seconds <= 0:
            self.exceeded = True
            return None
        limit, before = min(MOUNTINFO, self.size), time.thread_time()
        content = _read(path, limit)
        self.reads -= 1
        self.seconds -= time.thread_time() - before
        if content is None:
            return None
        self.size -= len(content)
        return content[: content.rfind(b"\n") + 1], len(content) < limit


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
    for device, root, mount, _ in parsed(mountinfo):
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
    below = ((device, mount.removeprefix(path)) for device, _, mount, _ in parsed(mountinfo) if mount.startswith(path))
    return {device: match[1] for device, rest in below if (match := _CLAIM.fullmatch(rest))}


def places(mountinfo: bytes, cache: Source, own: Mapping[bytes, bytes]) -> frozenset[UseKey]:
    """The container uses whose files a process has mounted. Pure.

    Args:
        mountinfo: The process's.
        cache: Where the claims' directories really are: a container can make mounts of its own whose path only looks alike.
        own: The claims that have a file system of their own, as `claims` finds them.
    """
    found = set()
    for device, root, _, _ in parsed(mountinfo):
        if uid := own.get(device):
            place = b"/" + uid + root
        elif device == cache.device and root.startswith(cache.path):
            place = root[len(cache.path) :]
        else:
            continue
        if match := _OURS.fullmatch(place):
            found.add(UseKey(match[1].decode(), match[2].decode()))
    return frozenset(found)


def look(hami_dir: Path, proc: Path = PROC) -> Look:
    """One pass over all processes. Blocks: some 20 us for each, and some more for each mount name space."""
    own = _link(proc / "self/ns/mnt")
    mountinfo, directory = _read(proc / "self/mountinfo", _LIMIT) or b"", os.path.realpath(hami_dir / _CACHE)
    cache, claims_own = source(mountinfo, directory), claims(mountinfo, directory)
    others: dict[int, _Home] = {}
    base = str(proc)  # a path of its own for each of thousands costs as much as the kernel's answers
    for pid in _pids(proc):
        with contextlib.suppress(OSError):
            if (namespace := os.readlink(f"{base}/{pid}/ns/mnt")) != own:
                there = os.stat(f"{base}/{pid}/root")
                others[pid] = _Home(namespace, there.st_dev, there.st_ino)
    mounted, crowded = _mounted(others, cache, claims_own, proc) if cache else ({}, set())
    found: dict[UseKey, list[Process]] = {}
    for pid, home in others.items():
        if (here := mounted.get(home.namespace)) and (process := _process(proc, pid)):
            for place in here:
                found.setdefault(place, []).append(process)
    return Look(
        bool(others), {place: tuple(sorted(processes)) for place, processes in found.items()}, frozenset(crowded)
    )


def _mounted(
    homes: Mapping[int, _Home], cache: Source, own: Mapping[bytes, bytes], proc: Path
) -> tuple[dict[str, frozenset[UseKey]], set[str]]:
    """The container uses of each mount name space, and the pods that have more mounts than are read."""
    seen: set[_Home] = set()
    mounted: dict[str, frozenset[UseKey]] = {}
    budgets: dict[str, _Budget] = {}
    for pid, home in homes.items():
        # A process shows the mounts below its own root only; one that changed its root is where its name space is all the same.
        if home in seen or home.namespace in mounted:
            continue
        pod = _pod(proc, pid)
        budget = budgets.setdefault(pod, _Budget.of(pod))
        if (answer := budget.read(f"{proc}/{pid}/mountinfo")) is None:
            continue
        seen.add(home)
        content, whole = answer
        if found := places(content, cache, own):
            mounted[home.namespace] = found
        elif not whole:
            budget.exceeded = True
    return mounted, {pod for pod, budget in budgets.items() if pod and budget.exceeded}


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())


def _process(proc: Path, pid: int) -> Process | None:
    """Of its stat: `pid (comm) state ppid ...`, where comm is what the process likes, and the start is field 22."""
    before, _, after = (_read(f"{proc}/{pid}/stat", _SMALL) or b"").rpartition(b")")
    try:
        started = int(after.split()[19])
    except (IndexError, ValueError):
        return None
    name = before.partition(b"(")[2].decode(errors="replace")
    return Process(started, pid, printable(name)[:15])


def _pod(proc: Path, pid: int) -> str:
    """UID of the pod that a process is in; empty if it is in none."""
    return owner(pid, proc).pod


def owner(pid: int, proc: Path = PROC) -> Owner:
    """Whose a process is."""
    cgroup = _read(f"{proc}/{pid}/cgroup", _SMALL) or b""
    if (pod := _POD.search(cgroup)) is None:
        return Owner("", "")
    container = _CONTAINER.search(cgroup, pod.end() - 1)
    return Owner(pod[1].decode().replace("_", "-"), container[1].decode() if container else "")


def own_pid(pid: int, proc: Path = PROC) -> int:
    """What a process calls itself: its PID in the innermost of its name spaces; as here if it is gone."""
    found = _NAMESPACE_PIDS.search(_read(f"{proc}/{pid}/status", _STATUS) or b"")
    return int(found[1]) if found else pid


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _read(path: str | Path, limit: int) -> bytes | None:
    """Its first bytes. Without Python's buffers, which cost three times as much as the kernel's answer."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    pieces, left = [], limit
    try:
        while left > 0 and (piece := os.read(handle, min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    except OSError:
        return None
    finally:
        os.close(handle)
    return b"".join(pieces)
