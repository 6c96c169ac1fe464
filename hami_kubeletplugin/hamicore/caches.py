"""What containers keep on the host, a directory for each claim: `<hami_dir>/cache/<claim uid>/`.

With a library whose region we can make, see `regions`. With another there is a cache directory for each container use,
`use-<i>/`, mounted writable into a container that may run as any uid. So its content is hostile: nothing in it is followed or
trusted. Everything here blocks: call it in a thread.
"""

import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.claim import checked_uid
from hami_kubeletplugin.api.errors import ClaimError, StorageError
from hami_kubeletplugin.hamicore.host import directory

_USE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED: Final = 3
"""So many of the entries that resist are named in an error."""


def cache_dir(hami_dir: Path, uid: str, use: str) -> Path:
    """Where the cache of a claim's container use is.

    Args:
        hami_dir: HAMi-core's directory on the host.
        uid: The claim's UID.
        use: What tells the container uses of one claim apart; a file name.

    Raises:
        ClaimError: A UID or use that could lead out of the directory.
    """
    if not _USE.fullmatch(use):
        raise ClaimError(f"{use!r} can't name a cache directory: letters, digits, '.', '_' and '-' only, 127 at most")
    return claim_dir(hami_dir, uid) / use


def create_cache(hami_dir: Path, uid: str, use: str) -> Path:
    """Make the cache directory, writable for any uid. One that is there keeps its content: a container may be using it.

    Raises:
        ClaimError: As `cache_dir`.
        StorageError: It can't be made, or something else is there.
    """
    path = cache_dir(hami_dir, uid, use)
    try:
        make_claim_dir(hami_dir, uid)
        directory(path, 0o777)
    except OSError as error:
        raise _cannot_make(path, error) from error
    return path


def make_claim_dir(hami_dir: Path, uid: str) -> None:
    """Make the directory of a claim, if it isn't there.

    Raises:
        ClaimError: As `claim_dir`.
        StorageError: It can't be made, or something else is there.
    """
    path = claim_dir(hami_dir, uid)
    try:
        # 0711: a process on the host finds its own file but can't list whose others there are.
        directory(path.parent, 0o711)
        directory(path, 0o711)
    except OSError as error:
        raise _cannot_make(path, error) from error


def remove_caches(hami_dir: Path, uid: str) -> None:
    """Remove all cache directories of a claim, whatever its containers left in them. Nothing there is fine.

    Raises:
        ClaimError: As `cache_dir`.
        StorageError: Some of it can't be removed; names what is left. The rest is gone.
    """
    path = claim_dir(hami_dir, uid)
    try:
        handle = os.open(path, _OPEN)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"the cache directory {path} can't be removed: {error}; remove it by hand") from error
    try:
        resisting = _empty(handle)
    except OSError as error:
        raise StorageError(f"the cache directory {path} can't be removed: {error}; it is tried again") from error
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
        raise StorageError(f"the cache directory {path} can't be removed: {error}; it is tried again") from error


def claim_dir(hami_dir: Path, uid: str) -> Path:
    """Where everything of a claim's containers is.

    Raises:
        ClaimError: A UID that could lead out of the directory.
    """
    return hami_dir / "cache" / checked_uid(uid)


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
