"""Looks at the hardware again and again: drivers are installed, reloaded and removed while the daemon runs.

A GPU that was there is not forgotten because it fails. If the driver lists it, and it can't be read any more, it stays, as lost:
its pods hear of it, and it comes back by itself. If the driver doesn't list it any more, it leaves, unless a prepared claim has
it: then it stays, as lost, until that claim is gone. If the driver itself is gone, nothing is known of any GPU.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, StorageError
from hami_kubeletplugin.gpu.conditions import Condition, What
from hami_kubeletplugin.gpu.known import KnownGpus
from hami_kubeletplugin.gpu.model import Gpu, GpuSource, Inventory
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 5.0
"""Seconds until the second look for a driver that is missing; doubled each time, up to this."""


def with_lost(found: Inventory, before: Inventory | None, in_use: Collection[str]) -> Inventory:
    """What was found, and what was there before and is lost. Pure.

    Args:
        found: By the last look.
        before: What was known until then.
        in_use: UUIDs of the GPUs that prepared claims have.
    """
    here = found.by_uuid()
    unread = {gpu.uuid: gpu.error for gpu in found.unread}
    lost: dict[str, str] = {}
    for gpu in before.gpus if before else ():
        if gpu.uuid in here:
            continue
        # One whose identity can't be read may be any of those that are missing.
        reason = unread.get(gpu.uuid) or unread.get(None)
        if reason is None and gpu.uuid in in_use:
            reason = "the driver doesn't list it any more"
        if reason is not None:
            here[gpu.uuid] = gpu
            lost[gpu.uuid] = reason
    gpus = sorted(here.values(), key=lambda gpu: gpu.bus_order) if lost else found.gpus
    return replace(found, gpus=tuple(gpus), lost=tuple(sorted(lost.items())))


def lost_conditions(inventory: Inventory | None) -> Mapping[str, tuple[Condition, ...]]:
    """What is to be said of the GPUs that are lost, by UUID."""
    now = time.time()
    return {
        uuid: (
            Condition(
                What.LOST,
                f"the GPU can't be read any more: {reason}; look at `dmesg`, drain the node and reboot it",
                since=now,
            ),
        )
        for uuid, reason in (inventory.lost if inventory else ())
    }


class HardwareWatch:
    """What is known of this node's GPUs.

    Args:
        source: Where they come from.
        interval: Seconds between looks.
        on_change: Called with the new inventory, or None when the driver went away.
        in_use: UUIDs of the GPUs that prepared claims have; called in a thread, and may raise a StorageError.
        known: Where the GPUs are kept for a daemon that is started anew; None: nowhere.
        sleep: Replaced in tests.
    """

    def __init__(
        self,
        source: GpuSource,
        *,
        interval: float,
        on_change: Callable[[Inventory | None], None],
        in_use: Callable[[], Collection[str]] = frozenset,
        known: KnownGpus | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source, self._interval, self._on_change, self._sleep = source, interval, on_change, sleep
        self._in_use, self._known = in_use, known
        self._before: Inventory | None = None
        self._woken = asyncio.Event()
        self._inventory: Inventory | None = None
        self._failure: HardwareError | None = None
        self._told = Once[str]()
        self._looked = threading.Event()
        self._offered = False

    def inventory(self, deadline: float) -> Inventory:
        """The GPUs as seen last; waits for the first look. For threads.

        Args:
            deadline: By the monotonic clock.

        Raises:
            HardwareError: There are none to be seen, with the reason.
        """
        self._looked.wait(max(deadline - time.monotonic(), 0))
        if self._inventory is None:
            failure = self._failure or DriverMissing("the GPUs of this node are not known yet")
            raise failure.with_traceback(None)  # one error for many threads: it must not grow
        return self._inventory

    def wake(self) -> None:
        """Look again now: something has changed. In the event loop."""
        self._woken.set()

    def by_uuid(self) -> Mapping[str, Gpu]:
        """The GPUs as seen last; none while none are known. Never waits."""
        return self._inventory.by_uuid() if self._inventory else {}

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """The GPUs as seen last, none while there is no driver; None while that is not known. Never waits."""
        if self._inventory is not None:
            return tuple(gpu.uuid for gpu in self._inventory.gpus)
        return () if isinstance(self._failure, DriverMissing) else None

    async def peek(self, source: GpuSource) -> None:
        """Look once before `run`, and neither tell nor write anything.

        Args:
            source: One that writes nothing.
        """
        try:
            self._inventory, self._failure = await source.discover(), None
        except HardwareError as error:
            self._failure = error
        self._looked.set()

    async def run(self) -> None:
        """Look until cancelled."""
        if self._known:
            with contextlib.suppress(StorageError):  # then they are found as if for the first time
                self._before = await asyncio.to_thread(self._known.read)
        delay = FIRST_DELAY
        while True:
            await self._look()
            missing = self._inventory is None
            await self._pause(min(delay, self._interval) if missing else self._interval)
            delay = min(2 * delay, LONGEST_DELAY) if missing else FIRST_DELAY

    async def _pause(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(wait) for wait in (self._sleep(seconds), self._woken.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._woken.clear()

    async def _look(self) -> None:
        try:
            found = await self._source.discover()
            inventory: Inventory | None = with_lost(found, self._before or self._inventory, await self._used())
            self._before = None
            failure: HardwareError | None = None
        except HardwareError as error:
            failure = error
            # A call that fails says nothing about the GPUs: what was known stays, as running containers do.
            inventory = None if isinstance(error, DriverMissing) else self._inventory
        if failure is None:
            self._told.ended("GPUs")
        elif self._told.is_new("GPUs", str(failure)):
            meanwhile = "nothing is published" if isinstance(failure, DriverMissing) else "what is published stays"
            log.warning("GPUs can't be read, trying again", meanwhile=meanwhile, error=str(failure))
        known = inventory is not None or isinstance(failure, DriverMissing)
        changed = inventory != self._inventory or (inventory is not None and not self._offered)
        self._inventory, self._failure = inventory, failure
        self._looked.set()
        if changed and inventory and self._known:
            with contextlib.suppress(StorageError):  # what needs the disk more says it
                await asyncio.to_thread(self._known.write, inventory)
        if changed:
            gpus, lost = (inventory.by_uuid(), dict(inventory.lost)) if inventory else ({}, {})
            log.info(
                "GPUs found",
                gpus=[gpu.device_name for gpu in gpus.values()],
                **({"lost": [gpus[uuid].device_name for uuid in lost]} if lost else {}),
            )
        if changed or (known and not self._offered):
            # Not before anything is known: what an earlier run published stays until then.
            self._offered = True
            self._on_change(inventory)

    async def _used(self) -> Collection[str]:
        try:
            return await asyncio.to_thread(self._in_use)
        except StorageError:
            # Not known: none that was there goes away meanwhile.
            before = self._before or self._inventory
            return before.by_uuid() if before else ()
