"""What two daemons say to each other when one takes over, without their processes."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import AlreadyServing, NotBegun, SocketPathTooLong
from hami_kubeletplugin.kubelet.gate import Gate
from hami_kubeletplugin.kubelet.handover import in_turn, offer, standing_by, successor_socket
from hami_kubeletplugin.kubelet.sockets import DriverLock, driver_lock
from tests.unit.kubelet.fakes import Claims, ref
from tests.waiting import settled, until


async def test_who_waits_gets_the_lock_in_turn(short: Path) -> None:
    """Of two that wait the one that stands by comes next, however rarely it looks: the kubelet may call it already."""
    came: list[str] = []

    async def wait(name: str, poll: float, waits: Callable[[], None] = lambda: None) -> None:
        lock = DriverLock(short)
        lock.poll = poll
        async with in_turn(short, 20, lock=lock, waits=waits):
            came.append(name)

    waiting = asyncio.Event()
    async with driver_lock(short, 0):
        second = asyncio.create_task(wait("second", 0.5, waiting.set))
        await waiting.wait()
        third = asyncio.create_task(wait("third", 0.001))
        await until((short / "lock.next").exists)
        await settled()
        with pytest.raises(AlreadyServing, match="next in line"):
            async with in_turn(short, 0, lock=DriverLock(short)):
                pass
    await asyncio.gather(second, third)
    assert came == ["second", "third"]


async def test_who_has_the_lock_is_not_next_in_line(short: Path) -> None:
    """Another one can be."""
    async with in_turn(short, 0, lock=DriverLock(short)):
        with pytest.raises(AlreadyServing, match="serves this driver"):
            async with in_turn(short, 0, lock=DriverLock(short)):
                pass


async def test_what_is_being_taken_ends_with_the_standing_by(short: Path) -> None:
    """The predecessor was killed while its successor was being registered: that ends before the successor serves by itself."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def take(_: int) -> bool:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    async with standing_by(short, take):
        offering = asyncio.create_task(offer(short, 0))
        await began.wait()
    assert ended.is_set()
    assert not await offering


async def _too_long(_: int) -> bool:
    raise SocketPathTooLong("the other place's path is too long")


async def _not_ready(_: int) -> bool:
    return False


@pytest.mark.parametrize("take", [_too_long, _not_ready])
async def test_who_cannot_take_says_so(short: Path, take: Callable[[int], Awaitable[bool]]) -> None:
    """The one that ends hears of it at once, and nothing breaks on the other side."""
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    async with standing_by(short, take):
        assert not await offer(short, 0)
    await settled()
    assert broken == []


async def test_a_socket_that_nobody_serves_is_no_successor(short: Path) -> None:
    """A killed one leaves it; the next one takes its place."""
    path = successor_socket(short)
    server = await asyncio.start_unix_server(lambda *_: None, path)
    server.close()
    with contextlib.suppress(FileNotFoundError):
        assert not await offer(short, 0)
    async with standing_by(short, _not_ready):
        assert path.is_socket()
    assert not path.exists()


async def test_who_ends_before_it_took_over_lets_nobody_wait(short: Path) -> None:
    """Calls in a gate that will never open are answered at once, with words, when the daemon ends."""
    claims = Claims()
    gate = Gate(claims, within=60)
    answers: dict[str, object] = {}
    waiting = threading.Thread(target=lambda: answers.update(gate.prepare([ref(1)])))
    waiting.start()
    gate.close()
    await asyncio.to_thread(waiting.join, 10)
    assert isinstance(answers["uid-1"], NotBegun)
    assert "ends" in str(answers["uid-1"])
    assert isinstance(gate.unprepare([ref(2)])["uid-2"], NotBegun)
    assert claims.finished == []
