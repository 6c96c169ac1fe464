"""claims.suspects: claims that others wait for are looked at soon, and not again and again."""

import asyncio
from collections.abc import Collection

from hami_kubeletplugin.claims.suspects import Suspects
from tests.waiting import until


async def test_they_are_looked_at_soon_and_while_they_are_stale() -> None:
    """At once, told from any thread; stale ones again after a pause, together with those that came meanwhile; then no more."""
    looks: list[list[str]] = []
    pauses: list[float] = []
    awake = asyncio.Event()
    stale = {"a"}

    async def look(uids: Collection[str]) -> Collection[str]:
        looks.append(sorted(uids))
        return stale.intersection(uids)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await awake.wait()
        awake.clear()

    suspects = Suspects(sleep=sleep)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(suspects.run(look))
        await asyncio.to_thread(suspects.add, ["a", "b"])
        await until(lambda: len(pauses) == 1)
        suspects.add(["c"])
        assert looks == [["a", "b"]], "looked again within the pause"
        awake.set()
        await until(lambda: len(pauses) == 2)
        stale.clear()
        awake.set()
        await until(lambda: len(pauses) == 3)
        awake.set()
        suspects.add(["d"])
        await until(lambda: len(pauses) == 4)
        running.cancel()
    assert looks == [["a", "b"], ["a", "c"], ["a"], ["d"]]
    assert min(pauses) >= 1
