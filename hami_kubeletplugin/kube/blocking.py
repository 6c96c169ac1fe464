"""GETs for threads: kept connections, a deadline on each call, several requests at once.

A prepare waits for nothing but the API server and the disk, and does so in a thread of its own; asyncio, with a hop to a thread
for each file, costs a third more (docs/performance.md). What watches and publishes all day uses `client`.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
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
from hami_kubeletplugin.kube.connection import Answer, Connection, Disconnected
from hami_kubeletplugin.kube.patience import Patience
from hami_kubeletplugin.kube.token import BearerToken

_KEPT: Final = 24
"""Idle connections; more are made if more threads ask, and closed afterwards."""
_CONNECT: Final = (2.0, 60.0)
"""Seconds for one attempt to connect, TLS's handshake included: at first, and at the most."""


class _Sent(NamedTuple):
    """A request on its way.

    Attributes:
        connection: It is alone on it.
        reused: Whether that was used before, and so may have been closed by the server.
        error: What kept it from being sent.
    """

    connection: Connection
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
        self._host, self._port = url.hostname or "", url.port or (443 if access.tls else 80)
        self._prefix = url.path
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._common = (
            f" HTTP/1.1\r\nHost: {host}:{self._port}\r\nUser-Agent: {USER_AGENT}\r\nAccept: application/json\r\n"
        )
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Connection]] = []
        self._busy: set[Connection] = set()
        self._closed = False
        self._token = BearerToken(access)
        self._patience = Patience(*_CONNECT)

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
                with contextlib.suppress(OSError):
                    connection.shut()
        for _, connection in idle:
            connection.close()

    def _answer(self, call: Call, sent: _Sent, deadline: float) -> Object | ApiError:
        try:
            answer = self._exchange(call, sent, deadline)
            if answer.status == HTTPStatus.UNAUTHORIZED and self._token.refused():
                answer = self._exchange(call, self._send(call, deadline), deadline)
            if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
                return error_of(call, answer.status, {"Retry-After": answer.retry_after}, answer.text)
            return object_of(call, answer.text)
        except ApiError as error:
            return error

    def _exchange(self, call: Call, sent: _Sent, deadline: float) -> Answer:
        """The answer. A kept connection may have been closed meanwhile: then, and then only, the request is sent once more."""
        try:
            return self._read(sent, deadline)
        except OSError as error:
            if not sent.reused or isinstance(error, TimeoutError):
                raise self._unavailable(call, error) from error
        try:
            return self._read(self._send(call, deadline, fresh=True), deadline)
        except OSError as error:
            raise self._unavailable(call, error) from error

    def _send(self, call: Call, deadline: float, *, fresh: bool = False) -> _Sent:
        connection, reused = self._connection(fresh=fresh)
        try:
            self._check_open(call)
            request = self._request(call)
            if not connection.is_open:
                self._open(connection, deadline)
                self._check_open(call)  # meanwhile `close` may not have seen the socket
            connection.send(request, deadline)
        except (ApiUnavailable, OSError) as error:
            return _Sent(connection, reused, error)
        except ValueError as error:  # a host name that can't be one
            return _Sent(connection, reused, Disconnected(str(error)))
        return _Sent(connection, reused, None)

    def _open(self, connection: Connection, deadline: float) -> None:
        """Connect. A server that is gone is given up soon, and asked again by who wants to; a slow one gets longer each time."""
        began, patience = time.monotonic(), self._patience.seconds
        try:
            connection.open(min(deadline, began + patience))
        except TimeoutError:
            self._patience.too_short(patience)
            raise
        self._patience.enough(time.monotonic() - began)

    def _check_open(self, call: Call) -> None:
        if self._closed:
            raise ApiUnavailable(f"{call} failed: the daemon stops")

    def _read(self, sent: _Sent, deadline: float) -> Answer:
        good = False
        try:
            if sent.error is not None:
                raise sent.error
            answer = sent.connection.receive(deadline)
            good = answer.keeps_connection
            return answer
        finally:
            self._give_back(sent.connection, good=good)

    def _connection(self, *, fresh: bool) -> tuple[Connection, bool]:
        """One for a request, and whether it was used before."""
        while not fresh:
            with self._lock:
                since, kept = self._idle.pop() if self._idle else (0.0, None)
                if kept is None:
                    break
                self._busy.add(kept)
            if time.monotonic() - since < KEEP_ALIVE:
                return kept, True
            self._give_back(kept, good=False)
        made = Connection(self._host, self._port, self._access.tls, self._access.tls_server_name or self._host)
        with self._lock:
            self._busy.add(made)
        return made, False

    def _give_back(self, connection: Connection, *, good: bool) -> None:
        """Keep a connection whose answer has been read, and close any other."""
        with self._lock:
            self._busy.discard(connection)
            if good and len(self._idle) < _KEPT and not self._closed:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def _request(self, call: Call) -> bytes:
        if self._token.is_due:
            self._token.read(call)
        target = f"{self._prefix}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        token = f"Authorization: Bearer {self._token.value}\r\n" if self._token.value else ""
        return f"{METHODS[call.verb]} {target}{self._common}{token}\r\n".encode("ascii")

    def _unavailable(self, call: Call, error: Exception) -> ApiUnavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return ApiUnavailable(f"{call} failed: API server {self._access.server} can't be reached: {reason}")
