"""publish.order: the GPU of which least is in use stands first, and what that costs the API server."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.names import SHARES_TOTAL
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.publish import order as module
from hami_kubeletplugin.publish.devices import devices
from hami_kubeletplugin.publish.order import UsageWatch, least_used_first
from tests.unit.publish.fakes import MANY, TWO, Time, World, gpu, running
from tests.waiting import settled, until

GIB = 1024
"""MiB."""


def used(*shares: int) -> dict[str, Usage]:
    """So many shares of 1 GiB on each GPU."""
    return {gpu(n).uuid: Usage(count * 1000, count * GIB) for n, count in enumerate(shares)}


def order(usages: Mapping[str, Usage], sharing: Sharing, sizes: list[int]) -> list[int]:
    """Minors of GPUs with so many GiB, in the order in which they are published."""
    gpus = [gpu(n, memory_bytes=size * 2**30) for n, size in enumerate(sizes)]
    published = devices(gpus, sharing)
    ordered = least_used_first(published, usages)
    assert sorted(ordered, key=lambda d: d["name"]) == sorted(published, key=lambda d: d["name"]), "changed devices"
    return [int(device["attributes"]["minor"]["int"]) for device in ordered]


holdings = st.builds(
    Usage, st.integers(0, 10), st.integers(0, 40), st.integers(0, 100)
)  # few values: many GPUs are alike


@given(
    st.lists(st.tuples(holdings, st.sampled_from([16, 80])), max_size=9),
    st.builds(
        Sharing,
        device_split_count=st.sampled_from([1, 10]),
        device_memory_scaling=st.sampled_from([1.0, 1.5]),
        device_core_scaling=st.sampled_from([1.0, 2.0]),
    ),
)
def test_least_used_first(gpus: list[tuple[Usage, int]], sharing: Sharing) -> None:
    """All GPUs, each once, by HAMi's measure: slots, memory and cores in use, as parts of what there is. Ties in bus order."""
    usages = {gpu(n).uuid: usage for n, (usage, _) in enumerate(gpus)}

    def place(number: int) -> tuple[Fraction, int]:
        usage, size = gpus[number]
        memory = size * GIB * Fraction(str(sharing.device_memory_scaling))
        cores = 100 * Fraction(str(sharing.device_core_scaling))
        slots = Fraction(usage.slots, SHARES_TOTAL)
        return slots + usage.memory_mib / Fraction(int(memory)) + usage.cores / cores, number

    assert order(usages, sharing, [size for _, size in gpus]) == sorted(range(len(gpus)), key=place)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Usage(1000, 1 * GIB), Usage(1000, 1 * GIB), [2, 0, 1]),  # the free one; then in bus order
        (Usage(1000, 40 * GIB), Usage(2000, 2 * GIB), [2, 1, 0]),  # all memory behind two small shares
        (Usage(1000, 1 * GIB, 90), Usage(2000, 2 * GIB), [2, 1, 0]),  # cores count as memory does
        (Usage(10_000, 1 * GIB), Usage(2000, 8 * GIB), [2, 1, 0]),  # and so does being alone on it
    ],
)
def test_what_counts(first: Usage, second: Usage, expected: list[int]) -> None:
    """A GPU that is taken whole comes last, a free one first."""
    assert order({gpu(0).uuid: first, gpu(1).uuid: second}, Sharing(), [40, 40, 40]) == expected


def test_gpus_that_are_gone_are_no_trouble() -> None:
    """What is held of a GPU that isn't published now, as one that has failed, changes nothing."""
    assert order({"GPU-gone": Usage(3, 1)}, Sharing(), [40, 40]) == [0, 1]


async def test_a_change_of_order_is_one_write(world: World) -> None:
    """The slice is written anew in its generation, at once; devices are what they were, and the kubelet hears of nothing new."""
    before, told = world.slices[0]["spec"], world.told
    world.publisher.order_by(used(1, 0))
    await until(lambda: world.devices == ["hami-gpu-1", "hami-gpu-0"])
    await world.quiet()
    assert world.server.writes == 2
    assert world.slices[0]["spec"] == before | {"devices": before["devices"][::-1]}
    assert world.told == told


async def test_the_same_order_is_no_write(world: World) -> None:
    """More use that leaves the order as it is costs nothing, nor does a look at the hardware that finds nothing new."""
    for usages in ({}, used(0, 1), used(2, 2), used(3, 4)):
        world.publisher.order_by(usages)
        world.publisher.offer(TWO)
    await world.quiet()
    assert world.server.writes == 1


