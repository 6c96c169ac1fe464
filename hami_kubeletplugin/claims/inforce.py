"""Whether limits are in force in running containers: whether any process there has loaded HAMi-core.

Static programs and those of musl images don't read the preload file, and nobody sees that before they run. So the processes are
looked at now and then, and a container in which none had the library at two looks is reported, in the log and as an event of
its pod. One process that has it is enough: a static `init` beside it is as usual as it is harmless.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from hami_kubeletplugin.api.errors import ApiConflict, HamiError, StorageError
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared, Use, use_name
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.hamicore.processes import PROC, Process, UseKey, has_loaded, look
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

REASON: Final = "GpuLimitNotInForce"
_LOOKS: Final = 2
"""At the first one a container's programs may be just about to start."""
_NAMED: Final = 3

Json = Mapping[str, Any]


class EventApi(Protocol):
    """What a report needs of the API server."""

    async def get_pod(self, namespace: str, name: str, *, cached: bool = False) -> Json:
        """GET a Pod; raises an ApiError."""

    async def create_event(self, obj: Json) -> Json:
        """POST a core/v1 Event; raises an ApiError."""


class Loaded(NamedTuple):
    """How many processes a container has, and how many of them have HAMi-core loaded."""

    processes: int
    loaded: int


def loaded_now(claims: Iterable[Prepared], hami_dir: Path, proc: Path = PROC) -> Mapping[tuple[str, str, int], Loaded]:
    """What runs of the uses of these claims, by namespace, name and index of use; only what can be seen. Blocks.

    A container that uses several claims has the files of one of them; it is shown for all.
    """
    found = look(hami_dir, proc).processes
    counts = {place: Loaded(len(all_), sum(bool(has_loaded(p, proc)) for p in all_)) for place, all_ in found.items()}
    known = list(claims)
    own = {place: use for claim in known for place, use in _uses(claim).items() if place in counts}
    shared = {(place.claim_uid, use.containers): counts[place] for place, use in own.items() if use.containers}
    return {
        (claim.namespace, claim.name, index): loaded
        for claim in known
        for index, use in enumerate(claim.uses)
        if (loaded := counts.get(UseKey(claim.uid, use_name(index))) or shared.get((use.owner, use.containers)))
    }


@dataclass(frozen=True, slots=True)
class _Bare:
    """A running container in which no process has been seen with HAMi-core.

    Attributes:
        started: When its first process did.
        looks: At so many.
        processes: At the last one.
    """

    started: int
    looks: int
    processes: tuple[Process, ...]


class _Container(NamedTuple):
    """A container, and the field of its pod's `spec` that it is in."""

    pod: PodRef
    name: str
    field: str


