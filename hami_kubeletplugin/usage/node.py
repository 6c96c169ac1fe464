"""What this node tells of the use of its GPUs: records, processes and regions. Everything here blocks."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir, use_name
from hami_kubeletplugin.hamicore.contract import CACHE_FILE
from hami_kubeletplugin.hamicore.directories import OPEN
from hami_kubeletplugin.hamicore.host import Installed
from hami_kubeletplugin.hamicore.processes import PROC, Look, Owner, Process, UseKey, look, own_pid, owner
from hami_kubeletplugin.hamicore.reading import Content, read_region
from hami_kubeletplugin.hamicore.region import Layout
from hami_kubeletplugin.hamicore.storage import stored
from hami_kubeletplugin.hamicore.versions import layout_of
from hami_kubeletplugin.usage.joined import Files, Found
from hami_kubeletplugin.usage.sample import Sample

_PIDS: Final = 0.1
"""Seconds of CPU time for what new processes of one container call themselves, at each look. The kernel tells it behind the up to
65536 groups of a process, which takes 40 ms; else less than a tenth of one."""
_ALL_PIDS: Final = 1.0
"""Those of all containers; who has few new ones comes first."""

_Born = tuple[int, int]
"""What a process keeps for life, whatever it calls itself: when it started, and its PID."""


class _File(NamedTuple):
    """Where the region of a use is: as a file of ours, or in a directory in which the library makes it."""

    key: UseKey
    use: Use
    path: Path
    is_ours: bool


class _Known(NamedTuple):
    """A record as it was read, and what follows from it."""

    record: Path
    fingerprint: files.Fingerprint | None
    claim: Prepared
    files: tuple[_File, ...]


class OnNode:
    """Looks at it again and again, and keeps what doesn't change. Used by one thread at a time.

    Args:
        records: Claim records.
        hami_dir: HAMi-core's directory on the host.
        installed: Gives what is known of the installed library.
        proc: Where procfs is.
    """

    def __init__(
        self, records: Records, hami_dir: Path, installed: Callable[[], Installed | None], proc: Path = PROC
    ) -> None:
        self._records, self._hami_dir, self._installed, self._proc = records, hami_dir, installed, proc
        self._claims: dict[str, _Known] = {}
        self._files_of: Files = {}
        self._own_pids: dict[_Born, int] = {}

    def look(self, sample: Sample | None) -> Found:
        """All that is found now.

        Args:
            sample: NVML's answers, whose processes are to be known.

        Raises:
            StorageError: Records can't be read.
            OSError: /proc can't be read.
        """
        known = self._prepared()
        if [*known.values()] != [*self._claims.values()]:  # mostly the very same ones, which costs nothing to see
            self._claims, self._files_of = known, files_of(each.claim for each in known.values())
        uses = {file.key: (each.claim, file) for each in known.values() for file in each.files}
        seen = look(self._hami_dir, self._proc)
        here = {key: processes for key, processes in seen.processes.items() if key in uses}
        unseen = frozenset(key for key, (claim, _) in uses.items() if _is_unseen(seen, claim)) | self._learn(here)
        regions: dict[UseKey, Content | None] = {}
        unreadable: dict[UseKey, str] = {}
        for key, (claim, file) in uses.items():
            pids = None if key in unseen else {self._own_pids[_born(process)] for process in here.get(key, ())}
            try:
                regions[key] = _region(file, self._layout(claim), pids)
            except StorageError as error:
                unreadable[key] = str(error)
        processes = {key: frozenset(process.pid for process in all_) for key, all_ in here.items()}
        return Found(
            at=time.time(),
            claims=[each.claim for each in known.values()],
            files=self._files_of,
            regions=regions,
            unreadable=unreadable,
            processes=processes,
            visible=seen.others,
            started={key: all_[0].started for key, all_ in here.items()},
            unseen=unseen,
            owners=self._owners(sample, frozenset[int]().union(*processes.values())),
        )

    def _prepared(self) -> dict[str, _Known]:
        """All that can be used, by UID; a record is read when it is new, or another one."""
        found = {}
        for uid in self._records.uids():
            before = self._claims.get(uid)
            path = before.record if before else self._records.path(uid)
            print_ = files.fingerprint(path)
            if before is not None and before.fingerprint == print_:
                found[uid] = before
                continue
            try:
                claim = self._records.load(uid)
            except StorageError:  # recovery says so
                continue
            if claim is not None:
                found[uid] = _Known(path, print_, claim, self._files(claim))
        return found

    def _files(self, claim: Prepared) -> tuple[_File, ...]:
        folder = ClaimDir(self._hami_dir, claim.uid)
        ours = [_File(UseKey(claim.uid, n), use, folder.region(n), True) for n, use in stored(claim, "region").items()]
        theirs = [
            _File(UseKey(claim.uid, n), use, folder.cache(n), False) for n, use in stored(claim, "directory").items()
        ]
        return (*ours, *theirs)

    def _learn(self, containers: Mapping[UseKey, Collection[Process]]) -> frozenset[UseKey]:
        """Learn what processes call themselves, which they do as long as they live; gives those of which that takes too long."""
        before, self._own_pids = self._own_pids, {}
        new: dict[UseKey, list[Process]] = {key: [] for key in containers}
        for key, process in ((key, each) for key, processes in containers.items() for each in processes):
            if (own := before.get(_born(process))) is None:
                new[key].append(process)
            else:
                self._own_pids[_born(process)] = own
        left, unknown = _ALL_PIDS, set()
        for key, processes in sorted(new.items(), key=lambda item: len(item[1])):
            start = time.thread_time()
            for process in processes:
                if time.thread_time() >= start + min(_PIDS, left):
                    unknown.add(key)
                    break
                self._own_pids[_born(process)] = own_pid(process.pid, self._proc)
            left -= time.thread_time() - start
        return frozenset(unknown)

    def _layout(self, claim: Prepared) -> Layout | None:
        """Of the library that the claim's containers have."""
        installed = self._installed()
        if installed is not None and installed.renewal is not None and installed.version == claim.library:
            return installed.renewal.layout
        return layout_of(claim.library)

    def _owners(self, sample: Sample | None, known: frozenset[int]) -> Mapping[int, Owner]:
        pids = {pid for processes in (sample.processes if sample else {}).values() for pid in processes}
        return {pid: owner(pid, self._proc) for pid in pids - known}


