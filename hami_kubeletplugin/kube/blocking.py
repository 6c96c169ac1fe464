"""GETs for threads: kept connections of the standard library, a deadline on each call, several requests at once.

A prepare waits for nothing but the API server and the disk, and does so in a thread of its own; asyncio, with a hop to a thread
for each file, costs a third more (docs/performance.md). What watches and publishes all day uses `client`.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from hami_kubeletplugin.api.errors import ApiError, ApiUnavailable
from hami_kubeletplugin.kube.call import (
    KEEP_ALIVE,
    METHODS,
    USER_AGENT,
    Call,
    Object,
    error_of,
    object_of,
)
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.token import BearerToken

_KEPT: Final = 24
"""Idle connections; more are made if more threads ask, and closed afterwards."""
_CONNECT: Final = 2.0
"""Seconds for one attempt to connect: a thread in one can't be woken, and the daemon has to end. Who wants to asks again."""
_LARGEST: Final = 16 * 1024 * 1024
"""Bytes of an answer that are read; an object in etcd has at most 1.5 MB."""

_Answer = tuple[int, Mapping[str, str], bytes]


class _Sent(NamedTuple):
    """A request on its way.

    Attributes:
        connection: It is alone on it.
        reused: Whether that was used before, and so may have been closed by the server.
        error: What kept it from being sent.
    """

    connection: http.client.HTTPConnection
    reused: bool
    error: Exception | None


class BlockingClient:
    """A pool of connections to one server. Thread-safe.

    Args:
        access: Where and as whom.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        url = urlsplit(access.server)
        self._host, self._prefix = url.hostname or "", url.path
        self._port = url.port or (443 if access.tls else 80)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False
        self._token = BearerToken(access)

    def get(self, calls: Sequence[Call], *, deadline: float) -> list[Object | ApiError]:
        """Send all requests, then read all answers: together they take as long as the slowest.

        Args:
            calls: Of verb `get`.
            deadline: By the monotonic clock.

        Returns:
            For each call the object, or the error that fits; its message has the verb, the resource, the name and the server's
            reason.
        """
        sent = [self._send(call, deadline) for call in calls]
        return [self._answer(call, each, deadline) for call, each in zip(calls, sent, strict=True)]

    def close(self) -> None:
        """End all requests, those under way too: who waits for one gets an ApiUnavailable, now and from now on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                if (sock := connection.sock) is not None:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)  # the thread that has it closes it
        for _, connection in idle:
            connection.close()

    def _answer(self, call: Call, sent: _Sent, deadline: float) -> Object | ApiError:
        try:
            status, headers, text = self._exchange(call, sent, deadline)
            if status == HTTPStatus.UNAUTHORIZED and self._token.refused():
                status, headers, text = self._exchange(call, self._send(call, deadline), deadline)
            if status >= HTTPStatus.MULTIPLE_CHOICES:
                return error_of(call, status, headers, text)
            return object_of(call, text)
        except ApiError as error:
            return error

    def _exchange(self, call: Call, sent: _Sent, deadline: float) -> _Answer:
        """The answer. A kept connection may have been closed meanwhile: then, and then only, the request is sent once more."""
        try:
            return self._read(sent, deadline)
        except (OSError, http.client.HTTPException) as error:
            if not sent.reused or isinstance(error, TimeoutError):
                raise self._unavailable(call, error) from error
        try:
            return self._read(self._send(call, deadline, fresh=True), deadline)
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(call, error) from error

    def _send(self, call: Call, deadline: float, *, fresh: bool = False) -> _Sent:
        connection, reused = self._connection(deadline, fresh=fresh)
        if self._closed:
            return _Sent(connection, reused, ApiUnavailable(f"{call} failed: the daemon stops"))
        target = f"{self._prefix}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(_left(deadline))
            connection.request(METHODS[call.verb], target, headers=self._headers(call))
        except (ApiUnavailable, OSError, http.client.HTTPException) as error:
            return _Sent(connection, reused, error)
        return _Sent(connection, reused, None)

    def _read(self, sent: _Sent, deadline: float) -> _Answer:
        good = False
        try:
            if sent.error is not None:
                raise sent.error
            # Others of the same call were read before, and may have taken all the time.
            sent.connection.sock.settimeout(_left(deadline))
            response = sent.connection.getresponse()
            text = response.read(_LARGEST)
            if response.length:
                raise http.client.IncompleteRead(text, response.length)
            good = response.isclosed() and not response.will_close
            return response.status, dict(response.headers), text
        finally:
            self._give_back(sent.connection, good=good)

    def _connection(self, deadline: float, *, fresh: bool) -> tuple[http.client.HTTPConnection, bool]:
        """One for a request, and whether it was used before."""
        seconds = min(_left(deadline), _CONNECT)
        while not fresh:
            with self._lock:
                since, kept = self._idle.pop() if self._idle else (0.0, None)
                if kept is None:
                    break
                self._busy.add(kept)
            if kept.sock is not None and time.monotonic() - since < KEEP_ALIVE:
                return kept, True
            self._give_back(kept, good=False)
        made = (
            http.client.HTTPConnection(self._host, self._port, timeout=seconds)
            if self._access.tls is None
            else _Https(self._host, self._port, self._access.tls, self._access.tls_server_name, seconds)
        )
        with self._lock:
            self._busy.add(made)
        return made, False

    def _give_back(self, connection: http.client.HTTPConnection, *, good: bool) -> None:
        """Keep a connection whose answer has been read, and close any other."""
        with self._lock:
            self._busy.discard(connection)
            if good and len(self._idle) < _KEPT and not self._closed:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        if self._token.is_due:
            self._token.read(call)
        if self._token.value:
            headers["Authorization"] = f"Bearer {self._token.value}"
        return headers

    def _unavailable(self, call: Call, error: Exception) -> ApiUnavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return ApiUnavailable(f"{call} failed: API server {self._access.server} can't be reached: {reason}")


def _left(deadline: float) -> float:
    """Seconds; 0 would mean not to wait at all, which sockets tell in other words."""
    return max(deadline - time.monotonic(), 0.001)


class _Https(http.client.HTTPSConnection):
    """With the name that the server's certificate must have, if it isn't the host's."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, server_name: str | None, timeout: float) -> None:
        super().__init__(host, port, context=tls, timeout=timeout)
        self._tls, self._server_name = tls, server_name or host

    def connect(self) -> None:
        """As the base class does, but for the name."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)
