"""Work that follows changes at once, but not more often than it may."""

import asyncio
from collections.abc import Awaitable, Callable


class Paced:
    """Does a piece of work after changes. Made in the event loop that `run` runs in.

    Args:
        work: What to do; however many changes there were, once for all of them.
        pace: Seconds between the end of one time and the next.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        pace: float,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._work, self._pace, self._sleep, self._changed = work, pace, sleep, asyncio.Event()

    def changed(self) -> None:
        """Something has changed. Never waits."""
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._work()
            await self._sleep(self._pace)
