"""The CDI spec file of each claim. Blocking: called in threads."""

import json
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.cdi import Spec
from hami_kubeletplugin.api.claim import ClaimRef, checked_uid
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.names import CLAIM, cdi_kind
from hami_kubeletplugin.claims.records import named_uids
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_MODE: Final = 0o600


class SpecFiles:
    """Our specs among those of others in a CDI directory.

    Args:
        directory: E.g. /var/run/cdi; usually a tmpfs, so a reboot empties it.
        driver: Our driver name.
    """

    def __init__(self, directory: Path, driver: str) -> None:
        self._directory = directory
        self._written: dict[str, files.Fingerprint | None] = {}
        self._prefix = f"{cdi_kind(driver).replace('/', '-')}_"

    def open(self) -> None:
        """Make the directory, which runtimes may not have made yet, and clear away what is half-written.

        Raises:
            StorageError: The directory can't be used.
        """
        files.make_directory(self._directory)
        files.remove_temporaries(self._directory, of=self._prefix)
        for uid in self.uids():
            files.restrict(self.path(uid), _MODE)  # a former version made it for everybody

    def path(self, uid: str) -> Path:
        """The spec file of a claim: the transient name that CDI's GenerateTransientSpecName would give."""
        return self._directory / f"{self._prefix}{checked_uid(uid)}.json"

    def uids(self) -> list[str]:
        """UIDs of all claims that have a spec of ours."""
        return named_uids(self._directory, self._prefix)

    def exists(self, uid: str) -> bool:
        """Whether a claim has a spec."""
        return files.exists(self.path(uid))

    def check_gone(self, uid: str) -> None:
        """See that a claim of which nothing else is known has no spec.

        Raises:
            StorageError: It has one.
        """
        if self.exists(uid):
            raise StorageError(
                f"{self.path(uid)}: can't be used: it names no claim, and there is no record of one; if no container here was "
                "started with it, remove it"
            )

    def save(self, uid: str, spec: Spec) -> bool:
        """Write a claim's spec, unless the file says just that already.

        Returns:
            Whether anything was written.

        Raises:
            StorageError: The former file is still there.
        """
        path = self.path(uid)
        content = json.dumps(spec, separators=(",", ":")).encode()  # an indent costs four times as much: no C for it
        if _read(path) == content:
            self._written[uid] = files.fingerprint(path)
            return False
        # Only for root, as whom runtimes read it: its names, paths and limits are no business of others on the node. Not
        # durable, since it is made anew from the record.
        files.write(path, content, durable=False, mode=_MODE)
        self._written[uid] = files.fingerprint(path)
        return True

    def is_intact(self, uid: str) -> bool:
        """Whether a claim's spec is the file that was saved last, as it was then. Costs a `stat`."""
        found = files.fingerprint(self.path(uid))
        return found is not None and found == self._written.get(uid)

    def remove(self, uid: str) -> None:
        """Remove a claim's spec, if there is one.

        Raises:
            StorageError: It is still there.
        """
        path = self.path(uid)
        self._written.pop(uid, None)
        try:
            files.remove(path)
        except StorageError:
            if not _set_aside(path):
                raise

    def claim(self, uid: str) -> ClaimRef | None:
        """The claim that a spec was made for, for when its record is lost; None if it doesn't say.

        Raises:
            StorageError: The spec is there and can't be read.
        """
        content = _read(self.path(uid))
        try:
            spec = json.loads(content or b"{}")
            env = [variable for device in spec["devices"] for variable in device["containerEdits"]["env"]]
            value = next(v.partition("=")[2] for v in env if v.startswith(f"{CLAIM}="))
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
            return None
        namespace, _, name = value.partition("/")
        return ClaimRef(namespace, name, uid) if namespace and name else None


def _read(path: Path) -> bytes | None:
    """What a spec says; None if there is none."""
    try:
        return files.read(path)
    except StorageError:
        if not _set_aside(path):
            raise
    return None


def _set_aside(path: Path) -> bool:
    """Whether something that is no file had a spec's name. It is none for runtimes either, and must not be in a spec's way."""
    aside = files.set_aside(path)
    if aside is not None:
        log.warning("what had the name of a CDI spec and is no file was set aside", moved_to=str(aside))
    return aside is not None
