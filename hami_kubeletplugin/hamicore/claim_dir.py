"""What the containers of a claim keep on the host: `<hami_dir>/cache/<claim uid>/`.

    use-<i>.region      what a container has mounted, with a library whose regions we can make: see `regions`
    use-<i>/            with another library: a directory in which it makes its region itself

Some of it is mounted writable into containers that may run as any uid. So its content is hostile: nothing in it is followed or
trusted. Everything here blocks: call it in a thread.
"""

import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.claim import checked_uid
from hami_kubeletplugin.api.errors import ClaimError, StorageError
from hami_kubeletplugin.hamicore.host import directory

_USE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED: Final = 3
"""So many of the entries that resist are named in an error."""


def use_name(index: int) -> str:
    """Name of the files of a claim's use."""
    return f"use-{index}"


@dataclass(frozen=True, slots=True)
class ClaimDir:
    """The directory of one claim. A use's name tells the container uses of the claim apart.

    Attributes:
        hami_dir: HAMi-core's directory on the host.
        uid: The claim's UID.
        path: Where it is.

    Raises:
        ClaimError: The UID could lead out of the directory.
    """

    hami_dir: Path
    uid: str
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

    def make(self) -> None:
        """Have it there.

        Raises:
            StorageError: It can't be made, or something else is there.
        """
        try:
            # Only root: files in it are for any uid, but in the container, and may be setuid programs.
            directory(self.path, 0o700, parents=0o700)
        except OSError as error:
            raise _cannot_make(self.path, error) from error

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
            handle = os.open(path, _OPEN)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"the cache directory {path} can't be removed: {error}; remove it by hand") from error
        try:
            resisting = _empty(handle)
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
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _cannot_remove(path, error) from error


def _cannot_remove(path: Path, error: OSError) -> StorageError:
    return StorageError(f"the cache directory {path} can't be removed: {error}; it is tried again")


def _cannot_make(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the cache directory {path} can't be made: {error}. Make that directory writable for the daemon and free space on it"
    )


def _empty(top: int) -> dict[str, str]:
    """Remove everything below an open directory; returns what resisted, by name, with the reason.

    Neither recursive nor by path: a tree may be deeper than the stack, the descriptors or PATH_MAX. Instead a directory that
    is not empty hands its own directories up to `top` before it goes.
    """
    resisting: dict[str, str] = {}
    new_names = (f".hami-removed-{secrets.token_hex(4)}-{number}" for number in itertools.count())
    while names := [name for name in os.listdir(top) if name not in resisting]:
        for name in names:
            try:
                if _is_directory(name, top):
                    _hand_up(name, top, new_names)
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
            except FileNotFoundError:
                continue
            except OSError as error:
                resisting[name] = f"{error.strerror}: {error.filename}"
    return resisting


def _hand_up(name: str, top: int, new_names: Iterator[str]) -> None:
    """Unlink what is in `top/name` and move its directories to `top`; goes on after a failure and raises the first."""
    failure: OSError | None = None
    inner = os.open(name, _OPEN, dir_fd=top)
    try:
        for child in os.listdir(inner):
            try:
                if _is_directory(child, inner):
                    os.rename(child, next(new_names), src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(child, dir_fd=inner)
            except OSError as error:
                failure = failure or error
    finally:
        os.close(inner)
    if failure:
        raise failure


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
