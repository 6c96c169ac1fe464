"""The files that tell a claim's containers of their devices: `<directory>/<claim uid>/<request>.json`. Blocking: for threads.

Not durable: they are made anew from the record and the hardware, as CDI specs are. A container that runs keeps what it started
with.
"""

import shutil
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.cdi import Mount
from hami_kubeletplugin.api.claim import UID, checked_uid
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.metadata import container_path, documents
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare
from hami_kubeletplugin.gpu.model import Gpu

FOLDER: Final = "dra-device-metadata"
"""Below the plugin's directory, as with the helper of k8s.io/dynamic-resource-allocation."""
_OPTIONS: Final = ["ro", "nosuid", "nodev", "noexec", "bind"]


class MetadataFiles:
    """They, for one driver.

    Args:
        directory: Theirs alone.
        wanted: Whether claims get them; those that are there are removed with their claim in any case.
    """

    def __init__(self, directory: Path, *, wanted: bool) -> None:
        self._directory, self._wanted = directory, wanted
        self._written: dict[str, Mapping[Path, files.Fingerprint | None]] = {}

    def open(self, claims: Collection[str]) -> None:
        """Remove what is left of claims of which nothing else is.

        Args:
            claims: UIDs of those that have something.

        Raises:
            StorageError: It is still there.
        """
        for name in files.names(self._directory):
            if UID.fullmatch(name) and name not in claims:
                self.remove(name)

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
        """Have a claim's files say what they are to say.

        Raises:
            ClaimError: A GPU is gone.
            StorageError: They don't.
        """
        if not self._has(claim):
            return
        uid = claim.uid
        wanted = {self._path(uid, name): content for name, content in documents(claim, gpus).items()}
        if not self._make(uid):
            for name in files.names(self._folder(uid)):
                if (path := self._folder(uid) / name) not in wanted:
                    _remove(path)
        for path, content in wanted.items():
            if not _says(path, content):
                # The folder is for root alone; what is mounted from it is for any user of the container.
                files.write(path, content, durable=False, mode=0o644)
        self._written[uid] = {path: files.fingerprint(path) for path in wanted}

    def are_intact(self, uid: str) -> bool:
        """Whether a claim's files are those that were saved last, as they were then. Costs a `stat` for each."""
        return all(found and files.fingerprint(path) == found for path, found in self._written.get(uid, {}).items())

    def remove(self, uid: str) -> None:
        """Remove a claim's files, if there are any.

        Raises:
            StorageError: Some are still there.
        """
        self._written.pop(uid, None)
        _remove(self._folder(uid))

    def _has(self, claim: Prepared) -> bool:
        return self._wanted and claim.in_pod is not None

    def _folder(self, uid: str) -> Path:
        return self._directory / checked_uid(uid)

    def _path(self, uid: str, request: str) -> Path:
        return self._folder(uid) / f"{request}.json"

    def _make(self, uid: str) -> bool:
        """Have a claim's folder; whether it is new."""
        folder = self._folder(uid)
        try:
            if (kind := _kind(folder)) == stat.S_IFDIR:
                return False
            if kind:
                folder.unlink()
            self._directory.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(f"{folder}: can't be made: {error.strerror}; {files.remedy(error)}") from error
        return True


def _says(path: Path, content: bytes) -> bool:
    """Whether a file says just that. Whatever else has its name is removed: a container runtime may have made a directory."""
    try:
        return files.read(path) == content
    except files.NotAFile:
        _remove(path)
        return False


def _kind(path: Path) -> int:
    """What is there, as `stat.S_IF…`; 0: nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it; nothing there is fine, and no link is followed."""
    try:
        if (kind := _kind(path)) == stat.S_IFDIR:
            shutil.rmtree(path)
        elif kind:
            path.unlink()
    except OSError as error:
        raise StorageError(f"{path}: can't be removed: {error.strerror}; {files.remedy(error)}") from error
