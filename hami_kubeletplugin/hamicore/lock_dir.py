"""The directory that libraries up to 2.8.0 lock the whole node by: `/tmp/vgpulock` of all their containers.

They make a file `lock` there, remove it when they have counted their processes, and wait for ever where they can't make it
(HAMi-core src/utils.c, try_lock_unified_lock). It has to be the same for all containers, so a container can disturb the others
of its kind; what it leaves is put in order at each prepare and unprepare. Everything here blocks: call it in a thread.
"""

import itertools
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from hami_kubeletplugin import selinux
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.directories import OPEN, directory, empty, remove_attributes, restore

_LOCK: Final = "lock"
_MODE: Final = 0o1777
_SIZE: Final = 64 * 1024
_INODES: Final = 64
_MOST: Final = 1_000
"""So many are looked at in one call; only on a disk there can be more than its inodes."""
_STALE_SECONDS: Final = 60
"""They hold it for a second or two; one that is older is of a process that was killed, one from far in the future is nobody's."""
_TURN: Final = threading.Lock()
"""Claims are prepared in many threads. Two that find it missing would mount it twice, and of two that see a stale lock the slower
one would remove the lock that somebody took after the quicker one."""


def make(path: Path, *, in_memory: bool) -> None:
    """Have it there, for any uid, and in order.

    Args:
        path: The directory.
        in_memory: Mount a small tmpfs on it, unless one is there.

    Raises:
        StorageError: It can't be made, or something in it resists.
    """
    try:
        with _TURN:
            directory(path, _MODE)
            if in_memory and not mounts.is_mounted(path):
                mounts.mount(path, size=_SIZE, inodes=_INODES, mode=_MODE)
            _put_in_order(path)
    except OSError as error:
        raise StorageError(
            f"the containers' lock directory {path} can't be put in order: {error}; look what is there, and remove it"
        ) from error


def tidy(path: Path) -> None:
    """Root's own again, with its mode and no attributes, and with nothing in it but a lock that somebody may hold.

    Raises:
        OSError: It isn't there, it is no directory, or something in it resists.
    """
    with _TURN:
        _put_in_order(path)


def _put_in_order(path: Path) -> None:
    handle = os.open(path, OPEN)
    try:
        remove_attributes(handle)  # first: with a list, the mode's bits of the group mean something else
        restore(handle, _MODE)
        selinux.relabel(handle)
        with os.scandir(handle) as entries:
            for entry in itertools.islice(entries, _MOST):
                if not _may_be_held(entry):
                    _remove(entry, handle)
    finally:
        os.close(handle)


def _may_be_held(entry: os.DirEntry[str]) -> bool:
    """Whether it is the lock, and younger than a process would hold it for, or made just now; also if it is gone already."""
    if entry.name != _LOCK or not entry.is_file(follow_symlinks=False):
        return False
    try:
        return abs(time.time() - entry.stat(follow_symlinks=False).st_mtime) < _STALE_SECONDS
    except FileNotFoundError:
        return True


def _remove(entry: os.DirEntry[str], top: int) -> None:
    """Also a tree."""
    with suppress(FileNotFoundError):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=top)
            return
        handle = os.open(entry.name, OPEN, dir_fd=top)
        try:
            empty(handle)
        finally:
            os.close(handle)
        os.rmdir(entry.name, dir_fd=top)
