"""Keeps a copy of some of the cluster's objects: list, then watch from there, over and over."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, NoReturn, Protocol

from hami_kubeletplugin.api.errors import ApiError, ApiExpired, ApiUnavailable
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.resource_api import Listed
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

ERROR_WAIT: Final = (0.8, 30.0)
"""Seconds, first and longest, less up to half at random; the same as client-go's."""
SHORTEST_WATCH: Final = 1.0
"""Seconds from the start of one watch to that of the next."""

Sleep = Callable[[float], Awaitable[None]]


class Store(Protocol):
    """What is kept. Told in the order in which things happened; objects are as others wrote them, and no reason to raise."""

    def replace(self, listed: Listed) -> None:
        """These are all the objects there are."""

    def take(self, event: Event) -> None:
        """One of them has changed; or, a bookmark, none has up to this resource version."""


async def list_and_watch(
    what: str,
    list_all: Callable[[], Awaitable[Listed]],
    watch: Callable[[str], AsyncGenerator[Event]],
    copy: Store,
    *,
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> NoReturn:
    """Keep `copy` as the cluster is, until cancelled. While the API server is away it stays as it was.

    Args:
        what: The kind of objects, for the log.
        list_all: Lists them.
        watch: Their changes after a resource version.
        copy: Is told.
        sleep: Waits that many seconds.
        clock: Seconds that only grow.
    """
    errors, told = Backoff(*ERROR_WAIT), ""

    def works() -> None:
        nonlocal told
        errors.reset()
        if told:
            told = ""
            log.info("Objects of the cluster can be followed again", objects=what)

    while True:
        try:
            listed = await list_all()
            copy.replace(listed)
            since = listed.resource_version
            while True:
                started = clock()
                async with aclosing(watch(since)) as events:
                    async for event in events:
                        since = event.object["metadata"]["resourceVersion"]
                        copy.take(event)
                        works()
                if clock() - started < SHORTEST_WATCH:
                    await sleep(SHORTEST_WATCH)
                else:
                    works()
        except ApiError as error:
            wait = _wait(errors, error)
            if isinstance(error, ApiExpired):
                log.debug("Listing again", objects=what, reason=str(error))
            elif str(error) != told:
                told = str(error)
                log.warning("Objects of the cluster can't be followed; trying again", objects=what, error=told)
            await sleep(wait)


def _wait(errors: Backoff, error: ApiError) -> float:
    wait = errors.delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    errors.grow()
    if isinstance(error, ApiUnavailable) and error.retry_after is not None:
        wait = max(wait, min(error.retry_after, errors.longest))
    return wait
