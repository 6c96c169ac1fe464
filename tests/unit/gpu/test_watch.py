"""gpu.watch: what the daemon knows of its GPUs while drivers come, fail and go. Time passes at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, NvmlCallFailed
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.gpu.watch import FIRST_DELAY, LONGEST_DELAY, HardwareWatch

INTERVAL = 10.0
HANGS = NvmlCallFailed("nvmlDeviceGetCount", 10, "no answer")
MISSING = DriverMissing("no driver yet")


class Looks:
    """A source that answers one thing after another, and a sleep that ends the story after the last one."""

    def __init__(self, *answers: Inventory | HardwareError) -> None:
        self._answers: Iterator[Inventory | HardwareError] = iter(answers)
        self._left = len(answers)
        self.slept: list[float] = []
        self.offered: list[Inventory | None] = []
        self.over = asyncio.Event()

    async def discover(self) -> Inventory:
        """The next answer."""
        self._left -= 1
        answer = next(self._answers)
        if isinstance(answer, HardwareError):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        """Pass the time at once, as long as there are answers."""
        self.slept.append(seconds)
        if not self._left:
            self.over.set()
            await asyncio.Event().wait()


@asynccontextmanager
async def told(*answers: Inventory | HardwareError) -> AsyncIterator[tuple[Looks, HardwareWatch]]:
    """What became of it once all answers were given."""
    looks = Looks(*answers)
    hardware = HardwareWatch(looks, interval=INTERVAL, on_change=looks.offered.append, sleep=looks.sleep)
    running = asyncio.create_task(hardware.run())
    try:
        async with asyncio.timeout(5):
            await looks.over.wait()
        yield looks, hardware
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def gpus() -> Callable[[str], Inventory]:
    """The GPUs of a profile."""
    found = {name: await SimulatedSource(name, "n1").discover() for name in ("a100x1", "a100x2")}
    return found.__getitem__


async def seen(hardware: HardwareWatch) -> Inventory:
    """What a claim gets to see, in its thread."""
    return await asyncio.to_thread(hardware.inventory, time.monotonic() + 20)


async def test_a_driver_that_is_missing_is_looked_for_more_and_more_rarely(gpus: Callable[[str], Inventory]) -> None:
    """Soon at first, each few seconds in the end; said once; work starts when it appears."""
    with capture_logs() as log:
        async with told(*[MISSING] * 6, gpus("a100x2")) as (looks, hardware):
            assert looks.slept == [FIRST_DELAY, 2, 4, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY, INTERVAL]
            assert looks.offered == [None, gpus("a100x2")]
            assert await seen(hardware) == gpus("a100x2")
    assert [entry["meanwhile"] for entry in log if "error" in entry] == ["nothing is published"]


async def test_a_call_that_fails_changes_nothing(gpus: Callable[[str], Inventory]) -> None:
    """It says nothing about the GPUs: what was known stays, the log says so, and the pace is the normal one."""
    with capture_logs() as log:
        async with told(gpus("a100x1"), HANGS, HANGS) as (looks, hardware):
            assert looks.slept == [INTERVAL] * 3
            assert looks.offered == [gpus("a100x1")]
            assert await seen(hardware) == gpus("a100x1")
    assert [entry["meanwhile"] for entry in log if "error" in entry] == ["what is published stays"]


async def test_a_call_that_fails_at_the_start_withdraws_nothing(gpus: Callable[[str], Inventory]) -> None:
    """What an earlier run published stays until it is known what there is."""
    async with told(HANGS, HANGS, gpus("a100x1")) as (looks, _):
        assert looks.offered == [gpus("a100x1")]


async def test_a_driver_that_goes_away_takes_the_gpus_along(gpus: Callable[[str], Inventory]) -> None:
    """Nothing is offered any more, and who asks gets the reason."""
    async with told(gpus("a100x1"), MISSING) as (looks, hardware):
        assert looks.offered == [gpus("a100x1"), None]
        with pytest.raises(DriverMissing, match="no driver yet"):
            await seen(hardware)


async def test_only_changes_are_offered(gpus: Callable[[str], Inventory]) -> None:
    """A look that finds the same GPUs causes nothing; the first look is told even if it finds none."""
    async with told(Inventory(), Inventory(), gpus("a100x1"), gpus("a100x1"), gpus("a100x2")) as (looks, _):
        assert looks.offered == [Inventory(), gpus("a100x1"), gpus("a100x2")]


async def test_what_is_known_without_waiting(gpus: Callable[[str], Inventory]) -> None:
    """Nothing while the driver has not answered; no GPU without a driver; those that were seen last, even while calls fail."""
    found = tuple(gpu.uuid for gpu in gpus("a100x2").gpus)
    for answers, expected in (
        ([HANGS], None),
        ([MISSING], ()),
        ([HANGS, gpus("a100x2")], found),
        ([gpus("a100x2"), HANGS], found),
        ([gpus("a100x2"), MISSING], ()),
    ):
        async with told(*answers) as (_, hardware):
            assert hardware.uuids == expected
