"""NodePrepareResources and NodeUnprepareResources, as far as they are not gRPC. Blocking: called in threads.

The way of a prepare, from the socket to the files, is plain code in one thread: asyncio costs a third more.
"""

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice, checked_uid
from hami_kubeletplugin.api.errors import HamiError, HardwareError, NotBegun, TimedOut
from hami_kubeletplugin.api.gpuconfig import ALL_RIGHTS, ClaimRights
from hami_kubeletplugin.api.names import cdi_kind
from hami_kubeletplugin.claims.calls import Calls
from hami_kubeletplugin.claims.locks import ClaimLocks
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import users
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.reader import ClaimApi, ClaimReader, PodGuess
from hami_kubeletplugin.gpu.edits import DriverEdits, DriverEditsSource
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts, Operation, Step
from hami_kubeletplugin.observe.log import bind_contextvars, bound_contextvars, get_logger

log = get_logger()
T = TypeVar("T")

WORKERS: Final = 64
"""Claims that are prepared at the same time; more wait their turn. Some that wait for the API server must not stop all others."""
_UNPREPARING: Final = 256
"""Claims that are unprepared at the same time, in threads of their own: what waits for the API server doesn't hold them up. One
whose own prepare does waits for that one; so many pods are hardly deleted while they start."""
_PATIENCE: Final = 0.8
"""Part of a call's time in which the API server is asked again if it is away, and the driver while it fails."""
_PAUSE: Final = 0.5
"""Seconds until the driver is asked again."""
_LAST_WAIT: Final = 2.0
"""Seconds that the end waits for work on files; what takes longer hangs, and what it leaves is mended by the next daemon."""


class ClaimListener(Protocol):
    """Hears of claims, from any thread, while their locks are held; must not wait."""

    def prepared(self, claim: Prepared, *, before: bool) -> None:
        """A claim is prepared; `before`: it was already, and its files have been seen to."""

    def unprepared(self, ref: ClaimRef) -> None:
        """A claim is prepared no more."""


