"""Looks at the hardware again and again: drivers are installed, reloaded and removed while the daemon runs."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError
from hami_kubeletplugin.gpu.model import GpuSource, Inventory
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

FIRST_DELAY = 1.0
"""Seconds until the second look for a driver that is missing; doubled each time, up to the normal interval."""


class HardwareWatch:
    """What is known of this node's GPUs.

    Args:
        source: Where they come from.
        interval: Seconds between looks.
        on_change: Called with the new inventory, or None when the driver went away.
        sleep: Replaced in tests.
    """

    def __init__(
        self,
        source: GpuSource,
        *,
        interval: float,
        on_change: Callable[[Inventory | None], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source, self._interval, self._on_change, self._sleep = source, interval, on_change, sleep
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

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """The GPUs as seen last, none while there is no driver; None while that is not known. Never waits."""
        if self._inventory is not None:
            return tuple(gpu.uuid for gpu in self._inventory.gpus)
        return () if isinstance(self._failure, DriverMissing) else None

    async def run(self) -> None:
        """Look until cancelled."""
        delay = FIRST_DELAY
        while True:
            await self._look()
            missing = self._inventory is None
            await self._sleep(min(delay, self._interval) if missing else self._interval)
            delay = min(2 * delay, self._interval) if missing else FIRST_DELAY

    async def _look(self) -> None:
        try:
            inventory: Inventory | None = await self._source.discover()
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
        changed = inventory != self._inventory
        self._inventory, self._failure = inventory, failure
        self._looked.set()
        if changed:
            log.info("GPUs found", gpus=[gpu.device_name for gpu in inventory.gpus] if inventory else [])
        if changed or (known and not self._offered):
            # Not before anything is known: what an earlier run published stays until then.
            self._offered = True
            self._on_change(inventory)
