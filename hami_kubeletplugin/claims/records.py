"""One record file for each prepared claim: what a restarted daemon has to know. Blocking: called in threads.

    {"version": 1, "claim": {"namespace": …, "name": …}, "sha256": "<of data's bytes>", "data": "<JSON, as text>"}

The checksum is over the bytes of `data` as they stand, never over what a decoder made of them: a new field then can't turn
old records into damaged ones. What `data` holds is `record_schema`'s concern. Cost per claim is constant; nothing is rewritten
for other claims.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from hami_kubeletplugin import files
from hami_kubeletplugin.api.claim import UID, ClaimRef, checked_uid
from hami_kubeletplugin.api.errors import RecordDamaged, RecordTooNew, StorageError
from hami_kubeletplugin.claims import record_schema
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.record_schema import VERSION


def named_uids(directory: Path, prefix: str = "") -> list[str]:
    """The UIDs in the names `<prefix><uid>.json` of a directory, sorted. Other files there are not ours.

    Raises:
        StorageError: The directory can't be read.
    """
    return [
        name.removeprefix(prefix).removesuffix(".json")
        for name in files.names(directory)
        if name.startswith(prefix) and name.endswith(".json")
        if UID.fullmatch(name.removeprefix(prefix).removesuffix(".json"))
    ]


def encode(prepared: Prepared) -> bytes:
    """A record's bytes."""
    data = json.dumps(record_schema.dump(prepared))
    digest = hashlib.sha256(data.encode()).hexdigest()
    claim = {"namespace": prepared.ref.namespace, "name": prepared.ref.name}
    return json.dumps({"version": VERSION, "claim": claim, "sha256": digest, "data": data}).encode()


def decode(content: bytes, where: str) -> Prepared:
    """The claim that a record holds, whatever version up to ours wrote it.

    Raises:
        RecordDamaged: Not what was written.
        RecordTooNew: Written by a newer version of this program.
    """
    try:
        record = json.loads(content)
        version, data, digest = record["version"], record["data"], record["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordDamaged(f"{where}: record is damaged: {error}") from error
    if not isinstance(version, int) or version < 1:
        raise RecordDamaged(f"{where}: record is damaged: version {version!r}")
    if version > VERSION:
        raise RecordTooNew(f"{where}: record has version {version}, this program knows {VERSION}")
    if not isinstance(data, str) or hashlib.sha256(data.encode(errors="replace")).hexdigest() != digest:
        raise RecordDamaged(f"{where}: record is damaged: its checksum is wrong")
    try:
        return record_schema.load(record_schema.upgraded(json.loads(data), version))
    except ValidationError as error:
        raise RecordDamaged(f"{where}: record is damaged: {error.error_count()} fields are wrong") from error
    except (ValueError, RecursionError) as error:
        raise RecordDamaged(f"{where}: record is damaged: {error}") from error


def claim_of(content: bytes, uid: str) -> ClaimRef | None:
    """The claim that a record was made for, also if nothing else of it can be used; None if it doesn't say.

    `claim` is outside of what versions change, and version 1 without it has the names in its data. Neither is covered by a
    checksum that would have to be right: who asks the API server for that claim finds out whether it has this UID.
    """
    try:
        record = json.loads(content)
        claim = record["claim"] if "claim" in record else json.loads(record["data"])
        namespace, name = claim["namespace"], claim["name"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = isinstance(namespace, str) and isinstance(name, str) and namespace and name
    return ClaimRef(namespace, name, uid) if whole else None


class Records:
    """The records of one driver on one node.

    Args:
        directory: Theirs alone.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._damaged = directory, directory / "damaged"

    def open(self) -> None:
        """Make the directory and clear away what a killed process left half-written.

        Raises:
            StorageError: The directory can't be used.
        """
        files.make_directory(self._directory)
        for folder in (self._directory, self._damaged):
            files.remove_temporaries(folder)

    def path(self, uid: str) -> Path:
        """The record file of a claim."""
        return self._directory / f"{checked_uid(uid)}.json"

    def uids(self) -> list[str]:
        """UIDs of all claims that have a record, damaged or not."""
        return named_uids(self._directory)

    def exists(self, uid: str) -> bool:
        """Whether a claim has a record, damaged or not."""
        return files.exists(self.path(uid))

    def load(self, uid: str) -> Prepared | None:
        """A claim's record, or None if it has none.

        Raises:
            RecordDamaged: It can't be used, or a newer version wrote it; it is left as it is.
            StorageError: It can't be read.
        """
        path = self.path(uid)
        try:
            content = files.read(path)
        except files.NotAFile as error:
            raise RecordDamaged(f"record is damaged: {error}") from error
        if content is None:
            return None
        prepared = decode(content, str(path))
        if prepared.uid != uid:
            raise RecordDamaged(f"{path}: record is damaged: it is of claim UID {prepared.uid}")
        return prepared

    def all(self) -> Iterator[Prepared | StorageError]:
        """Every record, or why it can't be used."""
        for uid in self.uids():
            try:
                prepared = self.load(uid)
            except StorageError as error:
                yield error
            else:
                if prepared is not None:
                    yield prepared

    def usable(self) -> Iterator[Prepared]:
        """Every record but those that can't be used: claims that recovery has yet to make anew."""
        return (record for record in self.all() if isinstance(record, Prepared))

    def claim(self, uid: str) -> ClaimRef | None:
        """The claim that a record was made for, for when it can't be used; None if there is none or it doesn't say.

        Raises:
            StorageError: It is there and can't be read.
        """
        return claim_of(files.read(self.path(uid)) or b"", uid)

    def save(self, prepared: Prepared) -> None:
        """Have the record on the disk.

        Raises:
            StorageError: It is not; a former record is still there.
        """
        files.write(self.path(prepared.uid), encode(prepared), durable=True)

    def remove(self, uid: str) -> None:
        """Forget a claim. Not synced: a record that a power cut brings back is cleaned up as stale.

        Raises:
            StorageError: It is still there.
        """
        path = self.path(uid)
        if files.set_aside(path) is None:
            files.remove(path)

    def set_aside(self, uid: str) -> Path:
        """Copy a damaged record, for people to look at; the newest one of each claim is kept. What is no file is moved.

        A copy, so that the claim is never without a record: a good one replaces the damaged one at once.

        Returns:
            Where the copy is.

        Raises:
            StorageError: It could not be made.
        """
        if (aside := files.set_aside(self.path(uid))) is not None:
            return aside
        target = self._damaged / f"{checked_uid(uid)}.json"
        files.write(target, files.read(self.path(uid)) or b"", durable=False)
        return target
