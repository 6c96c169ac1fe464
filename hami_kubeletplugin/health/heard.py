"""Who hears of conditions of GPUs: slices, the kubelet, Events and the log, and a file. All of the same, at a bounded pace."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.health.events import ConditionEvents
from hami_kubeletplugin.health.kept import Keeper
from hami_kubeletplugin.observe.paced import Paced

PACE: Final = 2.0
"""Seconds between two times that slices and people are told: after each write of a slice the scheduler tries all waiting pods."""
EARLIER: Final = 60.0
"""Seconds for which an earlier run's conditions hold whose source says nothing in this one."""


class Heard:
    """Tells all of them.

    Args:
        conditions: The board.
        events: Writes Events.
        keeper: Keeps the file.
        devices: Names of devices by UUID, as far as they are known.
        tell: Has slices and the kubelet's health follow the board.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        *,
        conditions: Conditions,
        events: ConditionEvents,
        keeper: Keeper,
        devices: Callable[[], Mapping[str, str]],
        tell: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._conditions, self._events, self._keeper = conditions, events, keeper
        self._devices, self._tell, self._sleep = devices, tell, sleep
        self._people, self._file = Paced(self._say, PACE, sleep=sleep), Paced(self._keep, PACE, sleep=sleep)
        keeper.restore()
        conditions.follow(self._changed)
        tell()  # before anything is published: no GPU that was lost a moment ago is called healthy
        self._changed()

    async def run(self) -> None:
        """Tell until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._people.run())
            tasks.create_task(self._file.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._expire())

    def _changed(self) -> None:
        self._people.changed()
        self._file.changed()

    async def _say(self) -> None:
        self._tell()
        await self._events.look(self._conditions.all.get())

    async def _keep(self) -> None:
        if not await self._keeper.write(dict(self._devices())):
            self._file.changed()

    async def _expire(self) -> None:
        await self._sleep(EARLIER)
        self._conditions.expire()
