"""port.listener over real sockets: clients that keep it waiting, and those that don't."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from hami_kubeletplugin.port import connection, listener
from hami_kubeletplugin.port.listener import Listener
from hami_kubeletplugin.port.room import Bounds
from tests.unit.webhook.admission.https import certificate, serve_with
from tests.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = 3600.0

Connect = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@contextlib.asynccontextmanager
async def listening(
    *, connections: int = 4, header: float = LONG, answer: float = LONG, body: bytes = b"ok", tls: Path | None = None
) -> AsyncIterator[tuple[Listener, Connect]]:
    """A port that answers everything with `body`, and a function that connects to it; what it made is closed."""

    async def handler(request: web.BaseRequest) -> web.Response:
        response = web.Response(body=body)
        await connection.of(request).send(request, response)
        return response

    opened = Listener(
        handler,
        Bounds(connections, 1024 * 1024, header, answer),
        tls=None if tls is None else serve_with(certificate(tls)),
        keep_alive=LONG,
    )
    await opened.open("127.0.0.1", 0)
    writers = []

    async def connect(address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port, local_addr=(address, 0))
        writers.append(writer)
        return reader, writer

    try:
        yield opened, connect
    finally:
        for writer in writers:
            writer.close()
        await opened.close()
        await opened.cut()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """A status line."""
    writer.write(GET)
    status = await reader.readline()
    await reader.readuntil(b"ok")
    return status


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the other side ends it; waits for that."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    return True


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nX: y\r\n"], ids=["nothing", "line", "field"])
async def test_a_header_that_does_not_end(said: bytes) -> None:
    """Who doesn't say what he wants in time is cut off, and counted."""
    async with listening(header=0.1) as (opened, connect):
        reader, writer = await connect()
        writer.write(said)
        assert await ends(reader)
        assert (len(opened.room), opened.room.ended) == (0, {"room": 0, "time": 1})


async def test_a_header_that_drips() -> None:
    """The time is for the header as a whole: a byte now and then buys no more of it, on a kept connection neither."""
    async with listening(header=0.3) as (opened, connect):
        reader, writer = await connect()
        assert b" 200 " in await asked(reader, writer)
        end = asyncio.create_task(ends(reader))
        writer.write(b"GET /")
        while not end.done():
            writer.write(b"x")
            await asyncio.wait({end}, timeout=0.02)
        assert opened.room.ended["time"] == 1


async def test_a_kept_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at rest isn't waited for: the time for a header begins with its first byte."""
    async with listening(header=0.1) as (opened, connect):
        reader, writer = await connect()
        assert b" 200 " in await asked(reader, writer)
        other, _ = await connect()
        assert await ends(other)
        assert b" 200 " in await asked(reader, writer)
        assert opened.room.ended["time"] == 1


async def test_tls_that_does_not_come_about(tmp_path: Path) -> None:
    """Neither silence, nor the first bytes of a handshake, nor what is no TLS keeps a place for longer than a header may take."""
    async with listening(header=0.2, tls=tmp_path) as (opened, connect):
        readers = []
        for said in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await connect()
            writer.write(said)
            readers.append(reader)
        assert all([await ends(reader) for reader in readers])
        await until(lambda: len(opened.room) == 0)


async def test_an_answer_that_is_not_taken() -> None:
    """Who asks and doesn't read is cut off."""
    async with listening(answer=0.2, body=b"x" * 32 * 1024 * 1024) as (opened, connect):
        _, writer = await connect()
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        writer.write(GET)
        await until(lambda: opened.room.ended["time"] == 1)
        assert len(opened.room) == 0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_full_port(tmp_path: Path, tls: bool) -> None:
    """A newcomer is served though silent clients, of his address or another one, fill it: the first of them goes."""
    async with listening(tls=tmp_path if tls else None) as (opened, connect):
        readers = [(await connect("127.0.0.2"))[0] for _ in range(4)]
        await until(lambda: len(opened.room) == 4)
        for address in ("127.0.0.1", "127.0.0.2"):
            context = ssl.create_default_context(cafile=str(tmp_path / "tls.crt")) if tls else None
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", opened.port, ssl=context, local_addr=(address, 0)
            )
            assert b" 200 " in await asked(reader, writer)
            writer.transport.abort()
        assert await ends(readers[0])
        assert not readers[3].at_eof()


async def test_no_file_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again a little later, not at once and for ever; who waits is served then."""
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.EMFILE]

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            number = failures.pop()
            raise OSError(number, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    monkeypatch.setattr(listener, "_PAUSE", 0.01)
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    async with listening() as (_, connect):
        assert b" 200 " in await asked(*await connect())
    assert said == ["no connection can be taken"] * 2


async def test_an_end_that_waits_for_nobody() -> None:
    """A silent client doesn't hold up the end, unless it is given time."""
    async with listening() as (opened, connect):
        reader, _ = await connect()
        await until(lambda: len(opened.room) == 1)
        async with asyncio.timeout(20):
            await opened.close()
            await opened.cut()
        assert await ends(reader)


async def test_long_headers() -> None:
    """Lines, fields, and their number are bounded: what is longer is 400 and the end of the connection."""
    for long in (
        b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 40 + b"\r\n",
    ):
        async with listening() as (_, connect):
            reader, writer = await connect()
            writer.write(long)
            assert b" 400 " in await reader.readline()
            assert await ends(reader)
