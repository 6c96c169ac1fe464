"""Small file systems in memory, so that what containers may write into has an end; and what is mounted, as the kernel tells.

mount(2) and umount2(2) of the C library, as Python has neither. Everything here blocks: call it in a thread.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from hami_kubeletplugin import selinux

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_FLAGS: Final = ctypes.c_ulong(2 | 4 | 8)
"""MS_NOSUID, MS_NODEV, MS_NOEXEC: whatever a container leaves there is no program of any user of the node."""
_DETACH: Final = 2 | 8
"""MNT_DETACH, UMOUNT_NOFOLLOW: what still has a file open keeps it, and nobody waits for that."""
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_ROOT_OF_NODE: Final = "/proc/1/root"
_LIMIT: Final = 16 * 1024 * 1024


def mount(path: Path, *, size: int, inodes: int, mode: int) -> None:
    """Mount a new tmpfs on a directory.

    Args:
        path: The directory; it has to be one that nobody but root can replace.
        size: Bytes that its files may have together.
        inodes: So many files and directories, its own root among them.
        mode: Permission bits of its root.

    Raises:
        OSError: Not allowed here, or the directory isn't there.
    """
    options = _options(size=size, inodes=inodes, mode=mode, label=selinux.label())
    if _LIBC.mount(b"hami-dra", os.fsencode(path), b"tmpfs", _FLAGS, options.encode()):
        raise _error(path)


def _options(*, size: int, inodes: int, mode: int, label: str | None) -> str:
    """Of a tmpfs. With a label all files in it have that one, whoever makes them, and so are for each container. Pure."""
    options = f"size={size},nr_inodes={inodes},mode={mode:o}"
    return f"{options},context={label}" if label else options


def unmount(path: Path) -> None:
    """Take away whatever is mounted on a directory. Nothing mounted, or no directory, is fine.

    Raises:
        OSError: It is still there.
    """
    while is_mounted(path):
        if _LIBC.umount2(os.fsencode(path), _DETACH):
            raise _error(path)


def is_mounted(path: Path) -> bool:
    """Whether a file system of its own is mounted on a directory.

    Raises:
        OSError: One of `stat`, but not that it isn't there.
    """
    try:
        return os.lstat(path).st_dev != os.lstat(path.parent).st_dev
    except FileNotFoundError:
        return False


def lacking(folder: Path) -> str | None:
    """Why the container runtime would not get what is mounted below a folder of ours, and what to do; None if it would.

    It is tried out. Whether others see a mount is known by its being shared: mount_namespaces(7), proc_pid_mountinfo(5).
    """
    probe = folder / ".mount-probe"
    try:
        with suppress(FileExistsError):
            probe.mkdir(0o700)
        mount(probe, size=4096, inodes=2, mode=0o700)
        try:
            shared = _is_shared(os.path.realpath(probe))
        finally:
            unmount(probe)
        probe.rmdir()
    except OSError as error:
        return (
            f"nothing can be mounted below {folder}: {error.strerror}; the daemon has to run as root with CAP_SYS_ADMIN"
        )
    if not shared:
        return (
            f"what is mounted below {folder} would be seen by the daemon alone; give its volume "
            "`mountPropagation: Bidirectional`, or on a node whose root is mounted privately run `mount --make-rshared /` there"
        )
    return None


def forbids_programs(folder: Path) -> bool:
    """Whether the file system of a folder is mounted `noexec`, as the container runtime sees it, if that can be seen.

    Then the hook can't be run from there, and the loader can't map the library. The runtime's own mount is what counts: one that
    was changed after the daemon's container was made is still as it was in there. With hostPID process 1 is the node's.
    """
    for path in (Path(f"{_ROOT_OF_NODE}{folder}"), folder, *folder.parents):
        with suppress(OSError):
            return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    return False


def parsed(mountinfo: bytes) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    """Of each mount: device number, path within the file system, mount point, and what follows these fields. Pure.

    Contract: proc_pid_mountinfo(5), fields 3 to 5; behind the options, up to ` - `, stands to whom it is passed on.
    """
    for line in mountinfo.splitlines():
        fields = line.split(b" ", 5)
        if len(fields) == 6:
            yield fields[2], _unescaped(fields[3]), _unescaped(fields[4]), fields[5]


def _unescaped(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)


def _is_shared(point: str) -> bool:
    """Whether the last mount on a directory is passed on."""
    with _MOUNTINFO.open("rb") as file:
        rest = [rest for _, _, mount, rest in parsed(file.read(_LIMIT)) if mount == os.fsencode(point)]
    return bool(rest) and b" shared:" in rest[-1].partition(b" - ")[0]


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), os.fspath(path))
