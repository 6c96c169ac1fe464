"""Claims that keep another one from being prepared: looked at at once, since that one's pod waits."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from hami_kubeletplugin.kube.retry import Sleep

_PACE: Final = 5.0
"""Seconds between two looks, each of which asks the API server about these claims."""


class Suspects:
    """Has claims looked at as soon as another one is refused for them, and again while they are stale.

    Made in the event loop that `run` runs in.

    Args:
        sleep: Waits that many seconds.
    """

    def __init__(self, *, sleep: Sleep = asyncio.sleep) -> None:
        self._sleep = sleep
        self._loop, self._woken, self._uids = asyncio.get_running_loop(), asyncio.Event(), set[str]()

    def add(self, uids: Collection[str]) -> None:
        """Others wait for these. For any thread; never waits."""
        self._loop.call_soon_threadsafe(self._add, uids)

    def _add(self, uids: Collection[str]) -> None:
        self._uids.update(uids)
        self._woken.set()

    async def run(self, look: Callable[[Collection[str]], Awaitable[Collection[str]]]) -> None:
        """Look when there is something to look at. Runs until cancelled.

        Args:
            look: Looks at claims; returns the UIDs of those that have to be looked at again. Raises nothing.
        """
        while True:
            await self._woken.wait()
            self._woken.clear()
            uids, self._uids = self._uids, set()
            if again := await look(uids):
                self._add(again)
            await self._sleep(_PACE)