class InForce:
    """Looks whether limits are in force, and reports where they are not.

    Args:
        records: Claim records.
        api: The API server.
        hami_dir: HAMi-core's directory on the host.
        driver: Our driver name.
        node: Our node name.
        proc: Where procfs is.
    """

    def __init__(
        self, *, records: Records, api: EventApi, hami_dir: Path, driver: str, node: str, proc: Path = PROC
    ) -> None:
        self._records, self._api, self._hami_dir, self._proc = records, api, hami_dir, proc
        self._driver, self._node = driver, node
        self.not_limited: int | None = None
        """Running containers in which no process had HAMi-core at the last looks; None while that can't be told."""
        self._loaded: dict[UseKey, int] = {}
        self._bare: dict[UseKey, _Bare] = {}
        self._logged: dict[UseKey, int] = {}
        self._done: dict[UseKey, int] = {}
        self._told: dict[str, set[tuple[str, str]]] = {}
        self._blind = False
        self._failure = ""

    async def run(self, interval: float) -> None:
        """Look every `interval` seconds until cancelled."""
        while True:
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
        self._told = {uid: told for uid, told in self._told.items() if uid in uids}
        if not await asyncio.to_thread(self._look):
            self.not_limited = None
            if uids and not self._blind:
                self._blind = True
                log.warning(
                    "can't see whether GPU containers have loaded HAMi-core: /proc shows none of their processes; "
                    "set hostPID: true in the DaemonSet"
                )
            return
        for place in self._logged.keys() & self._loaded.keys():
            log.info("a container has loaded HAMi-core after all", claim_uid=place.claim_uid, use=place.use)
        self._logged = {place: started for place, started in self._logged.items() if place in self._bare}
        self._done = {place: started for place, started in self._done.items() if place in self._bare}
        overdue = [place for place, bare in self._bare.items() if bare.looks >= _LOOKS]
        found = await asyncio.to_thread(self._known, overdue)
        self.not_limited = len(found)
        failures = [error for place, (claim, use) in found.items() if (error := await self._report(place, claim, use))]
        if failures:
            self._fail("an event that limits are not in force can't be written; it is tried again", failures[0])
        else:
            self._failure = ""

    def _look(self) -> bool:
        """Bring `_loaded` and `_bare` up to date; False if other containers can't be seen."""
        now = look(self._hami_dir, self._proc)
        loaded, bare = {}, {}
        for place, processes in now.processes.items():
            # Files belong to one container at a time, and its first process lives as long as it does: another first one is
            # another container, or the same one started again.
            started, before = processes[0].started, self._bare.get(place)
            if self._loaded.get(place) == started:
                loaded[place] = started
                continue
            answers = self._answers(processes)
            if True in answers:
                loaded[place] = started
            elif False in answers:
                looks = before.looks + 1 if before and before.started == started else 1
                bare[place] = _Bare(started, looks, processes)
        self._loaded, self._bare = loaded, bare
        return now.others

    def _answers(self, processes: Sequence[Process]) -> set[bool | None]:
        answers: set[bool | None] = set()
        for process in processes:
            answers.add(has_loaded(process, self._proc))
            if True in answers:
                break
        return answers

    def _known(self, places: Iterable[UseKey]) -> dict[UseKey, tuple[Prepared, Use]]:
        """Those that are ours, with what they belong to."""
        found = {}
        for place in places:
            with contextlib.suppress(StorageError):  # a damaged record: recovery says so
                claim = self._records.load(place.claim_uid)
                if claim is not None and (use := _uses(claim).get(place)):
                    found[place] = claim, use
        return found

    async def _report(self, place: UseKey, claim: Prepared, use: Use) -> HamiError | None:
        """Log once for each start, and have one event for each container of a pod; returns what kept it from being written."""
        bare = self._bare[place]
        names = _names(bare.processes)
        if self._logged.get(place) != bare.started:
            self._logged[place] = bare.started
            log.warning(
                "limits are not in force: no process of a GPU container has loaded HAMi-core",
                claim=claim.ref.full_name,
                claim_uid=claim.uid,
                containers=list(use.containers),
                processes=names,
            )
        if self._done.get(place) == bare.started:
            return None
        told = self._told.setdefault(claim.uid, set())
        try:
            container = await self._running(claim, use)
            if container is None:
                return None
            if (container.pod.uid, container.name) not in told:
                with contextlib.suppress(ApiConflict):  # written before we were started
                    await self._api.create_event(self._event(container, names))
        except HamiError as error:
            return error
        told.add((container.pod.uid, container.name))
        self._done[place] = bare.started
        return None

    async def _running(self, claim: Prepared, use: Use) -> _Container | None:
        """Which of the containers that have the use one after the other it is; None if that can't be told now."""
        found: list[_Container] = []
        for pod in claim.pods:
            names = {name for its, _, name in (each.partition("/") for each in use.containers) if its == pod.name}
            if names:
                running = _running(await self._api.get_pod(pod.namespace, pod.name, cached=True), pod)
                found += [container for container in running if container.name in names]
        return found[0] if len(found) == 1 else None

    def _event(self, container: _Container, processes: str) -> Json:
        pod = container.pod
        # Its name follows from what it is about: a daemon that is started anew meets the event instead of repeating it.
        digest = hashlib.sha256(f"{pod.uid}/{container.name}".encode()).hexdigest()[:16]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": pod.namespace, "name": f"{pod.name[:230].rstrip('.-')}.{digest}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "fieldPath": f"spec.{container.field}{{{container.name}}}",
            },
            "type": "Warning",
            "reason": REASON,
            "message": (
                f"Container {container.name} runs without its GPU limits: so far none of its processes ({processes}) has loaded "
                "HAMi-core. Its image may be on musl (Alpine), its programs static or in a root of their own (chroot), or "
                "something may be mounted over /etc/ld.so.preload. Use an image on glibc with dynamically linked programs, or "
                'give it whole GPUs (shares: "10000")'
            ),
            "source": {"component": self._driver, "host": self._node},
            "reportingComponent": self._driver,
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    def _fail(self, event: str, error: Exception) -> None:
        """Once per reason."""
        if str(error) != self._failure:
            self._failure = str(error)
            unexpected = None if isinstance(error, HamiError | OSError) else error
            log.warning(event, error=self._failure, exc_info=unexpected)


def _uses(claim: Prepared) -> dict[UseKey, Use]:
    """The uses that have files of this claim mounted."""
    stored = {**claim.stored("region"), **claim.stored("directory")}
    return {UseKey(claim.uid, name): use for name, use in stored.items()}


def _names(processes: Sequence[Process]) -> str:
    names = list(dict.fromkeys(process.name for process in processes))
    return ", ".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])


def _running(pod: Json, ref: PodRef) -> list[_Container]:
    """The containers that run now, unless it is another pod of that name."""
    if pod["metadata"].get("uid") != ref.uid:
        return []
    status = pod.get("status") or {}
    return [
        _Container(ref, str(one["name"]), field)
        for field, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses"))
        for one in status.get(statuses) or []
        if (one.get("state") or {}).get("running") is not None
    ]
