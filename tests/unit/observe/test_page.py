"""observe.page: made once for all who ask at about the same time."""

import asyncio

import pytest

from hami_kubeletplugin.observe.page import FRESH, Page
from tests.waiting import settled


class Maker:
    """Makes pages when it is let, and counts."""

    def __init__(self) -> None:
        self.count, self.now = 0, 100.0
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None
        self.page = Page(self.make, clock=lambda: self.now)

    async def make(self) -> bytes:
        """A page with its number."""
        self.count += 1
        number = self.count
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return str(number).encode()


async def test_many_who_ask_at_once_cost_one_page() -> None:
    """All get the same one; who asks within a second does, too, and then a new one is made."""
    maker = Maker()
    maker.go.clear()
    asked = [asyncio.create_task(maker.page.get()) for _ in range(50)]
    await settled()
    maker.go.set()
    assert await asyncio.gather(*asked) == [b"1"] * 50
    maker.now += FRESH / 2
    assert await maker.page.get() == b"1"
    maker.now += FRESH
    assert await maker.page.get() == b"2"


async def test_who_asks_and_goes_takes_nothing_from_others() -> None:
    """The page is made to its end all the same."""
    maker = Maker()
    maker.go.clear()
    gone, stays = (asyncio.create_task(maker.page.get()) for _ in range(2))
    await settled()
    gone.cancel()
    await settled()
    maker.go.set()
    assert await stays == b"1"


async def test_a_page_that_fails_is_made_again() -> None:
    """Who waited for it is told; the next one gets a page."""
    maker = Maker()
    maker.error = KeyError("oops")
    with pytest.raises(KeyError, match="oops"):
        await maker.page.get()
    maker.error = None
    assert await maker.page.get() == b"2"


async def test_nothing_is_made_after_the_end() -> None:
    """What is under way ends."""
    maker = Maker()
    maker.go.clear()
    asked = asyncio.create_task(maker.page.get())
    await settled()
    await maker.page.close()
    with pytest.raises(asyncio.CancelledError):
        await asked
