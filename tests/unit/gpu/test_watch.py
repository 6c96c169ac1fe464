"""gpu.watch: what the daemon knows of its GPUs while drivers come, fail and go. Time passes at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, NvmlCallFailed, StorageError
from hami_kubeletplugin.gpu.known import KnownGpus
from hami_kubeletplugin.gpu.model import Inventory, Unread
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.gpu.watch import FIRST_DELAY, LONGEST_DELAY, HardwareWatch, lost_conditions, with_lost
from tests.unit.dead_mount import can_mount_dead, dead_mount
from tests.waiting import settled, until

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


async def test_a_wake_ends_the_wait(gpus: Callable[[str], Inventory]) -> None:
    """Who has seen that something changed has the hardware looked at now; many wakes are one look."""
    looks = Looks(gpus("a100x1"), gpus("a100x2"))
    hardware = HardwareWatch(looks, interval=INTERVAL, on_change=looks.offered.append, sleep=lambda _: forever())
    running = asyncio.create_task(hardware.run())
    await until(lambda: looks.offered)
    hardware.wake()
    hardware.wake()
    await until(lambda: looks.offered == [gpus("a100x1"), gpus("a100x2")])
    await settled()
    assert not running.done()
    running.cancel()


async def forever() -> None:
    """Wait."""
    await asyncio.Event().wait()


def unread(uuid: str | None) -> tuple[Unread, ...]:
    """One GPU that can't be read."""
    return (Unread(uuid, "GPU is lost"),)


async def test_which_gpus_stay_as_lost(gpus: Callable[[str], Inventory]) -> None:
    """Those that the driver lists and can't read, and those that it doesn't list and that a claim has; new ones come beside."""
    two = gpus("a100x2")
    first, second = two.gpus
    one = Inventory((first,))
    assert with_lost(one, two, ()) == one
    assert with_lost(one, None, {second.uuid}) == one
    for found, in_use in (
        (Inventory((first,), unread(second.uuid)), ()),
        (Inventory((first,), unread(None)), ()),
        (one, {second.uuid}),
    ):
        kept = with_lost(found, two, in_use)
        assert kept.gpus == two.gpus
        assert [uuid for uuid, _ in kept.lost] == [second.uuid]
        assert kept.by_device_name() == {first.device_name: first}  # what claims can be prepared on
        assert with_lost(found, kept, in_use) == kept
        assert with_lost(two, kept, in_use) == two
        assert with_lost(one, kept, ()) == one
        assert "GPU-" not in (message := lost_conditions(kept)[second.uuid][0].message)
        assert "drain the node" in message
    assert with_lost(Inventory((first,), unread("GPU-another-one")), two, ()).gpus == (first,)


async def test_a_lost_gpu_stays_while_records_can_not_be_read(gpus: Callable[[str], Inventory]) -> None:
    """A claim may have it."""

    def unreadable() -> set[str]:
        raise StorageError("no")

    looks = Looks(gpus("a100x2"), gpus("a100x1"))
    hardware = HardwareWatch(
        looks, interval=INTERVAL, on_change=looks.offered.append, in_use=unreadable, sleep=looks.sleep
    )
    running = asyncio.create_task(hardware.run())
    await until(looks.over.is_set)
    running.cancel()
    assert [gpu.device_name for gpu in (looks.offered[-1] or Inventory()).gpus] == ["hami-gpu-0", "hami-gpu-1"]


async def test_a_gpu_that_is_lost_while_no_daemon_runs(gpus: Callable[[str], Inventory], tmp_path: Path) -> None:
    """It is known from before, and so lost, not forgotten; after a reboot, or with a file that can't be used, it is gone."""
    path = tmp_path / "gpus.json"
    first, second = gpus("a100x2").gpus

    async def seen_by(boot_id: str, found: Inventory) -> Inventory:
        looks = Looks(found)
        known = KnownGpus(path, boot_id)
        watch = HardwareWatch(looks, interval=1, on_change=looks.offered.append, known=known, sleep=looks.sleep)
        running = asyncio.create_task(watch.run())
        await until(looks.over.is_set)
        running.cancel()
        return looks.offered[-1] or Inventory()

    fails = Inventory((first,), unread(None))
    assert (await seen_by("boot-1", gpus("a100x2"))).gpus == (first, second)
    lost = await seen_by("boot-1", fails)
    assert (lost.gpus, dict(lost.lost)) == ((first, second), {second.uuid: "GPU is lost"})
    assert (await seen_by("boot-1", fails)).gpus == (first, second)
    assert (await seen_by("boot-2", fails)).gpus == (first,)
    path.write_text("{")
    assert (await seen_by("boot-2", fails)).gpus == (first,)
    path.unlink()
    path.mkdir()
    assert (await seen_by("boot-2", fails)).gpus == (first,)


@can_mount_dead
async def test_a_disk_that_hangs_keeps_no_gpu_back(gpus: Callable[[str], Inventory], tmp_path: Path) -> None:
    """GPUs are offered all the same, as on a node that starts for the first time."""
    known, looks = KnownGpus(tmp_path / "dead/gpus.json", "b", patience=0.2), Looks(gpus("a100x2"))
    watch = HardwareWatch(looks, interval=1, on_change=looks.offered.append, known=known, sleep=looks.sleep)
    with dead_mount(tmp_path / "dead"):
        running = asyncio.create_task(watch.run())
        await until(lambda: looks.offered == [gpus("a100x2")])
    running.cancel()


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
