"""daemon.seen: what metrics show, whatever hangs, and however many claims come and go."""

import asyncio
import threading
from collections.abc import Mapping

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.daemon.seen import Seen
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.metrics.claims import ClaimUsage
from hami_kubeletplugin.metrics.hami import Hami
from hami_kubeletplugin.usage.model import Memory, OfNode
from tests.unit.metrics.world import NODE, container, of_gpu, on_gpu, text
from tests.unit.publish.fakes import TWO, gpu


class World:
    """What a node tells; set as tests like."""

    def __init__(self) -> None:
        self.usage, self.looks, self.reads = OfNode(1.0), 0, 0
        self.held: Mapping[str, Usage] | StorageError = {}
        self.inventory = TWO
        self.works = threading.Event()
        self.works.set()
        self.seen = Seen(
            NODE,
            Sharing(),
            usage=self,
            gpus=self.gpus,
            published=lambda: frozenset(self.inventory.by_uuid()),
            held=self.read,
            patience=0.01,
        )

    def gpus(self) -> Mapping[str, Gpu]:
        """The node's."""
        return self.inventory.by_uuid()

    async def look(self) -> OfNode:
        """What is in use."""
        self.looks += 1
        return self.usage

    def read(self) -> Mapping[str, Usage]:
        """What is held."""
        self.reads += 1
        self.works.wait(20)
        if isinstance(self.held, StorageError):
            raise self.held
        return self.held

    async def page(self) -> str:
        """The page now."""
        await self.seen.look()
        return text(Hami(lambda: self.seen.view, legacy=True), ClaimUsage(lambda: self.seen.view))


@pytest.fixture
def world() -> World:
    """One at rest."""
    return World()


async def held(world: World) -> list[int | None]:
    """MiB that are said to be held of each GPU; looks until the thread is done."""
    async with asyncio.timeout(20):
        while True:
            await world.seen.look()
            found = [given.held.memory_mib if given.held else None for given in world.seen.view.gpus]
            if None not in found:
                return found


async def test_after_a_thousand_claims_the_page_is_as_before(world: World) -> None:
    """Each has its series while it is there, and leaves nothing behind."""
    assert await held(world) == [0, 0]
    before = await world.page()
    for number in range(0, 1000, 100):
        claims = [container(on_gpu(used=Memory(1)), claim=f"c{n}", pod=f"p{n}") for n in range(number, number + 100)]
        world.usage = OfNode(1.0, (), tuple(claims))
        page = await world.page()
        assert all(f'resourceclaim_name="c{n}"' in page for n in range(number, number + 100))
        assert page.count("resourceclaim_name=") == 100 * 3
    world.usage = OfNode(1.0)
    assert await world.page() == before


async def test_a_disk_that_hangs(world: World) -> None:
    """What was known is shown in time, nothing where nothing was; one thread waits, however often somebody asks."""
    world.works.clear()
    try:
        for _ in range(3):
            await world.seen.look()
        assert [given.held for given in world.seen.view.gpus] == [None, None]
        assert (world.looks, world.reads) == (3, 1)
    finally:
        world.works.set()
    world.held = {gpu(0).uuid: Usage(1000, 4096, 0, 1)}
    while await held(world) != [4096, 0]:
        pass
    world.held = StorageError("no records")
    await world.seen.look()
    assert await held(world) == [4096, 0]


async def test_a_gpu_keeps_its_number_while_nvml_says_nothing(world: World) -> None:
    """Else it would be another series; without any answer so far it is its place on the bus."""

    def numbers() -> list[int]:
        return [given.index for given in world.seen.view.gpus]

    await world.seen.look()
    assert numbers() == [0, 1]
    world.usage = OfNode(1.0, (of_gpu(0, index=3, used=0), of_gpu(1, index=5, used=0)))
    await world.seen.look()
    world.usage = OfNode(2.0, (of_gpu(0, index=0), of_gpu(1, index=1)))
    await world.seen.look()
    assert numbers() == [3, 5]
    world.inventory = Inventory((gpu(1),))
    await world.seen.look()
    world.inventory = TWO
    await world.seen.look()
    assert numbers() == [0, 5]
