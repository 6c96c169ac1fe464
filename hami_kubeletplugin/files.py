"""Files that are there whole or not at all. Blocking: called in threads.

What goes wrong is a StorageError that says where, why and what to do.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from hami_kubeletplugin.api.errors import StorageError

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_ROOM = 256 * 1024
"""Bytes that have to be free: some records, or specs."""
TEMPORARY = ".tmp"
"""Suffix of half-written files. Not a prefix: CDI runtimes read every *.json, hidden ones too (CDI pkg/cdi/spec-dirs.go), and
use none of two files that have the same device."""


class NotAFile(StorageError):
    """Something else has the name of a file: a directory, a FIFO, a device, a link that leads round in circles."""


def read(path: Path) -> bytes | None:
    """The file's bytes, or None if it isn't there.

    Raises:
        NotAFile: Something else is.
        StorageError: It is there and can't be read.
    """
    try:
        if not _is_file(path):  # of a FIFO the end would never come
            raise NotAFile(f"{path}: can't be read: it is not a file; find out who put it there, and remove it")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}; {remedy(error)}") from error


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def write(path: Path, content: bytes, *, durable: bool, mode: int = 0o600) -> None:
    """Write a file atomically: a reader, a crash or a full disk meets the old content or the new one.

    Raises:
        StorageError: As `replace`.
    """

    def fill(descriptor: int) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]

    replace(path, fill, durable=durable, mode=mode)


def replace(path: Path, fill: Callable[[int], None], *, durable: bool, mode: int = 0o600) -> None:
    """Have a new file under a name at once, with what `fill` writes into it. Its directory is made if it isn't there.

    Args:
        path: The file.
        fill: Gets the descriptor of an empty file; raises an OSError or a StorageError.
        durable: Have it on the disk before returning, its name included. Needless on a tmpfs and for what is made anew
            from a record.
        mode: Permission bits.

    Raises:
        StorageError: Disk full, not writable and the like. The old content is still there, unless only the last step of a
            durable write failed: having the new name on the disk.
    """
    temporary = f"{path}{TEMPORARY}"
    try:
        try:
            descriptor = os.open(temporary, _CREATE, mode)
        except FileNotFoundError:  # somebody may have cleaned up
            make_directory(path.parent)
            if durable:
                sync_directory(path.parent.parent)
            descriptor = os.open(temporary, _CREATE, mode)
        try:
            os.fchmod(descriptor, mode)  # whatever the umask, and whatever a killed process left here
            fill(descriptor)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        if durable:
            sync_directory(path.parent)
    except (OSError, StorageError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: can't be written: {error.strerror}; {remedy(error)}") from error


def make_way(path: Path) -> None:
    """Remove an empty directory under the name of a file: what container runtimes make of a mount source that is missing.

    Raises:
        OSError: Something else than a file, an empty directory or nothing is there.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.rmdir()


Fingerprint = tuple[int, int, int, int]
"""What tells a file that was changed, without reading it: inode, size, mtime in ns, mode."""


def fingerprint(path: Path) -> Fingerprint | None:
    """What a file is now; None if it isn't there, or can't be seen."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def set_aside(path: Path) -> Path | None:
    """Move what is no file out of a file's place.

    Returns:
        Where it is now; None if a file, or nothing, is there.

    Raises:
        StorageError: It is still there.
    """
    try:
        if _is_file(path):
            return None
        aside = path.with_name(f"{path.name}.{os.lstat(path).st_ino}.aside")
        os.rename(path, aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: is no file and can't be set aside: {error.strerror}; {remedy(error)}") from error
    return aside


def restrict(path: Path, mode: int) -> None:
    """Give a file a mode; it is fine if it isn't there.

    Raises:
        StorageError: It has another one.
    """
    try:
        path.chmod(mode)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: its mode can't be changed: {error.strerror}; {remedy(error)}") from error


def remove(path: Path) -> None:
    """Remove a file; it is fine if it isn't there.

    Raises:
        StorageError: It is still there.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: can't be removed: {error.strerror}; {remedy(error)}") from error


def names(directory: Path) -> list[str]:
    """Names of what is in a directory, sorted; none if it isn't there.

    Raises:
        StorageError: It is there and can't be read.
    """
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{directory}: can't be read: {error.strerror}; {remedy(error)}") from error


def exists(path: Path) -> bool:
    """Whether something is there.

    Raises:
        StorageError: It can't be told.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}; {remedy(error)}") from error
    return True


def remove_temporaries(directory: Path, *, of: str = "") -> None:
    """Remove what a killed process left half-written of files with a prefix. Called at the start, under the lock."""
    for name in names(directory):
        if name.startswith(of) and name.endswith(TEMPORARY):
            remove(directory / name)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, if they are not there.

    Raises:
        StorageError: It could not be made.
    """
    try:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: can't be made: {error.strerror}; {remedy(error)}") from error


def check_room(path: Path) -> None:
    """See, without writing, that new files can be made in a directory; it is made if it isn't there.

    Raises:
        StorageError: They can't: no directory, read-only, or full.
    """
    make_directory(path)
    if problem := _problem(path):
        error = OSError(problem, os.strerror(problem))
        raise StorageError(f"{path}: no files can be made there: {error.strerror}; {remedy(error)}")


def _problem(directory: Path) -> int | None:
    """Why no file can be made in a directory, as an error number."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return error.errno
    if found.f_flag & os.ST_RDONLY:
        return errno.EROFS
    # What has no bound says that it has none of it, nor any free.
    if (found.f_blocks and found.f_bfree * found.f_frsize < _ROOM) or (found.f_files and not found.f_ffree):
        return errno.ENOSPC
    return None if os.access(directory, os.W_OK | os.X_OK) else errno.EACCES


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remedy(error: OSError) -> str:
    """What to do about an error of the file system, as the end of a sentence."""
    return {
        errno.ENOSPC: "the disk is full, free some space",
        errno.EDQUOT: "the quota is used up",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "the daemon needs read and write permission there",
        errno.EPERM: "the daemon needs write permission there, and the file must not be immutable",
        errno.ENOENT: "the directory is missing",
        errno.ENOTDIR: "a part of the path is not a directory",
        errno.EEXIST: "something else is in its place, remove that",
        errno.ENOTEMPTY: "a directory that is not ours is in its place, remove that",
        errno.EISDIR: "a directory is in its place, remove that",
    }.get(error.errno or 0, "look at the file system")
