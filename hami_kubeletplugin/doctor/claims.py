"""Records, CDI specs and claims, compared; and what is left of claims that are gone."""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import ApiError, RecordTooNew, StorageError
from hami_kubeletplugin.api.fields import at
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.doctor.cluster import Cluster
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.hamicore.mounts import is_mounted

_MOST: Final = 1024
_NAMED: Final = 20
"""Findings of one kind; a node has some hundred claims at most."""
_RESTART: Final = (
    "kubectl -n hami-system delete pod -l app.kubernetes.io/name=hami-kubeletplugin --field-selector spec.nodeName="
)


def claims(place: Place, cluster: Cluster) -> Iterator[Finding]:
    """What is prepared, and whether all that belongs to it is there and agrees."""
    settings = place.settings
    found = list(islice(place.records.all(), _MOST))
    prepared = [each for each in found if isinstance(each, Prepared)]
    specs = SpecFiles(settings.cdi_dir, settings.driver_name)
    uids = set(place.records.uids())
    yield from damaged(each for each in found if isinstance(each, StorageError))
    there = specs.uids()
    yield from specs_judged(
        prepared,
        uids,
        {uid: _devices(specs.path(uid)) for uid in there[:_MOST]},
        lambda uid: str(specs.path(uid)),
        settings.node_name,
    )
    if prepared:
        yield from known_judged(prepared, cluster.answers().claims)


def damaged(errors: Iterator[StorageError]) -> Iterator[Finding]:
    """Records that can't be used. Pure."""
    for error in islice(errors, _NAMED):
        newer = isinstance(error, RecordTooNew)
        yield Finding(
            check="claims",
            level=Level.warning if newer else Level.error,
            what=str(error),
            why="The daemon makes it anew from the claim, if that is still there; until then its room counts as free for nobody.",
            mend="# go on with the newer version"
            if newer
            else "kubectl get resourceclaims -A  # and see that the daemon runs",
        )


def specs_judged(
    prepared: Sequence[Prepared],
    uids: Collection[str],
    specs: Mapping[str, Collection[str] | str],
    path: Any,
    node: str,
) -> Iterator[Finding]:
    """Records without specs, specs without records, and specs of something else. Pure.

    Args:
        prepared: Records that can be used.
        uids: Of all records.
        specs: Names of the CDI devices by UID, or why they can't be told.
        path: Gives the file of a UID's spec.
        node: This node.
    """
    wrong = 0
    for each in prepared:
        spec = specs.get(each.uid)
        wanted = {each.cdi_device(share) for share in each.shares}
        if spec is None:
            what = f"{each.ref} is prepared, and its CDI spec {path(each.uid)} is not there"
        elif isinstance(spec, str):
            what = f"the CDI spec of {each.ref}, {path(each.uid)}, can't be used: {spec}"
        elif wanted - set(spec):
            what = (
                f"the CDI spec of {each.ref}, {path(each.uid)}, lacks devices of its record: {min(wanted - set(spec))}"
            )
        else:
            continue
        wrong += 1
        if wrong <= _NAMED:
            yield Finding(
                check="claims",
                level=Level.error,
                what=what,
                why="A container of it can't start again. A running daemon makes the spec anew within seconds.",
                mend=f"{_RESTART}{node}",
            )
    strays = sorted(specs.keys() - set(uids))
    for uid in strays[:_NAMED]:
        yield Finding(
            check="claims",
            level=Level.warning,
            what=f"{path(uid)} is a CDI spec of a claim that has no record",
            why="The daemon adopts or removes it; without one it stays, and a container could still be started with it.",
            mend=f"{_RESTART}{node}",
        )
    if not wrong and not strays:
        yield Finding(
            check="claims",
            level=Level.ok,
            what=f"{len(prepared)} claims are prepared, each with its record and CDI spec",
        )


def known_judged(prepared: Sequence[Prepared], known: Mapping[str, str | ApiError | None]) -> Iterator[Finding]:
    """Claims that are gone, or are another one of the same name. Pure.

    Args:
        prepared: Records.
        known: See `Answers.claims`.
    """
    gone = [each for each in prepared if each.uid in known and known[each.uid] is None]
    other = [each for each in prepared if isinstance(uid := known.get(each.uid), str) and uid != each.uid]
    for each in [*gone, *other][:_NAMED]:
        is_ = "is not there any more" if each in gone else f"is another one now, with UID {known[each.uid]}"
        yield Finding(
            check="claims",
            level=Level.warning,
            what=f"{each.ref} (UID {each.uid}) is prepared here and {is_}",
            why="Its share of the GPU stays taken until the daemon unprepares it, --stale-grace after it has seen that.",
            mend="hami-kubeletplugin claims; journalctl -u kubelet | grep -i unprepare | tail",
        )
    failed = [error for error in known.values() if isinstance(error, ApiError)]
    if failed:
        yield Finding(check="claims", level=Level.unknown, what=str(failed[0]))


def leftovers(place: Place) -> Iterator[Finding]:
    """Folders and mounts of claims that have neither record nor spec."""
    settings = place.settings
    cache = settings.hami_dir / "cache"
    folders = _folders(cache)  # before the records: a prepare writes its record first
    known = {*place.records.uids(), *SpecFiles(settings.cdi_dir, settings.driver_name).uids()}
    entries = {name: is_mounted(cache / name) for name in folders if name not in known}
    yield from leftovers_judged(cache, entries)


def leftovers_judged(cache: Path, left: Mapping[str, bool]) -> Iterator[Finding]:
    """What is left. Pure.

    Args:
        cache: The folder.
        left: Names in it that belong to no claim, and whether something is mounted there.
    """
    for name, mounted in sorted(left.items())[:_NAMED]:
        yield Finding(
            check="leftovers",
            level=Level.hint,
            what=f"{cache / name} is of a claim that is not prepared any more"
            + (", and still mounted" if mounted else ""),
            why="It takes room. The daemon removes it when it starts; what resists, or is another driver name's, stays.",
            mend=(f"umount {cache / name}; " if mounted else "") + f"rm -r {cache / name}",
        )
    if not left:
        yield Finding(check="leftovers", level=Level.ok, what=f"{cache} has nothing of claims that are gone")


def _devices(path: Path) -> Collection[str] | str:
    """Names of a spec's devices, or why there are none."""
    try:
        spec = json.loads(files.read(path) or b"")
        return [str(at(device, "name")) for device in spec["devices"]]
    except (StorageError, ValueError, KeyError, TypeError, RecursionError) as error:
        return str(error) if isinstance(error, StorageError) else "it is no CDI spec"


def _folders(cache: Path) -> list[str]:
    try:
        with os.scandir(cache) as entries:
            found = [each.name for each in islice(entries, _MOST) if each.is_dir(follow_symlinks=False)]
        return [name for name in found if not name.startswith(".")]
    except OSError:
        return []
