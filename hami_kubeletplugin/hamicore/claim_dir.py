"""What the containers of a claim keep on the host: `<hami_dir>/cache/<claim uid>/`.

    use-<i>.region      what a container has mounted, with a library whose regions we can make: see `regions`
    use-<i>/            with another library: a directory in which it makes its region itself

Where possible it is a small tmpfs of the claim's own: what containers write there ends at its size and is paid by their own
memory, nothing there can be a program, and it goes at once, whatever is in it. Otherwise it is on the node's disk.

Some of it is mounted writable into containers that may run as any uid. So its content is hostile: nothing in it is followed or
trusted. Everything here blocks: call it in a thread.
"""

import errno
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_kubeletplugin import selinux
from hami_kubeletplugin.api.claim import checked_uid
from hami_kubeletplugin.api.errors import ClaimError, StorageError
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.directories import MOST, OPEN, directory, empty

_USE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_NAMED: Final = 3
"""So many of the entries that resist are named in an error."""
_SIZE: Final = 8 * 1024 * 1024
"""Bytes that the containers of a claim can fill; a region has 2 MB, of which a process uses 2 KB."""
_INODES: Final = 1024
"""A claim has at most some hundred uses, of a file or two each."""


def use_name(index: int) -> str:
    """Name of the files of a claim's use."""
    return f"use-{index}"


@dataclass(frozen=True, slots=True)
class ClaimDir:
    """The directory of one claim. A use's name tells the container uses of the claim apart.

    Attributes:
        hami_dir: HAMi-core's directory on the host.
        uid: The claim's UID.
        in_memory: Whether it is to be a tmpfs.
        path: Where it is.

    Raises:
        ClaimError: The UID could lead out of the directory.
    """

    hami_dir: Path
    uid: str
    in_memory: bool = False
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.hami_dir / "cache" / checked_uid(self.uid))

    def cache(self, use: str) -> Path:
        """The cache directory of a use.

        Raises:
            ClaimError: A use that could lead out of the directory.
        """
        if not _USE.fullmatch(use):
            raise ClaimError(
                f"{use!r} can't name a cache directory: letters, digits, '.', '_' and '-' only, 127 at most"
            )
        return self.path / use

    def region(self, use: str) -> Path:
        """The region file of a use."""
        return self.path / f"{use}.region"

    def make(self) -> bool:
        """Have it there. One with something in it stays as it is: a container may be using it.

        Returns:
            Whether it is a tmpfs, so that nobody else can fill it.

        Raises:
            StorageError: It can't be made, or something else is there.
        """
        try:
            directory(self.path, 0o700, parents=0o700)
            selinux.relabel(self.path)
            if mounts.is_mounted(self.path):
                return True
            if not self.in_memory or os.listdir(self.path):
                return False
            mounts.mount(self.path, size=_SIZE, inodes=_INODES, mode=0o700)
        except OSError as error:
            raise _cannot_make(self.path, error) from error
        return True

    def make_cache(self, use: str) -> Path:
        """Make a cache directory, writable for any uid. One that is there keeps its content: a container may be using it.

        Raises:
            ClaimError: As `cache`.
            StorageError: It can't be made, or something else is there.
        """
        path = self.cache(use)
        self.make()
        try:
            directory(path, 0o777)
            selinux.relabel(path)
        except OSError as error:
            raise _cannot_make(path, error) from error
        return path

    def remove(self) -> None:
        """Remove all of it, whatever containers left there. Nothing there is fine.

        Raises:
            StorageError: Some of it can't be removed; names what is left. The rest is gone.
        """
        path = self.path
        try:
            mounts.unmount(path)
            handle = os.open(path, OPEN)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"the cache directory {path} can't be removed: {error}; remove it by hand") from error
        try:
            resisting, done = empty(handle)
        except OSError as error:
            raise _cannot_remove(path, error) from error
        finally:
            os.close(handle)
        if resisting:
            names = ", ".join(f"{path / name} ({reason})" for name, reason in sorted(resisting.items())[:_NAMED])
            more = f" and {len(resisting) - _NAMED} more" if len(resisting) > _NAMED else ""
            raise StorageError(
                f"can't remove what a container left in its cache directory: {names}{more}. "
                "Look there for a mount (findmnt), an immutable flag (lsattr) or a process that still writes; it is tried again"
            )
        if not done:
            raise StorageError(
                f"the cache directory {path} had more than {MOST:,} files; they are removed in steps, so it is tried again"
            )
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _cannot_remove(path, error) from error


def _cannot_remove(path: Path, error: OSError) -> StorageError:
    # Mounts of others don't keep a directory, but one that the daemon itself has at another path does.
    look = (
        "; look in /proc/<pid>/mountinfo of the daemon where it is mounted a second time, and give that volume of the "
    )
    remedy = f"{look}DaemonSet `mountPropagation: HostToContainer`" if error.errno == errno.EBUSY else ""
    return StorageError(f"the cache directory {path} can't be removed: {error}{remedy}; it is tried again")


def _cannot_make(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the cache directory {path} can't be made: {error}. Make that directory writable for the daemon and free space on it"
    )