async def test_the_order_is_right_from_the_start(server: ApiServer) -> None:
    """A daemon that knows its claims before its GPUs publishes once.

    One that takes over from it writes nothing; one without an order of its own goes back to the usual one.
    """
    for usages, writes, names in ((used(1, 0), 1, [1, 0]), (used(2, 1), 1, [1, 0]), ({}, 2, [0, 1])):
        async with running(server) as world:
            world.publisher.order_by(usages)
            await world.quiet()
            world.publisher.offer(TWO)
            await until(world.publisher.first_published.is_set)
            await world.quiet()
            assert (server.writes, world.devices) == (writes, [f"hami-gpu-{n}" for n in names])


async def test_a_new_gpu_is_free(world: World) -> None:
    """A GPU that is found comes first, before those in use."""
    world.publisher.order_by(used(1, 2))
    world.publisher.offer(Inventory((*TWO.gpus, gpu(2))))
    await until(lambda: world.devices == ["hami-gpu-2", "hami-gpu-0", "hami-gpu-1"])


async def test_more_gpus_than_a_slice_holds(server: ApiServer) -> None:
    """Where GPUs change slices, all slices get a new generation: none is ever in two slices of one."""
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(world.publisher.first_published.is_set)
        world.publisher.order_by(used(1))
        await until(lambda: world.devices[-1] == "hami-gpu-0")
        await world.quiet()
        assert sorted(world.devices) == sorted(gpu.device_name for gpu in MANY.gpus)
        assert [s["spec"]["pool"]["generation"] for s in world.slices] == [2, 2]
        assert server.writes == 4


@pytest.mark.parametrize("status", [409, 422, 500])
async def test_an_order_that_cannot_be_written(world: World, status: int) -> None:
    """While the API server refuses it the slice stays what it was; after each wait it is tried once more."""
    before = world.slices
    world.server.fail(status, verb="update", times=2)
    world.time.hold()
    world.publisher.order_by(used(1, 0))
    await until(lambda: world.time.slept)
    await world.quiet()
    assert (world.slices, world.server.writes) == (before, 2)
    world.time.release()
    await until(lambda: world.devices == ["hami-gpu-1", "hami-gpu-0"])
    await world.quiet()
    assert (world.server.writes, len(world.time.slept)) == (4, 2)


@asynccontextmanager
async def watching(
    read: Callable[[], Mapping[str, Usage]], tell: Callable[[Mapping[str, Usage]], None]
) -> AsyncIterator[tuple[UsageWatch, Time]]:
    """A watch that runs, by a clock that stands still until it is released."""
    time = Time()
    time.hold()
    watch = UsageWatch(read, tell, sleep=time.sleep)
    task = asyncio.create_task(watch.run())
    try:
        yield watch, time
        assert not task.done(), task.result()
    finally:
        task.cancel()


async def test_a_thousand_claims_in_one_moment(world: World) -> None:
    """The first claim is seen at once, the others together when the pace allows: two looks and two writes, always."""
    shares, looks = [0, 0], list[int]()

    def read() -> Mapping[str, Usage]:
        looks.append(sum(shares))
        return used(*shares)

    async with watching(read, world.publisher.order_by) as (watch, time):
        shares[0] = 1
        watch.changed()
        await until(lambda: world.devices == ["hami-gpu-1", "hami-gpu-0"])
        for number in range(999):
            shares[1] += 1
            thread = threading.Thread(target=watch.changed)
            thread.start()
            if number % 100 == 0:
                thread.join()
                await settled()
        await world.quiet()
        assert (looks, world.server.writes, time.slept) == ([1], 2, [module.PACE])
        time.release()
        await until(lambda: world.devices == ["hami-gpu-0", "hami-gpu-1"])
        await until(lambda: time.slept == [module.PACE] * 2)
        await world.quiet()
        assert (looks, world.server.writes) == ([1, 1000], 3)


async def test_nothing_changes_nothing_happens(world: World) -> None:
    """At rest nobody looks at anything."""
    looks = list[None]()

    def read() -> Mapping[str, Usage]:
        looks.append(None)
        return {}

    async with watching(read, world.publisher.order_by) as (_, time):
        time.release()
        await world.quiet()
        assert (looks, time.slept, world.server.writes) == ([], [], 1)


async def test_records_that_cannot_be_read(world: World) -> None:
    """The order stays, the log says why, and the next claim that comes or goes is seen."""
    failing = True

    def read() -> Mapping[str, Usage]:
        if failing:
            raise StorageError("/claims: Input/output error")
        return used(1, 0)

    async with watching(read, world.publisher.order_by) as (watch, time):
        with capture_logs() as logs:
            watch.changed()
            await until(lambda: time.slept)
        assert [(entry["log_level"], entry["error"]) for entry in logs] == [("warning", "/claims: Input/output error")]
        assert world.devices == ["hami-gpu-0", "hami-gpu-1"]
        failing = False
        time.release()
        watch.changed()
        await until(lambda: world.devices == ["hami-gpu-1", "hami-gpu-0"])