def _region(file: _File, layout: Layout | None, pids: set[int] | None) -> Content | None:
    gpus = len(file.use.gpus)
    if file.is_ours:
        return read_region(file.path, layout=layout, gpus=gpus, pids=pids)
    try:
        # Any uid of the container may write in there, so nothing in it is followed.
        handle = os.open(file.path, OPEN)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{file.path}: can't be read: {error.strerror}") from error
    try:
        return read_region(Path(CACHE_FILE), layout=layout, gpus=gpus, pids=pids, folder=handle)
    finally:
        os.close(handle)


def _born(process: Process) -> _Born:
    return process.started, process.pid


def _is_unseen(seen: Look, claim: Prepared) -> bool:
    return not seen.others or not seen.crowded.isdisjoint(pod.uid for pod in claim.pods)


def files_of(claims: Iterable[Prepared]) -> Files:
    """Whose files the containers of each use have, by its claim's UID and index; not there: they have none. Pure.

    A container that uses several claims has the files of one of them.
    """
    known = list(claims)
    own = {
        (claim.uid, name): use
        for claim in known
        for kind in ("region", "directory")
        for name, use in stored(claim, kind).items()
    }
    shared = {(uid, use.containers): UseKey(uid, name) for (uid, name), use in own.items()}
    found = {}
    for claim in known:
        for index, use in enumerate(claim.uses):
            if (claim.uid, use_name(index)) in own:
                found[claim.uid, index] = UseKey(claim.uid, use_name(index))
            elif use.containers and (key := shared.get((use.owner, use.containers))):
                found[claim.uid, index] = key
    return found
