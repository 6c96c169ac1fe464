"""Listening sockets that can be left without hanging up on anybody.

Processes may share a port (SO_REUSEPORT), so that one can be replaced by its successor on a port of the host. When a listening
socket is closed the kernel resets the connections that wait in its queue; here they are taken out first.
"""

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from hami_kubeletplugin.port.connection import Connection
from hami_kubeletplugin.port.room import Bounds, Room

_QUEUE: Final = 1024
_AT_ONCE: Final = 8
"""Connections that are taken before those that are there get their turn: a TLS handshake is a millisecond of ours."""
_LINE: Final = 1024
"""Bytes of a request's first line."""
_FIELD: Final = 4096
_FIELDS: Final = 32
"""Bytes of a header's field, and number of fields. An API server and Prometheus send some ten short ones; proxies add a few,
and long ones."""
_LINGERING: Final = 2.0
"""Seconds in which a body that nobody wants is read and dropped, so that its client gets to read the answer."""
_PAUSE: Final = 1.0
"""Seconds until the next try when the system has no file left for a connection."""

# asyncio gives each TLS connection a buffer of this size when it is accepted, 256 KiB unless told otherwise: 500 clients that
# never say a word would cost 120 MiB.
sslproto.SSLProtocol.max_size = 32 * 1024


class Listener:
    """Takes connections, as many as there is room for, and gives aiohttp what comes over them.

    Args:
        handler: Answers a request, and sends the answer itself, with `connection.of(request).send`.
        bounds: What is taken.
        tls: The context of each new connection; None: no TLS.
        keep_alive: Seconds that a connection may rest between two requests.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bounds: Bounds,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        keep_alive: float = 0,
    ) -> None:
        self.room = Room(bounds)
        self.port = 0
        """The port that is, or was, listened on."""
        self._http = web.Server(
            handler,
            keepalive_timeout=keep_alive,
            lingering_time=_LINGERING,
            max_line_size=_LINE,
            max_field_size=_FIELD,
            max_headers=_FIELDS,
            auto_decompress=False,
            access_log=None,
        )
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._greetings: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen.

        Args:
            host: An address, or a name, all of whose addresses are meant; empty or `::` means all there are.
            port: 0: any free one.
            shared: Other processes may listen on it, too.

        Raises:
            OSError: It can't be used.
        """
        loop = asyncio.get_running_loop()
        try:
            for family, address, both in await _addresses(host, port):
                self._sockets.append(
                    socket.create_server(address, family=family, backlog=_QUEUE, reuse_port=shared, dualstack_ipv6=both)
                )
        except BaseException:
            for opened in self._sockets:
                opened.close()
            raise
        self.port = self._sockets[0].getsockname()[1]
        for opened in self._sockets:
            opened.setblocking(False)
            loop.add_reader(opened, self._take_some, opened)

    async def close(self, within: float = 0) -> None:
        """Take no more connections. Those that were made already go on, and those in the queue are taken.

        Args:
            within: Seconds for those that are about to be made.
        """
        left, self._sockets = self._sockets, []
        for opened in left:
            asyncio.get_running_loop().remove_reader(opened)
            self._take_some(opened, _QUEUE)
            opened.close()
        if self._greetings:
            await asyncio.wait(self._greetings, timeout=within)

    async def cut(self, within: float = 1.0) -> None:
        """End all connections that there still are.

        Args:
            within: Seconds for answers that are being sent.
        """
        for greeting in self._greetings:
            greeting.cancel()
        await self._http.shutdown(timeout=within)

    def _take_some(self, opened: socket.socket, most: int = _AT_ONCE) -> None:
        for _ in range(most):
            try:
                client, address = opened.accept()
            except (BlockingIOError, InterruptedError):  # nobody is left
                return
            except ConnectionAbortedError:  # gone already
                continue
            except OSError as error:
                self._pause(opened, error)
                return
            client.setblocking(False)
            self._take(client, address[0])

    def _take(self, client: socket.socket, address: str) -> None:
        connection = Connection(self.room, client, address, self._http)
        if not connection.begin():
            client.close()
            return
        task = asyncio.get_running_loop().create_task(self._greet(client, connection))
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _greet(self, client: socket.socket, connection: Connection) -> None:
        # What asyncio makes for TLS costs a millisecond and 60 KiB. Who never says a word shall not cost that.
        try:
            await _readable(client)
        except asyncio.CancelledError:  # by `cut`
            connection.leave()
        if connection.is_left:
            client.close()
            return
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {
                "ssl": self._tls(),
                "ssl_handshake_timeout": self.room.bounds.header,
                "ssl_shutdown_timeout": self.room.bounds.answer,
            }
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client, **options)
        except OSError as error:  # no TLS, or not in time: ssl.SSLError is one, too
            # Its frames know the future that knows it, so that all of the connection would stay until the collector comes.
            error.with_traceback(None)
            connection.leave()

    def _pause(self, opened: socket.socket, error: OSError) -> None:
        """The system has no file or memory for one more. As asyncio does: say it, and don't try again at once, for ever."""
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "no connection can be taken", "exception": error})
        loop.remove_reader(opened)
        loop.call_later(_PAUSE, self._resume, opened)

    def _resume(self, opened: socket.socket) -> None:
        if opened in self._sockets:
            asyncio.get_running_loop().add_reader(opened, self._take_some, opened)


async def _readable(client: socket.socket) -> None:
    """Wait until something has come, or the end."""
    loop = asyncio.get_running_loop()
    come = asyncio.Event()
    loop.add_reader(client, come.set)
    try:
        await come.wait()
    finally:
        loop.remove_reader(client)


async def _addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...], bool]]:
    """Family, address, and whether it stands for IPv4, too."""
    if host in {"", "::"} and socket.has_dualstack_ipv6():
        return [(socket.AF_INET6, ("::", port), True)]
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return [(family, address, False) for family, address in dict.fromkeys((each[0], each[4]) for each in found)]
