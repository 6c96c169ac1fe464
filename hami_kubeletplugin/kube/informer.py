"""Keeps a copy of some of the cluster's objects: list, then watch from there, over and over."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, NoReturn, Protocol, TypeVar

from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.resource_api import Listed
from hami_kubeletplugin.kube.retry import Retry, Sleep

SHORTEST_WATCH: Final = 1.0
"""Seconds from the start of one watch to that of the next."""

Watch = Callable[[str], AsyncGenerator[Event]]
"""Changes after a resource version."""


T = TypeVar("T")


class Store(Protocol[T]):
    """What is kept. Told in the order in which things happened; objects are as others wrote them, and no reason to raise."""

    def replace(self, listed: Listed[T]) -> None:
        """These are all the objects there are, in the form in which they were listed."""

    def take(self, event: Event) -> None:
        """One of them has changed; or, a bookmark, none has up to this resource version."""


async def list_and_watch(
    what: str,
    list_all: Callable[[], Awaitable[Listed[T]]],
    watch: Watch,
    copy: Store[T],
    *,
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> NoReturn:
    """Keep `copy` as the cluster is, until cancelled. While the API server is away it stays as it was.

    Args:
        what: The kind of objects, for the log.
        list_all: Lists them.
        watch: Watches them.
        copy: Is told.
        sleep: Waits that many seconds.
        clock: Seconds that only grow.
    """
    retry = Retry(
        failing="Objects of the cluster can't be followed; trying again",
        working="Objects of the cluster can be followed again",
        restarting="Listing again",
        sleep=sleep,
        objects=what,
    )

    def take(event: Event) -> None:
        copy.take(event)
        retry.works()

    async def ended(lasted: bool) -> None:
        if lasted:
            retry.works()

    while True:
        try:
            listed = await list_all()
            copy.replace(listed)
            await follow(watch, listed.resource_version, take, ended, sleep=sleep, clock=clock)
        except ApiError as error:
            await retry.after(error)


async def follow(
    watch: Watch,
    since: str,
    take: Callable[[Event], None],
    ended: Callable[[bool], Awaitable[None]],
    *,
    sleep: Sleep,
    clock: Callable[[], float],
) -> NoReturn:
    """Watch after watch, each from where the one before it ended.

    Args:
        watch: Makes one, which the server ends after some minutes.
        since: Resource version to begin after.
        take: Told of each event.
        ended: Told after each watch whether it lasted. One that did not says nothing of the server's health.
        sleep: Waits that many seconds.
        clock: Seconds that only grow.

    Raises:
        ApiError: As it comes from `watch` and `ended`; list again then.
    """
    while True:
        started = clock()
        async with aclosing(watch(since)) as events:
            async for event in events:
                since = event.object["metadata"]["resourceVersion"]
                take(event)
        lasted = clock() - started >= SHORTEST_WATCH
        if not lasted:
            await sleep(SHORTEST_WATCH)
        await ended(lasted)
