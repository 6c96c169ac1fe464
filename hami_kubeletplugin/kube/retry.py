"""What to do about errors of the API server: wait longer each time, and say once per reason what is wrong."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from hami_kubeletplugin.api.errors import ApiError, ApiExpired, ApiUnavailable
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

ERROR_WAIT: Final = (0.8, 30.0)
"""Seconds, first and longest, less up to half at random; the same as client-go's."""

Sleep = Callable[[float], Awaitable[None]]


class Retry:
    """Work that begins anew after each error.

    Args:
        failing: Log event, with the reason, when the work fails.
        working: When it works again after that.
        restarting: When it only has to begin anew, since the server's memory doesn't reach back to where we were.
        longest_retry_after: Seconds that a server may ask for on top; one that asks for more gets this.
        sleep: Waits that many seconds.
        facts: Go with each of the events.
    """

    def __init__(
        self,
        *,
        failing: str,
        working: str,
        restarting: str,
        longest_retry_after: float = ERROR_WAIT[1],
        sleep: Sleep = asyncio.sleep,
        **facts: str,
    ) -> None:
        self._failing, self._working, self._restarting = failing, working, restarting
        self._longest_retry_after, self._sleep = longest_retry_after, sleep
        self._facts, self._errors, self._told = facts, Backoff(*ERROR_WAIT), Once[str]()

    def works(self) -> None:
        """The work has come to something: the next wait is short again."""
        self._errors.reset()
        if self._told.ended(self._failing):
            log.info(self._working, **self._facts)

    async def after(self, error: ApiError) -> None:
        """Wait until the work may begin anew."""
        wait = self._errors.delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._errors.grow()
        if isinstance(error, ApiUnavailable) and error.retry_after is not None:
            # On top of our own: the server tells the daemons of all nodes the same, and they must not come back all at once.
            wait += min(error.retry_after, self._longest_retry_after)
        if isinstance(error, ApiExpired):
            log.debug(self._restarting, **self._facts, reason=str(error))
        elif self._told.is_new(self._failing, str(error)):
            log.warning(self._failing, **self._facts, error=str(error))
        await self._sleep(wait)
