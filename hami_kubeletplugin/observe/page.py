"""A page that costs something, for whoever asks: made once for all who ask at about the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FRESH: Final = 1.0
"""Seconds for which a page is given again. Prometheus asks each 15 s or so, two of them at moments of their own; who asks in a
loop gets the same bytes, and makes no work."""


class Page(Generic[T]):
    """The page as it was made last, if that is new enough. For one event loop.

    Args:
        make: Makes it.
        fresh: Seconds for which it is given again.
        clock: Seconds that only grow.
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], *, fresh: float = FRESH, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._fresh, self._clock = make, fresh, clock
        self._made: tuple[float, T] | None = None
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The page; raises what its making raises. Who asks and goes takes nothing from the others."""
        if self._made is not None and self._clock() - self._made[0] < self._fresh:
            return self._made[1]
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._keep())
        return await asyncio.shield(self._making)

    async def close(self) -> None:
        """Make it no more."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _keep(self) -> T:
        made = await self._make()
        self._made = self._clock(), made
        return made
