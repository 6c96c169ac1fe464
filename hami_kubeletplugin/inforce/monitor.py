"""Whether limits are in force in running containers: whether any process there has loaded HAMi-core.

Static programs and those of musl images don't read the preload file, and nobody sees that before they run. So the processes are
looked at now and then, and a container in which none had the library at two looks is reported, in the log and as an event of
its pod.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import HamiError, StorageError
from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.hamicore.processes import PROC, Process, UseKey
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.inforce.running import uses_with_files
from hami_kubeletplugin.inforce.runtime import SETTING, open_configs
from hami_kubeletplugin.inforce.unlimited import Seen, look_again
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

_NAMED: Final = 3


class InForce:
    """Looks whether limits are in force, and reports where they are not.

    Args:
        records: Claim records.
        events: Writes Events of pods.
        hami_dir: HAMi-core's directory on the host.
        host_root: The host's root directory, as far as it can be seen.
        proc: Where procfs is.
    """

    def __init__(
        self, *, records: Records, events: PodEvents, hami_dir: Path, host_root: Path, proc: Path = PROC
    ) -> None:
        self._records, self._events, self._hami_dir, self._proc = records, events, hami_dir, proc
        self._host_root = host_root
        self.open_to_all: bool | None = None
        """Whether the NVIDIA runtime gives containers GPUs without a claim; None if no configuration of it can be seen."""
        self.not_limited: int | None = None
        """Running containers in which no process had HAMi-core at the last looks; None while that can't be told."""
        self.not_known: int | None = None
        """Claims of whose containers it can't be told, since they have more mounts or mappings than are read; None as above."""
        self._seen = Seen()
        self._logged = Once[UseKey]()
        self._unknown = Once[str]()
        self._done: dict[UseKey, int] = {}
        self._said = Once[str]()

    async def run(self, interval: float) -> None:
        """Look every `interval` seconds until cancelled."""
        while True:
            await self._check_runtime()
            await asyncio.sleep(interval)
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - what only reports must not be the end of the rest
                self._fail("whether limits are in force can't be told now", error)

    async def check(self) -> None:
        """One look, and reports on what it and the one before found.

        Raises:
            StorageError: Records can't be read.
            OSError: /proc can't be read.
        """
        uids = await asyncio.to_thread(self._records.uids)
        self._events.forget_all_but(uids)
        self._seen = seen = await asyncio.to_thread(look_again, self._seen, self._hami_dir, self._proc)
        if not seen.others:
            self.not_limited = self.not_known = None
            if uids and self._said.is_new("blind"):
                log.warning(
                    "can't see whether GPU containers have loaded HAMi-core: /proc shows none of their processes; "
                    "set hostPID: true in the DaemonSet"
                )
            return
        for key in seen.loaded:
            if self._logged.ended(key):
                log.info("a container has loaded HAMi-core after all", claim_uid=key.claim_uid, use=key.use)
        self._logged.keep(seen.unlimited.__contains__)
        self._done = {key: started for key, started in self._done.items() if key in seen.unlimited}
        found = await asyncio.to_thread(self._known, seen.overdue)
        self.not_limited = len(found)
        self.not_known = len(await asyncio.to_thread(self._say_unknown, uids, seen))
        failures = [error for key, (claim, use) in found.items() if (error := await self._report(key, claim, use))]
        if failures:
            self._fail("an event that limits are not in force can't be written; it is tried again", failures[0])
        else:
            self._said.ended("failure")

    async def _check_runtime(self) -> None:
        """Say it once while the NVIDIA runtime lets containers have GPUs without a claim."""
        configs = await asyncio.to_thread(open_configs, self._host_root)
        self.open_to_all = None if configs is None else bool(configs)
        if not configs:
            self._said.ended("open")
        elif self._said.is_new("open", tuple(configs)):
            log.warning(
                "the NVIDIA container runtime gives GPUs to every container that has it as its runtime and names them in "
                "NVIDIA_VISIBLE_DEVICES, without a claim and without limits; write this setting into its configuration",
                setting=f"{SETTING} = false",
                configurations=configs,
            )

    def _known(self, keys: Iterable[UseKey]) -> dict[UseKey, tuple[Prepared, Use]]:
        """Those that are ours, with what they belong to."""
        found = {}
        for key in keys:
            with contextlib.suppress(StorageError):  # a damaged record: recovery says so
                claim = self._records.load(key.claim_uid)
                if claim is not None and (use := uses_with_files(claim).get(key)):
                    found[key] = claim, use
        return found

    def _say_unknown(self, uids: Sequence[str], seen: Seen) -> set[str]:
        """Log once for each claim, of those that are prepared, that nothing can be told of; returns their UIDs."""
        found = {claim.uid: claim for claim, _ in self._known(seen.unknown).values()}
        for uid in uids if seen.crowded else ():
            with contextlib.suppress(StorageError):
                claim = self._records.load(uid)
                if claim is not None and seen.crowded.intersection(pod.uid for pod in claim.pods):
                    found[uid] = claim
        for uid, claim in found.items():
            if self._unknown.is_new(uid):
                log.warning(
                    "can't tell whether limits are in force: the containers of a claim have more mounts, mount name spaces or "
                    "mappings than are looked at; find out what they run",
                    claim=claim.ref.full_name,
                    claim_uid=uid,
                    pods=[f"{pod.namespace}/{pod.name}" for pod in claim.pods],
                )
        self._unknown.keep(found.__contains__)
        return set(found)

    async def _report(self, key: UseKey, claim: Prepared, use: Use) -> HamiError | None:
        """Log once for each start, and have the Event; returns what kept it from being written."""
        container = self._seen.unlimited[key]
        names = _names(container.processes)
        if self._logged.is_new(key, container.started):
            log.warning(
                "limits are not in force: no process of a GPU container has loaded HAMi-core",
                claim=claim.ref.full_name,
                claim_uid=claim.uid,
                containers=list(use.containers),
                processes=names,
            )
        if self._done.get(key) != container.started:
            try:
                if await self._events.write(claim, use, _message(names)):
                    self._done[key] = container.started
            except HamiError as error:
                return error
        return None

    def _fail(self, event: str, error: Exception) -> None:
        if self._said.is_new("failure", str(error)):
            unexpected = None if isinstance(error, HamiError | OSError) else error
            log.warning(event, error=str(error), exc_info=unexpected)


def _message(processes: str) -> str:
    return (
        f"Container {{container}} runs without its GPU limits: so far none of its processes ({processes}) has loaded "
        "HAMi-core. Its image may be on musl (Alpine), its programs static or in a root of their own (chroot), or "
        "something may be mounted over /etc/ld.so.preload. Use an image on glibc with dynamically linked programs, or "
        'give it whole GPUs (shares: "10000")'
    )


def _names(processes: Sequence[Process]) -> str:
    names = list(dict.fromkeys(process.name for process in processes))
    return ", ".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])
