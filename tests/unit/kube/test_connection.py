"""A connection: what servers send, whole and broken, and how long that may take."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.kube.connection import Answer, Connection, Disconnected

REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
Talk = Callable[[socket.socket], None]


@contextlib.contextmanager
def connected(talk: Talk) -> Iterator[Connection]:
    """A connection to a server that says something once it has been asked."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(65536)
                talk(accepted)

    thread = threading.Thread(target=serve)
    thread.start()
    made = Connection("127.0.0.1", listening.getsockname()[1], None, "127.0.0.1")
    made.open(time.monotonic() + 10)
    try:
        yield made
    finally:
        made.close()
        listening.close()
        thread.join(10)


def answer(*pieces: bytes, within: float = 10) -> Answer:
    """What is made of an answer that is sent in pieces, after which the server hangs up."""

    def talk(accepted: socket.socket) -> None:
        for piece in pieces:
            accepted.sendall(piece)

    with connected(talk) as connection:
        connection.send(REQUEST, time.monotonic() + within)
        return connection.receive(time.monotonic() + within)


def test_a_chunked_answer_is_put_together() -> None:
    """The API server sends larger objects in chunks; the connection stays."""
    got = answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n2\r\n[]\r\n0\r\n\r\n")
    assert (got.status, got.text, got.keeps_connection) == (200, b"{}\n[]", True)


def test_a_server_that_wants_to_close_is_not_asked_again() -> None:
    """Connection: close is heeded."""
    got = answer(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    assert (got.status, got.retry_after, got.text, got.keeps_connection) == (429, "7", b"{}", False)


def test_a_body_may_end_with_its_connection() -> None:
    """So HTTP/1.0 has it."""
    got = answer(b"HTTP/1.0 200 OK\r\n\r\n", b"{}")
    assert (got.status, got.text, got.keeps_connection) == (200, b"{}", False)


def test_what_comes_before_the_answer_is_not_it() -> None:
    """Informational responses may precede any answer."""
    got = answer(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert (got.status, got.text, got.keeps_connection) == (200, b"{}", True)


@pytest.mark.parametrize(
    "more",
    [
        b"HTTP/1.1 500 Bad\r\nContent-Length: 3\r\n\r\nbad",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"garbage",
    ],
)
def test_what_follows_an_answer_is_none_of_it(more: bytes) -> None:
    """Nobody asked for it: the answer stays as it was, and that connection is not used again."""
    got = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" + more)
    assert (got.status, got.text, got.keeps_connection) == (200, b"{}", False)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
    ],
)
def test_an_answer_that_is_cut_off_is_none(sent: bytes) -> None:
    """Half an object is never taken for a whole one."""
    with pytest.raises(Disconnected, match="ended the connection before its answer was complete"):
        answer(sent)


def test_something_else_than_http_is_told() -> None:
    """E.g. the port of another service."""
    with pytest.raises(Disconnected, match="the answer is not HTTP"):
        answer(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_an_answer_without_end_is_given_up() -> None:
    """It costs what an object may have, not what somebody sends."""

    def talk(accepted: socket.socket) -> None:
        accepted.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                accepted.sendall(bytes(1 << 20))

    with connected(talk) as connection:
        connection.send(REQUEST, time.monotonic() + 60)
        with pytest.raises(Disconnected, match="more than 16777216 bytes"):
            connection.receive(time.monotonic() + 60)


def test_a_server_that_drips_is_given_up_at_the_deadline() -> None:
    """The deadline is that of the whole answer: each byte comes soon enough, all together too late."""
    done = threading.Event()

    def talk(accepted: socket.socket) -> None:
        accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not done.wait(0.02):
                accepted.sendall(b"x")

    with connected(talk) as connection:
        started = time.monotonic()
        connection.send(REQUEST, started + 0.3)
        with pytest.raises(TimeoutError):
            connection.receive(started + 0.3)
        assert time.monotonic() - started < 10
        done.set()


@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(0, 400), max_size=6), chunked=st.booleans())
def test_it_does_not_matter_how_an_answer_is_cut_into_pieces(body: bytes, cuts: list[int], chunked: bool) -> None:
    """TCP keeps no boundaries."""
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    framed = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n" if chunked else body
    whole = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + framed
    ends = [*sorted({cut % len(whole) for cut in cuts} - {0}), len(whole)]
    got = Answer()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        assert not got.complete
        got.feed(whole[start:end])
    assert (got.complete, got.text, got.keeps_connection) == (True, body, True)
