"""One kept connection to the API server: sends GETs and reads their answers, with a deadline for the whole of each.

HTTP is read by llhttp (httptools): the standard library's parser of headers takes a quarter of a prepare's CPU time.
Blocking: for threads.
"""

import socket
import ssl
import time
from typing import Final

import httptools

_LARGEST: Final = 16 * 1024 * 1024
"""Bytes of an answer that are read; an object in etcd has at most 1.5 MB."""
_PIECE: Final = 65536
_STATUS_OF_AN_ANSWER: Final = 200
"""Below are messages that come before the answer."""


class Disconnected(OSError):
    """The server ended the connection, or sent what is no answer."""


class Answer:
    """One answer; httptools tells it what comes.

    Attributes:
        status: HTTP's code.
        retry_after: That header; empty if there is none.
        complete: Whether all of it is there.
        keeps_connection: Whether the next request may go the same way.
    """

    def __init__(self) -> None:
        self.status, self.retry_after, self.complete, self.keeps_connection = 0, "", False, False
        self._pieces: list[bytes] = []
        self._ends_with_connection = True
        self._parser = httptools.HttpResponseParser(self)

    @property
    def text(self) -> bytes:
        """The body."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> None:
        """Take what was received, empty at the end of the connection.

        Raises:
            Disconnected: That is no answer, or not all of one.
        """
        if not data:
            # HTTP/1.0 knows bodies that end with their connection.
            self.complete = bool(self.status) and self._ends_with_connection
            if not self.complete:
                raise Disconnected("the server ended the connection before its answer was complete")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise Disconnected(f"the answer is not HTTP: {error}") from error
            self.keeps_connection = False  # the answer is right; where the next one would begin is not known

    def on_message_begin(self) -> None:
        """For httptools, which stops at the error: what follows an answer is none of it, and nobody asked for it."""
        if self.complete:
            raise Disconnected("the server sent more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """For httptools."""
        lower = name.lower()
        if lower in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        elif lower == b"retry-after":
            self.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """For httptools."""
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """For httptools."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """For httptools."""
        if self.status < _STATUS_OF_AN_ANSWER:
            self.status, self._ends_with_connection = 0, True
        else:
            self.complete = True
            self.keeps_connection = not self._ends_with_connection and self._parser.should_keep_alive()


class Connection:
    """A connection, once `open` was called. One thread at a time uses it, but for `shut`.

    Args:
        host: Name or address.
        port: Of TCP.
        tls: None for none.
        server_name: The name in the server's certificate.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> None:
        self._host, self._port, self._tls, self._server_name = host, port, tls, server_name
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""
        return self._socket is not None

    def open(self, deadline: float) -> None:
        """Connect. One that failed has to be closed.

        Raises:
            OSError: It can't be reached, or not in time, or is not the one it should be.
        """
        made = self._connected(deadline)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            made.settimeout(_left(deadline))
            secured = self._tls.wrap_socket(made, server_hostname=self._server_name, do_handshake_on_connect=False)
            self._socket = secured
            secured.do_handshake()

    def _connected(self, deadline: float) -> socket.socket:
        """As `socket.create_connection`, but that each socket is known while it connects: `shut` ends that, too."""
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        failure: OSError = Disconnected(f"{self._host} has no address")
        for number, (family, kind, protocol, _, address) in enumerate(found):
            self.close()
            self._socket = made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(_left(deadline) / (len(found) - number))
                made.connect(address)
            except OSError as error:
                failure = error
            else:
                return made
        raise failure

    def send(self, request: bytes, deadline: float) -> None:
        """Send a request.

        Raises:
            OSError: It can't be sent, or not in time.
        """
        if self._socket is None:
            raise Disconnected("not connected")
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(request)

    def receive(self, deadline: float) -> Answer:
        """Read the answer to the request that was sent.

        Raises:
            OSError: None comes in time, or it is cut off.
        """
        if self._socket is None:
            raise Disconnected("not connected")
        answer, received = Answer(), 0
        while not answer.complete:
            # Each time anew: the server might send a byte now and then.
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(_PIECE)
            received += len(data)
            if received > _LARGEST:
                raise Disconnected(f"the answer has more than {_LARGEST} bytes")
            answer.feed(data)
        return answer

    def shut(self) -> None:
        """End what is under way, from another thread; the one whose it is closes it."""
        if (sock := self._socket) is not None:
            # Not TLS's own, which drops the encryption first: what is being sent would go out without it.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it for good."""
        if self._socket is not None:
            self._socket.close()


def _left(deadline: float) -> float:
    """Seconds.

    Raises:
        TimeoutError: None.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