class Claims:
    """The claims of this node; implements `api.claim.ClaimService`. Thread-safe.

    Claims of a call are worked on at the same time, each under its own lock and with its own answer.

    Args:
        api: The API server.
        inventory: The GPUs as they are known at a deadline; raises a HardwareError while there is no driver.
        edits: The driver's edits.
        files: What claims leave on the node.
        driver: Our driver name.
        node: Our node name.
        boot_id: Of the running kernel.
        rights: What claims may say about their own limits.
        changed: Called, from any thread, when a claim may have come or gone; must not wait.
        listener: Hears which.
        timeout: Seconds for one call; below the kubelet's 45, so that the pod's event carries our words.
        counts: Told of claims in work, and of its steps.
    """

    def __init__(
        self,
        *,
        api: ClaimApi,
        inventory: Callable[[float], Inventory],
        edits: DriverEditsSource,
        files: NodeFiles,
        driver: str,
        node: str,
        boot_id: str,
        timeout: float,
        rights: ClaimRights = ALL_RIGHTS,
        changed: Callable[[], None] | None = None,
        counts: Counts = UNCOUNTED,
        listener: ClaimListener | None = None,
    ) -> None:
        self._api, self._inventory, self._edits, self._files = api, inventory, edits, files
        self._driver, self._node, self._boot_id, self._timeout = driver, node, boot_id, timeout
        self._rights, self._changed, self._counts = rights, changed or (lambda: None), counts
        self._listener = listener
        self._locks, self._guess, self._closing = ClaimLocks(), PodGuess(), threading.Event()
        self._overtaken, self._arriving = WeakValueDictionary[str, threading.Event](), threading.Lock()
        self._preparing = Calls("prepare", WORKERS, timeout=timeout, at=self._locks.at, counts=counts)
        self._unpreparing = Calls("unprepare", _UNPREPARING, timeout=timeout, at=self._locks.at, counts=counts)

    def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """Prepare claims; see `ClaimService.prepare`."""
        now = time.monotonic()
        asked = frozenset(ref.uid for ref in refs)
        reader = ClaimReader(
            self._api,
            driver=self._driver,
            node=self._node,
            deadline=now + _PATIENCE * self._timeout,
            guess=self._guess,
            rights=self._rights,
            closing=self._closing,
        )
        deadline = now + self._timeout
        with self._arriving:
            overtaken = {uid: self._overtaken.setdefault(uid, threading.Event()) for uid in asked}

        def work(ref: ClaimRef) -> tuple[PreparedDevice, ...]:
            return self._prepare(ref, reader, asked, deadline, overtaken[ref.uid])

        return self._preparing.each(refs, work, deadline)

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """Unprepare claims; see `ClaimService.unprepare`."""
        deadline = time.monotonic() + self._timeout
        # A prepare that still waits for a thread may get it after us. The kubelet has hung up on it, or it would not unprepare.
        with self._arriving:
            for ref in refs:
                if (earlier := self._overtaken.pop(ref.uid, None)) is not None:
                    earlier.set()
        return self._unpreparing.each(refs, lambda ref: self._unprepare(ref, deadline), deadline)

    def restore(self, uid: str) -> bool:
        """Make what a claim's record tells of be there again, after a reboot, a kill or a deletion by somebody.

        The record is read under the claim's lock, or a claim that is being unprepared would come back.

        Returns:
            Whether there is a record.

        Raises:
            RecordDamaged: The record can't be read.
            HamiError: What it tells of can't be made; the record stays.
        """
        deadline = time.monotonic() + self._timeout
        with self._locks.hold(uid, deadline=deadline):
            prepared = self._files.load(uid)
            if prepared is not None:
                prepared = replace(prepared, boot_id=self._boot_id)
                gpus = self._inventory(deadline).by_uuid()
                # Not patiently: it has time, and others wait for it.
                if self._put(prepared, gpus, self._edits_of(prepared, deadline), deadline):
                    self._counts.repaired("cdi_spec")
                if self._listener is not None:
                    self._listener.prepared(prepared, before=True)
        return prepared is not None

    def is_intact(self, uid: str) -> bool:
        """Whether the files that a claim's containers start with are as they were made. Costs some `stat` calls."""
        return self._files.are_intact(uid)

    def hurry(self) -> None:
        """What is not known by now is not asked for again: neither the API server nor the driver is waited for any more."""
        self._closing.set()

    def close(self) -> None:
        """Wait until no work on files is under way any more, unless it hangs; none is taken from then on."""
        self.hurry()

        def end() -> None:
            for calls in (self._preparing, self._unpreparing):
                calls.end()

        ending = threading.Thread(target=end, name="claims end", daemon=True)
        ending.start()
        ending.join(_LAST_WAIT)
        for uid in self._locks.held():
            log.warning("work on a claim hangs and is left behind", claim_uid=uid, it_is=self._locks.at(uid))

    def _prepare(
        self, ref: ClaimRef, reader: ClaimReader, asked: Container[str], deadline: float, overtaken: threading.Event
    ) -> tuple[PreparedDevice, ...]:
        with self._locks.hold(checked_uid(ref.uid), deadline=deadline):
            if overtaken.is_set():
                raise NotBegun(f"{ref}: unprepared before its turn came; it is prepared when it is asked for again")
            prepared, neighbours = self._plan_and_put(ref, reader, deadline)
        for other in neighbours:
            # The kubelet doesn't ask again for a claim that it holds for prepared, but that may have been planned when no
            # container used it together with this one. Looked for under its lock: one that is being unprepared stays away.
            if other.uid not in asked:
                with self._locks.hold(other.uid, deadline=deadline):
                    if self._files.knows(other.uid):
                        # What it learns of its pods is said in its own lines, not in those of the claim that was asked for.
                        with bound_contextvars(claim=other.full_name, claim_uid=other.uid, pods=[], containers=[]):
                            self._plan_and_put(other, reader, deadline)
        bind_contextvars(devices=[share.device for share in prepared.shares])
        return prepared.devices(cdi_kind(self._driver))

    def _plan_and_put(self, ref: ClaimRef, reader: ClaimReader, deadline: float) -> tuple[Prepared, list[ClaimRef]]:
        """Bring the node's files in line with what the API server says; returns the plan and the claims beside this one.

        The caller holds the claim's lock.
        """
        with self._step("prepare", "read"):
            claim = reader.claim(ref)
            pods = reader.pods(claim)
            bind_contextvars(**users(claim.ref.name, pods))
            neighbours = reader.neighbours(claim, pods)
        with self._step("prepare", "plan"):
            prepared = plan(
                claim,
                pods=pods,
                neighbours=neighbours,
                gpus=self._patiently(lambda: self._inventory(deadline), deadline).by_device_name(),
                boot_id=self._boot_id,
                driver=self._driver,
            )
            edits = self._patiently(lambda: self._edits_of(prepared, deadline), deadline)
        with self._step("prepare", "write"):
            self._put(prepared, self._inventory(deadline).by_uuid(), edits, deadline)
        if self._listener is not None:
            self._listener.prepared(prepared, before=False)
        return prepared, [other.ref for other in neighbours]

    def _unprepare(self, ref: ClaimRef, deadline: float) -> None:
        with self._locks.hold(checked_uid(ref.uid), deadline=deadline), self._step("unprepare", "write"):
            self._files.take_away(ref.uid)
            if self._listener is not None:
                self._listener.unprepared(ref)
        self._changed()

    def _edits_of(self, prepared: Prepared, deadline: float) -> DriverEdits:
        return self._edits.edits({share.uuid for share in prepared.shares}, deadline=deadline)

    def _put(self, prepared: Prepared, gpus: Mapping[str, Gpu], edits: DriverEdits, deadline: float) -> bool:
        """Have the claim's files; whether its spec was not there as it has to be."""
        if time.monotonic() > deadline:
            # The kubelet has its answer; what it said there must stay true.
            raise TimedOut(f"{prepared.ref}: given up before anything was written")
        made = self._files.put(prepared, gpus, edits)
        self._changed()
        return made

    @contextmanager
    def _step(self, operation: Operation, step: Step) -> Iterator[None]:
        """Have it counted how long a step takes, also if it fails."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._counts.step(operation, step, time.perf_counter() - began)

    def _patiently(self, ask: Callable[[], T], deadline: float) -> T:
        """Ask again while the driver fails: at boot it may be some seconds late, and the kubelet comes back after 90 only."""
        now = time.monotonic()
        last = now + _PATIENCE * (deadline - now) - _PAUSE
        while True:
            try:
                return ask()
            except HardwareError:
                if time.monotonic() > last or self._closing.wait(_PAUSE):
                    raise
