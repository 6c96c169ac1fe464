"""NodePrepareResources and NodeUnprepareResources, as far as they are not gRPC."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice, checked_uid
from hami_kubeletplugin.api.errors import ClaimError, HamiError
from hami_kubeletplugin.api.names import cdi_kind
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.reader import ClaimApi, ClaimReader
from hami_kubeletplugin.gpu.edits import DriverEditsSource
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.observe.log import bound_contextvars, get_logger

log = get_logger()
T = TypeVar("T")


class Claims:
    """The claims of this node; implements `api.claim.ClaimService`.

    Claims of a call are worked on at the same time, each under its own lock and with its own answer.

    Args:
        api: The API server.
        inventory: The GPUs as they are known now; raises a HardwareError while there is no driver.
        edits: The driver's edits.
        state: The claims' files.
        driver: Our driver name.
        node: Our node name.
        boot_id: Of the running kernel.
        timeout: Seconds for one call; below the kubelet's 45, so that the pod's event carries our words.
    """

    def __init__(
        self,
        *,
        api: ClaimApi,
        inventory: Callable[[], Awaitable[Inventory]],
        edits: DriverEditsSource,
        state: NodeFiles,
        driver: str,
        node: str,
        boot_id: str,
        timeout: float,
    ) -> None:
        self._api, self._inventory, self._edits, self._state = api, inventory, edits, state
        self._driver, self._node, self._boot_id, self._timeout = driver, node, boot_id, timeout
        self._locks = _Locks()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """Prepare claims; see `ClaimService.prepare`."""
        reader = ClaimReader(self._api, driver=self._driver, node=self._node, patience=self._timeout * 0.8)
        asked = frozenset(ref.uid for ref in refs)
        try:
            return await self._each(refs, lambda ref: self._prepare(ref, reader, asked), "prepare")
        finally:
            await reader.close()

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """Unprepare claims; see `ClaimService.unprepare`."""
        return await self._each(refs, self._unprepare, "unprepare")

    async def restore(self, uid: str) -> bool:
        """Make what a claim's record tells of be there again, after a reboot, a kill or a deletion by somebody.

        The record is read under the claim's lock, or a claim that is being unprepared would come back.

        Returns:
            Whether there is a record.

        Raises:
            RecordDamaged: The record can't be read.
            HamiError: What it tells of can't be made; the record stays.
        """
        async with self._locks.hold(uid):
            prepared = await asyncio.to_thread(self._state.load, uid)
            if prepared is not None:
                await self._put(replace(prepared, boot_id=self._boot_id))
        return prepared is not None

    async def drain(self) -> None:
        """Wait until no work on files is under way any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _prepare(self, ref: ClaimRef, reader: ClaimReader, asked: Container[str]) -> tuple[PreparedDevice, ...]:
        started = time.perf_counter()
        async with self._locks.hold(checked_uid(ref.uid)):
            prepared, neighbours = await self._plan_and_put(ref, reader)
        for other in neighbours:
            # The kubelet doesn't ask again for a claim that it holds for prepared, but that may have been planned when no
            # container used it together with this one. Looked for under its lock: one that is being unprepared stays away.
            if other.uid not in asked:
                async with self._locks.hold(other.uid):
                    if await asyncio.to_thread(self._state.knows, other.uid):
                        await self._plan_and_put(other, reader)
        milliseconds = round((time.perf_counter() - started) * 1000, 2)
        log.info("claim prepared", devices=[s.device for s in prepared.shares], milliseconds=milliseconds)
        return prepared.devices(cdi_kind(self._driver))

    async def _plan_and_put(self, ref: ClaimRef, reader: ClaimReader) -> tuple[Prepared, list[ClaimRef]]:
        """Bring the node's files in line with what the API server says; returns the plan and the claims beside this one.

        The caller holds the claim's lock.
        """
        claim = await reader.claim(ref)
        pods = await reader.pods(claim)
        neighbours = await reader.neighbours(claim, pods)
        prepared = plan(
            claim,
            pods=pods,
            neighbours=neighbours,
            gpus=(await self._inventory()).by_device_name(),
            boot_id=self._boot_id,
            driver=self._driver,
        )
        await self._put(prepared)
        return prepared, [other.ref for other in neighbours]

    async def _unprepare(self, ref: ClaimRef) -> None:
        checked_uid(ref.uid)
        async with self._locks.hold(ref.uid):
            await _to_the_end(asyncio.to_thread(self._state.take_away, ref.uid))
        log.info("claim unprepared")

    async def _put(self, prepared: Prepared) -> None:
        gpus = (await self._inventory()).by_uuid()
        edits = await self._edits.edits({share.uuid for share in prepared.shares})
        await _to_the_end(asyncio.to_thread(self._state.put, prepared, gpus, edits))

    async def _each(
        self, refs: Sequence[ClaimRef], work: Callable[[ClaimRef], Coroutine[Any, Any, T]], verb: str
    ) -> dict[str, T | HamiError]:
        """Run `work` for every claim, and answer for every claim in time."""

        async def named(ref: ClaimRef) -> T:
            with bound_contextvars(claim=ref.full_name, claim_uid=ref.uid):
                return await work(ref)

        tasks = {ref: asyncio.create_task(named(ref)) for ref in dict.fromkeys(refs)}
        for task in tasks.values():  # one that is given up may still wait for its thread
            self._tasks.add(task)
            task.add_done_callback(self._done)
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=self._timeout)
        finally:
            for task in tasks.values():
                task.cancel()
        return {ref.uid: self._answer(ref, task, verb) for ref, task in tasks.items()}

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody asks for it when the call itself was given up

    def _answer(self, ref: ClaimRef, task: "asyncio.Task[T]", verb: str) -> T | HamiError:
        error: HamiError
        if not task.done() or task.cancelled():
            error = ClaimError(
                f"{ref}: {verb} did not end within {self._timeout:g} s and is given up; it will be tried again. "
                "The API server, the disk or nvidia-ctk is slow: see the log of the daemon on this node"
            )
        elif isinstance(failure := task.exception(), HamiError):
            error = failure
        elif failure is not None:
            log.error("unexpected error", verb=verb, claim=ref.full_name, claim_uid=ref.uid, exc_info=failure)
            error = ClaimError(f"{ref}: {verb} failed by a fault of the driver: {type(failure).__name__}: {failure}")
        else:
            return task.result()
        log.warning("claim failed", verb=verb, claim=ref.full_name, claim_uid=ref.uid, error=str(error))
        return error


async def _to_the_end(thread: Coroutine[Any, Any, T]) -> T:
    """Wait for a thread even when cancelled: file operations can't be called back, and the claim's lock must cover them."""
    task = asyncio.ensure_future(thread)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            log.warning("failed after it had been given up", error=str(error))
        raise


class _Locks:
    """One lock per claim, kept only while somebody needs it."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def hold(self, uid: str) -> AsyncIterator[None]:
        """Hold a claim's lock."""
        lock = self._locks.setdefault(uid, asyncio.Lock())
        self._users[uid] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[uid] -= 1
            if not self._users[uid]:
                del self._users[uid], self._locks[uid]
