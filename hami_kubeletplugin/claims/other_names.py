"""Claims that this program has prepared on this node under other driver names. Blocking: called in threads.

Each name has a plugin directory beside ours. Only what is a record of ours, whole, is believed: all else is somebody else's.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records, decode, named_uids

_LARGEST: Final = 1024 * 1024
"""Bytes of a file that may be a record: ours have some thousands."""


@dataclass(frozen=True, slots=True)
class OtherName:
    """A driver name that isn't ours, and what is prepared under it.

    Attributes:
        driver: The name.
        plugin_dir: Its directory.
        claims: Those whose records can be used.
    """

    driver: str
    plugin_dir: Path
    claims: tuple[Prepared, ...]


def other_names(plugin_dir: Path, driver: str) -> list[OtherName]:
    """What is prepared under other names than `driver`, whose plugin directories are beside this one; each name once.

    A directory with records of several names is left out: nobody could tell whose it is.
    """
    found: dict[str, OtherName] = {}
    with contextlib.suppress(StorageError):
        for entry in files.names(plugin_dir.parent):
            directory = plugin_dir.parent / entry
            claims = _claims(directory / "claims") if directory != plugin_dir else ()
            names = {claim.driver for claim in claims}
            if len(names) == 1 and driver not in names:
                found.setdefault(claims[0].driver, OtherName(claims[0].driver, directory, claims))
    return list(found.values())


def check_names(records: Records, driver: str) -> None:
    """Have nothing but claims of this driver in its records.

    Raises:
        StorageError: There are claims of another name, whose CDI specs would be made a second time, under ours.
    """
    try:
        names = sorted({record.driver for record in records.usable()} - {driver})
    except StorageError:  # not fatal: readiness says so until they can be read
        return
    if names:
        raise StorageError(
            f"--plugin-dir has claims that were prepared as driver {', '.join(names)}, and this is {driver}: give each driver "
            "name a directory of its own, or this one its former name"
        )


def _claims(directory: Path) -> tuple[Prepared, ...]:
    found = []
    with contextlib.suppress(StorageError, OSError):  # as of a mount whose server is gone
        for uid in _named(directory):
            path = directory / f"{uid}.json"
            with contextlib.suppress(StorageError, OSError):
                if path.lstat().st_size <= _LARGEST and (content := files.read(path)) is not None:
                    prepared = decode(content, str(path))
                    if prepared.uid == uid:
                        found.append(prepared)
    return tuple(found)


def _named(directory: Path) -> Sequence[str]:
    return named_uids(directory) if directory.is_dir() else ()
