"""One connection: asyncio speaks to it, and it to aiohttp's protocol, so that it sees what comes, and when.

aiohttp has a time for connections at rest and for unread bodies, but none for a header, nor for a client that takes no answer.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from aiohttp import web

from hami_kubeletplugin.port.room import Room


class Connection(asyncio.Protocol):
    """Knows whose turn it is: its client's, ours, or nobody's.

    Args:
        room: Where it is counted.
        client: What was accepted.
        address: The client's.
        http: Makes the protocol that it is for; not before TLS is established.
    """

    def __init__(self, room: Room, client: socket.socket, address: str, http: Callable[[], asyncio.Protocol]) -> None:
        self.address, self.received = address, 0
        self.refused = False
        """There was no room for this request's bytes; its handler has been told."""
        self._room, self._client, self._http = room, client, http
        self._protocol: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tell_handler: Callable[[], None] | None = None
        self.is_left = False
        """It is counted no longer."""

    def begin(self) -> bool:
        """Enter the room; false: it is full."""
        self.is_left = not self._room.enter(self)
        if not self.is_left:
            self._within(self._room.bounds.header)
        return not self.is_left

    # --- what its handler says ---

    def reading(self, tell: Callable[[], None]) -> None:
        """A header is there. The handler reads the body, has a time-out for that, and is told if there is no room for it."""
        self._room.wait_for(self)  # that of a request which was sent ahead came while we worked
        self._within(None)
        self._tell_handler = tell

    def working(self) -> None:
        """The request is whole, and it is our turn."""
        self._within(None)
        self._tell_handler = None
        self._give_back()
        self._room.work_for(self)

    async def send(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Send an answer. Who doesn't take it in time is cut off."""
        self._tell_handler = None
        self._give_back()
        self._room.wait_for(self)
        self._within(self._room.bounds.answer)
        await response.prepare(request)
        await response.write_eof()
        if response.keep_alive:
            self.refused = False
            self._within(None)
            self._room.rest(self)

    # --- what the room says ---

    def refuse(self) -> None:
        """Give back what was received. The handler answers that, if there is one and it wasn't told before."""
        self._give_back()
        if self._tell_handler is None or self.refused:
            self.end("room")
        else:
            self.refused = True
            self._tell_handler()

    def end(self, why: str) -> None:
        """Cut it off.

        Args:
            why: `room` or `time`.
        """
        if self.is_left:
            return
        self._room.ended[why] += 1
        self.leave()
        if self._transport is not None:
            self._transport.abort()
        else:
            # TLS is not established, and asyncio has no handle for one that is about to be: it sees the end of the stream.
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """It is counted no longer."""
        self.is_left = True
        self._within(None)
        self._give_back()
        self._room.leave(self)

    def _give_back(self) -> None:
        self._room.give_back(self.received)
        self.received = 0

    def _within(self, seconds: float | None) -> None:
        """The client's turn has to be over by then; None: somebody else sees to that."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None and not self.is_left:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.end, "time")

    # --- what asyncio says ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is established."""
        self._transport = cast("asyncio.Transport", transport)
        if self.is_left:
            self._transport.abort()
            return
        self._protocol = self._http()
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """A part of a request. What a client sends ahead while we work is held up by aiohttp, and not counted."""
        if self._protocol is None or self.is_left:
            return
        if self._room.is_resting(self):
            self._room.wait_for(self)
            self._within(self._room.bounds.header)
        if self._room.is_waiting_for(self):
            self.received += len(data)
            self._room.receive(len(data))
        if not self.is_left:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return None if self._protocol is None else self._protocol.eof_received()

    def pause_writing(self) -> None:
        """The client takes its answer too slowly."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It takes it again."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.leave()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)


def of(request: web.BaseRequest) -> Connection:
    """The connection that a request came over.

    Raises:
        ConnectionResetError: It is gone already; aiohttp takes that from a handler.
    """
    connection = request.transport.get_protocol() if request.transport is not None else None
    if not isinstance(connection, Connection):
        raise ConnectionResetError("the client is gone")
    return connection
