"""A TLS port that can be left without hanging up on anybody.

Processes share it (SO_REUSEPORT), so that one can be replaced by its successor on a port of the host. When a listening socket
is closed the kernel resets the connections that wait in its queue; here they are taken out first.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake; the API server waits 10 for the whole answer."""
_QUEUE: Final = 1024


class Listener:
    """One listening socket.

    Args:
        protocol: Makes the protocol of a connection.
        tls: The server's context.
    """

    def __init__(self, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext) -> None:
        self._protocol, self._tls = protocol, tls
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.port = 0
        """The port that is, or was, listened on."""

    async def open(self, host: str, port: int) -> None:
        """Listen.

        Args:
            host: An address; `::` means all of both families.
            port: 0: any free one.

        Raises:
            OSError: The address can't be used.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server(
            (host, port), family=family, backlog=_QUEUE, reuse_port=True, dualstack_ipv6=host == "::"
        )
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol, sock=self._socket, ssl=self._tls, ssl_handshake_timeout=_HANDSHAKE, backlog=_QUEUE
        )

    async def close(self) -> None:
        """Take no more connections. Those that were made already go on, and those in the queue are taken."""
        if self._server is None:
            return
        loop = asyncio.get_running_loop()
        queued = list(self._queued())
        self._server.close()
        self._server = None
        handshakes = (
            loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=_HANDSHAKE)
            for connection in queued
        )
        await asyncio.gather(*handshakes, return_exceptions=True)

    def _queued(self) -> Iterator[socket.socket]:
        while self._socket is not None:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # nobody waits, or who waited is gone
                return
            connection.setblocking(False)
            yield connection
