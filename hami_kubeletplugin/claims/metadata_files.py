"""The files that tell a claim's containers of their devices: `<directory>/<claim uid>.<request>.json`. Blocking: for threads.

Not durable: they are made anew from the record and the hardware, as CDI specs are. A container that runs keeps what it started
with. One folder for all: to make and remove one for each claim takes longer than all the rest.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files, selinux
from hami_kubeletplugin.api.cdi import Mount
from hami_kubeletplugin.api.claim import checked_uid
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.metadata import container_path, documents
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare
from hami_kubeletplugin.gpu.attributes import Attribute, attributes_of
from hami_kubeletplugin.gpu.model import Gpu

FOLDER: Final = "dra-device-metadata"
"""Below the plugin's directory, as with the helper of k8s.io/dynamic-resource-allocation."""
_OPTIONS: Final = ["ro", "nosuid", "nodev", "noexec", "bind"]
_MODE: Final = 0o644
"""The folder is for root alone; what is mounted out of it is for any user of a container."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class MetadataFiles:
    """They, for one driver. Thread-safe, as long as no two threads have the same claim.

    Args:
        directory: Theirs alone.
        wanted: Whether claims get them.
    """

    def __init__(self, directory: Path, *, wanted: bool) -> None:
        self._directory, self._wanted = directory, wanted
        self._gpus: tuple[tuple[Gpu, ...], Mapping[str, Mapping[str, Attribute]]] = ((), {})
        self._there: dict[str, Mapping[Path, files.Fingerprint | None]] = {}

    def open(self, claims: Collection[str]) -> None:
        """Find what a former run made, and remove what is left of claims of which nothing else is.

        Args:
            claims: UIDs of those that have something.

        Raises:
            StorageError: It can't be read, or is still there.
        """
        there: dict[str, dict[Path, None]] = {}
        for name in files.names(self._directory):
            there.setdefault(name.partition(".")[0], {})[self._directory / name] = None
        self._there = {uid: paths for uid, paths in there.items() if uid in claims}
        for path in (path for uid in there.keys() - claims for path in there[uid]):
            _remove(path)

    def mounts(self, claim: Prepared, share: PreparedShare) -> list[Mount]:
        """The mount of a request, with its first share: whoever sees one share of a request sees all of them.

        Raises:
            ClaimError: A name that could lead out of the folder.
        """
        first = next(other for other in claim.shares if other.request == share.request)
        if not self._has(claim) or share is not first:
            return []
        path = self._path(claim.uid, share.request)
        return [{"hostPath": str(path), "containerPath": container_path(claim, share.request), "options": _OPTIONS}]

    def save(self, claim: Prepared, gpus: Mapping[str, Gpu]) -> None:
        """Have a claim's files say what they are to say, and no others.

        Raises:
            ClaimError: A GPU is gone.
            StorageError: They don't.
        """
        uid, wanted = claim.uid, dict[Path, bytes]()
        if self._has(claim):
            wanted = {
                self._path(uid, request): content
                for request, content in documents(claim, self._attributes(gpus)).items()
            }
        former = self._there.get(uid, {})
        self._there[uid] = {**dict.fromkeys(wanted), **former}
        for path in former.keys() - wanted.keys():
            _remove(path)
        for path, content in wanted.items():
            self._write(path, content)
        self._there[uid] = {path: files.fingerprint(path) for path in wanted}

    def are_intact(self, uid: str) -> bool:
        """Whether a claim's files are those that were saved last, as they were then. Costs a `stat` for each."""
        return all(found and files.fingerprint(path) == found for path, found in self._there.get(uid, {}).items())

    def remove(self, uid: str) -> None:
        """Remove a claim's files, if there are any.

        Raises:
            StorageError: Some are still there.
        """
        for path in self._there.get(uid, {}):
            _remove(path)
        self._there.pop(uid, None)

    def _attributes(self, gpus: Mapping[str, Gpu]) -> Mapping[str, Mapping[str, Attribute]]:
        """Those of all GPUs; made anew when one of them has changed, as they take longer than all the rest."""
        every = tuple(gpus.values())
        known, found = self._gpus
        if known != every:
            found = attributes_of(every)
            self._gpus = every, found
        return found

    def _has(self, claim: Prepared) -> bool:
        return self._wanted and claim.in_pod is not None

    def _path(self, uid: str, request: str) -> Path:
        return self._directory / f"{checked_uid(uid)}.{request}.json"

    def _write(self, path: Path, content: bytes) -> None:
        """Have a file with this content. Nobody reads one that is new before it is whole; another one is replaced at once."""
        try:
            try:
                descriptor = os.open(path, _NEW, _MODE)
            except FileNotFoundError:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, _NEW, _MODE)
            try:
                os.fchmod(descriptor, _MODE)  # whatever the umask
                selinux.relabel(descriptor)
                whole = os.write(descriptor, content) == len(content)
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink()
                raise
            finally:
                os.close(descriptor)
        except FileExistsError:
            whole = False
        except OSError as error:
            raise StorageError(f"{path}: can't be written: {error.strerror}; {files.remedy(error)}") from error
        if not whole:
            _renew(path, content)


def _renew(path: Path, content: bytes) -> None:
    """Have what is there say just that, for any container."""
    if not _says(path, content):
        files.write(path, content, durable=False, mode=_MODE)
    try:
        selinux.relabel(path)
    except OSError as error:
        raise StorageError(f"{path}: can't be read by containers: {error.strerror}") from error


def _says(path: Path, content: bytes) -> bool:
    """Whether a file says just that, to anybody. What is none is removed: a container runtime may have made a directory."""
    found = files.fingerprint(path)
    mode = found[-1] if found else 0
    if stat.S_ISREG(mode):
        return stat.S_IMODE(mode) == _MODE and files.read(path) == content
    _remove(path)
    return False


def _remove(path: Path) -> None:
    """Remove what has a name; nothing there is fine, and no link is followed.

    Raises:
        StorageError: It is still there.
    """
    try:
        try:
            path.unlink()
        except (IsADirectoryError, PermissionError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
            shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: can't be removed: {error.strerror}; {files.remedy(error)}") from error
