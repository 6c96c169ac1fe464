"""Directories on the host that containers write into: with exactly the mode they should have, and emptied whatever is in them.

Their content is hostile: nothing in it is followed or trusted. Everything here blocks: call it in a thread.
"""

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""By descriptor and without following a link: an odd thing under our name is an error, not a target."""
STEP: Final = 1_000
"""So many names are held at a time, and so many of those that resist."""
MOST: Final = 500_000
"""So many are removed by one call, in some seconds: somebody may make new ones all the while."""
_CONTAINERS: Final = {"system.posix_acl_access", "system.posix_acl_default", "security.capability"}
"""Access control lists, and capabilities of a program: extended attributes that a container's root may set."""


def directory(path: Path, mode: int, *, parents: int = 0o755) -> None:
    """Make a directory with exactly this mode, whatever the umask; missing parents are made with `parents`.

    Raises:
        OSError: Also when something else than a directory is there.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(path, mode)
    except FileNotFoundError:
        directory(path.parent, parents)
        with suppress(FileExistsError):
            os.mkdir(path, mode)
    handle = os.open(path, OPEN)
    try:
        restore(handle, mode)
    finally:
        os.close(handle)


def restore(handle: int, mode: int) -> None:
    """Have an open file or directory be ours again, with exactly this mode: who has it mounted may have changed both.

    Raises:
        OSError: Not possible.
    """
    found = os.fstat(handle)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(handle, os.geteuid(), os.getegid())
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(handle, mode)


def remove_attributes(target: int | Path) -> None:
    """Remove what a container may have set that counts beside the mode, or takes room: as the hook does at each start.

    Args:
        target: An open file or directory, or a path, of which a link is not followed.

    Raises:
        OSError: Not possible.
    """
    follow = isinstance(target, int)
    try:
        for name in os.listxattr(target, follow_symlinks=follow):
            if name in _CONTAINERS or name.startswith("user."):
                os.removexattr(target, name, follow_symlinks=follow)
    except OSError as error:
        # A file system without them; it removed one itself just now.
        if error.errno not in {errno.ENOTSUP, errno.ENODATA}:
            raise


def empty(top: int) -> tuple[dict[str, str], bool]:
    """Remove everything below an open directory, at most `MOST` names.

    Neither recursive nor by path: a tree may be deeper than the stack, the descriptors or PATH_MAX. Instead a directory that
    is not empty hands its own directories up to `top` before it goes.

    Returns:
        What resisted, by name, with the reason, at most `STEP` of them; and whether all else is gone.
    """
    resisting: dict[str, str] = {}
    new_names = (f".hami-removed-{secrets.token_hex(4)}-{number}" for number in itertools.count())
    left = MOST
    while left > 0 and len(resisting) < STEP:
        names = _some(top, resisting)
        if not names:
            return resisting, True
        for name in names:
            left -= 1
            try:
                if _is_directory(name, top):
                    left -= _hand_up(name, top, new_names, left)
                    if left <= 0:
                        break
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
            except FileNotFoundError:
                continue
            except OSError as error:
                resisting[name] = f"{error.strerror}: {error.filename}"
    return resisting, False


def _some(handle: int, without: Container[str]) -> list[str]:
    """The first names in an open directory."""
    with os.scandir(handle) as entries:
        return list(itertools.islice((entry.name for entry in entries if entry.name not in without), STEP))


def _hand_up(name: str, top: int, new_names: Iterator[str], most: int) -> int:
    """Unlink what is in `top/name` and move its directories to `top`; goes on after a failure and raises the first.

    Returns:
        How many were dealt with.
    """
    failures: dict[str, OSError] = {}
    done = 0
    inner = os.open(name, OPEN, dir_fd=top)
    try:
        while done < most and len(failures) < STEP and (children := _some(inner, failures)):
            done += len(children)
            for child in children:
                try:
                    if _is_directory(child, inner):
                        os.rename(child, next(new_names), src_dir_fd=inner, dst_dir_fd=top)
                    else:
                        os.unlink(child, dir_fd=inner)
                except OSError as error:
                    failures[child] = error
    finally:
        os.close(inner)
    for first in failures.values():
        raise first
    return done


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
