"""How a daemon that ends has its successor registered with the kubelet before it stops to serve.

    old                               successor, waits for the lock         kubelet
     │ ── "place 0" to next.sock ──────> │ ── shows the sockets of place 1 ──> │ registers them, too,
     │ <───────────────── "registered" ─ │ <───────────────────── registered ─ │ and calls the newest
     │ finishes its calls                │ calls wait                          │
     │ removes its sockets ──────────────────────────────────────────────────> │ forgets place 0
     │ gives up the lock                 │ takes it, answers                   │

So the kubelet always has a driver that it is connected to, and only who holds the lock works. Without a successor that is ready,
or with one that doesn't answer, the old one ends as if there were none.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import AlreadyServing, HamiError
from hami_kubeletplugin.kubelet.sockets import DriverLock, driver_lock
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

REGISTERING: Final = 4.0
"""Seconds for the successor's registration: the kubelet looks once a second."""
LINGER: Final = 0.05
"""Seconds from then on in which the old one still answers: the kubelet may have chosen it for a call just before."""
_CONNECTING: Final = 1.0
_LINE: Final = 64
"""Bytes of a message."""


def successor_socket(plugin_dir: Path) -> Path:
    """The path of the socket at which a successor is asked to take over."""
    return plugin_dir.absolute() / "next.sock"


@contextlib.asynccontextmanager
async def in_turn(
    plugin_dir: Path, within: float, *, lock: DriverLock, waits: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """`driver_lock`, which those who wait get in turn: the kubelet may have been sent to the next one already.

    Args:
        plugin_dir: Where the locks are.
        within: Seconds to wait.
        lock: The driver's.
        waits: Called when we are next in line, if there is somebody to wait for.

    Raises:
        AlreadyServing: Another process holds it, or is to get it before us; names its pid.
        ServingError: A file can't be opened.
    """
    loop, line = asyncio.get_running_loop(), DriverLock(plugin_dir, "lock.next")
    until = loop.time() + within
    told = False
    try:
        while not await line.take():  # nothing tells of a file lock
            if loop.time() >= until:
                raise AlreadyServing(
                    f"another daemon ({line.holder}) is next in line to serve this driver on this node: it still holds "
                    f"{line.path} after {within:g} s; stop it, or give one of the two another --driver-name"
                )
            if not told:
                log.info("waiting for another daemon that is next in line", holder=line.holder, lock=str(line.path))
                told = True
            await asyncio.sleep(line.poll)
        async with driver_lock(plugin_dir, max(until - loop.time(), 0), lock=lock, waits=waits):
            line.release()
            yield
    finally:
        line.release()


async def offer(plugin_dir: Path, place: int) -> bool:
    """Have the successor be registered; whether it is, so that we may stop. For who holds the lock, in `place`."""
    path = successor_socket(plugin_dir)
    try:
        async with asyncio.timeout(_CONNECTING):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LINE)
    except (OSError, TimeoutError):  # nobody is there
        return False
    try:
        async with asyncio.timeout(REGISTERING + _CONNECTING):
            writer.write(b"place %d\n" % place)
            registered = await reader.readline() == b"registered\n"
    except (OSError, ValueError, TimeoutError):
        registered = False
    finally:
        writer.close()
    if registered:
        await asyncio.sleep(LINGER)
    log.info("the successor is registered" if registered else "the successor is not ready")
    return registered


@contextlib.asynccontextmanager
async def standing_by(plugin_dir: Path, take: Callable[[int], Awaitable[bool]]) -> AsyncIterator[None]:
    """Be there for `offer` while the context is open. For one successor at a time.

    Args:
        plugin_dir: Where the socket is.
        take: Called with the place of who ends; returns whether we are registered in another one.
    """
    path = successor_socket(plugin_dir)
    hidden = path.with_name(f".{path.name}")

    answering: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        answering.add(task)
        try:
            async with asyncio.timeout(REGISTERING):
                word, _, place = (await reader.readline()).decode().partition(" ")
                if word == "place" and await take(int(place)):
                    writer.write(b"registered\n")
                    await writer.drain()
        except (OSError, ValueError, TimeoutError, HamiError) as error:
            log.warning(
                "the predecessor's place can't be taken before it ends", error=str(error) or "no registration in time"
            )
        finally:
            answering.discard(task)
            writer.close()

    hidden.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(answer, hidden, limit=_LINE)
    try:
        hidden.rename(path)
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
        # The predecessor is gone: what was begun for it must not go on beside what we begin now.
        begun = [task for task in answering if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
