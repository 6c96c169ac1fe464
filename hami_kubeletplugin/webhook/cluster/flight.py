"""One write for all the pods that wait for it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Flight:
    """Work that is done once for all who wait for it, and left when nobody does any more.

    Args:
        work: What is done.
        over: Called once it is done or left.
    """

    def __init__(self, work: Coroutine[Any, Any, None], over: Callable[[], None]) -> None:
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(lambda _: over())
        self.waiting, self._over = 0, over

    def leave(self) -> None:
        """One who waited does no more."""
        self.waiting -= 1
        if self.waiting == 0:
            self.task.cancel()
            self._over()
