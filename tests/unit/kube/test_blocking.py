"""The client of threads: kept connections, deadlines, tokens that change, several requests at once."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from hami_kubeletplugin.api.errors import ApiError, ApiForbidden, ApiNotFound, ApiUnavailable
from hami_kubeletplugin.kube.blocking import BlockingClient
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.claim_api import ClaimClient, Wanted
from hami_kubeletplugin.kube.config import Access
from tests import REPOSITORY

PKI = REPOSITORY / "tests/unit/kube/pki"
POD = Call("get", "pods", "/api/v1/namespaces/default/pods/p", "default/p")
POD_ANSWER: Final = {"kind": "Pod"}


class Server:
    """An HTTP/1.1 server that answers as a test says, and notes what it was asked and over which connection."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], tuple[int, object]] = lambda _: (200, POD_ANSWER)
        self.asked: list[tuple[str, str | None]] = []
        self.connections = set[tuple[str, int]]()
        self.open: list[socket.socket] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.open.append(self.connection)

            def do_GET(self) -> None:
                outer.connections.add(self.client_address)
                outer.asked.append((self.path, self.headers.get("Authorization")))
                status, body = outer.answer(self)
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def hang_up(self) -> None:
        """Close all connections, as a server does with idle ones."""
        for connection in self.open:
            connection.shutdown(socket.SHUT_RDWR)
        self.open.clear()


@pytest.fixture
def server() -> Iterator[Server]:
    """Up for one test."""
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def client(server: Server) -> Iterator[BlockingClient]:
    """For that server."""
    made = BlockingClient(Access(server.url))
    yield made
    made.close()


def get(client: BlockingClient, *calls: Call, within: float = 20) -> Any:
    """The answers; a single one by itself."""
    answers = client.get(calls or (POD,), deadline=time.monotonic() + within)
    return answers if len(calls) > 1 else answers[0]


def test_a_connection_is_kept(server: Server, client: BlockingClient) -> None:
    """Requests one after the other cost one handshake."""
    assert [get(client) for _ in range(5)] == [{"kind": "Pod"}] * 5
    assert len(server.connections) == 1


def test_requests_are_sent_before_any_answer_is_read(server: Server, client: BlockingClient) -> None:
    """Together they take as long as the slowest: each answer here waits until both requests are there."""
    both = threading.Barrier(2)

    def meet(_: object) -> tuple[int, object]:
        both.wait(20)
        return 200, POD_ANSWER

    server.answer = meet
    other = Call("get", "pods", "/api/v1/namespaces/default/pods/q", "default/q", {"resourceVersion": "0"})
    assert get(client, POD, other) == [POD_ANSWER, POD_ANSWER]
    assert sorted(path for path, _ in server.asked) == [POD.path, f"{other.path}?resourceVersion=0"]


def test_a_connection_that_was_closed_meanwhile_is_no_failure(server: Server, client: BlockingClient) -> None:
    """A server closes idle connections, and restarts: the request goes out again on a new one."""
    get(client)
    server.hang_up()
    assert get(client) == POD_ANSWER
    assert len(server.connections) == 2


def test_a_new_connection_that_is_cut_is_a_failure(server: Server, client: BlockingClient) -> None:
    """Nothing is tried for ever; who asked decides."""
    server.answer = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR) or (200, POD_ANSWER)
    assert isinstance(get(client), ApiUnavailable)
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_named(server: Server, client: BlockingClient) -> None:
    """With the request that failed."""
    server.http.shutdown()
    server.http.server_close()
    error = get(client)
    assert isinstance(error, ApiUnavailable)
    assert f"get pods default/p failed: API server {server.url} can't be reached" in str(error)


def test_an_answer_that_does_not_come_ends_at_the_deadline(server: Server, client: BlockingClient) -> None:
    """The thread is free again; its connection is not used for anybody else's answer."""
    go_on = threading.Event()
    server.answer = lambda _: (200, {**POD_ANSWER, "late": go_on.wait(20)})
    error = get(client, within=0.1)
    assert isinstance(error, ApiUnavailable)
    assert "no answer in time" in str(error)
    server.answer = lambda _: (200, {**POD_ANSWER, "late": False})
    go_on.set()
    assert get(client) == {**POD_ANSWER, "late": False}


def test_an_error_of_one_request_is_none_of_the_others(server: Server, client: BlockingClient) -> None:
    """Each answer is its own, and both connections go on."""

    def answer(handler: Any) -> tuple[int, object]:
        missing = {"message": 'pods "q" not found', "details": {"name": "q"}}
        return (404, missing) if handler.path.endswith("/q") else (200, POD_ANSWER)

    server.answer = answer
    other = Call("get", "pods", "/api/v1/namespaces/default/pods/q", "default/q")
    for _ in range(2):
        found, error = get(client, POD, other)
        assert found == POD_ANSWER
        assert isinstance(error, ApiNotFound)
    assert len(server.connections) == 2


def test_a_token_that_was_replaced_is_read_again(server: Server, tmp_path: Path) -> None:
    """Before its time, when the old one is refused; a new one that is refused too is an error."""
    file = tmp_path / "token"
    file.write_text("old")
    client = BlockingClient(Access(server.url, token_file=file))

    def answer(handler: Any) -> tuple[int, object]:
        return (
            (200, POD_ANSWER)
            if handler.headers["Authorization"] == "Bearer new"
            else (401, {"message": "Unauthorized"})
        )

    server.answer = answer
    assert isinstance(get(client), ApiForbidden)
    file.write_text("new")
    assert get(client) == POD_ANSWER
    assert [token for _, token in server.asked] == ["Bearer old", "Bearer old", "Bearer old", "Bearer new"]
    client.close()


def test_a_token_file_that_is_gone_is_named(server: Server, tmp_path: Path) -> None:
    """It may come back, so it is tried again; nothing is sent without it."""
    client = BlockingClient(Access(server.url, token_file=tmp_path / "token"))
    error = get(client)
    assert isinstance(error, ApiUnavailable)
    assert str(tmp_path / "token") in str(error)
    assert server.asked == []


def test_closing_ends_requests_under_way(server: Server, client: BlockingClient) -> None:
    """Who waits for an answer is told at once, and so is who asks later."""
    asked, go_on = threading.Event(), threading.Event()

    def late(_: object) -> tuple[int, object]:
        asked.set()
        return 200, {"late": go_on.wait(20)}

    server.answer = late
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(get, client)
        assert asked.wait(20)
        client.close()
        error = waiting.result(5)
    go_on.set()
    assert isinstance(error, ApiUnavailable)
    assert "the daemon stops" in str(get(client))
    assert not client._busy


def test_many_threads_share_it(server: Server, client: BlockingClient) -> None:
    """Each gets its own answer, and idle connections are bounded."""
    server.answer = lambda handler: (200, {**POD_ANSWER, "path": handler.path})
    calls = [Call("get", "pods", f"/p{number}") for number in range(200)]
    with ThreadPoolExecutor(40) as threads:
        found = list(threads.map(lambda call: get(client, call), calls))
    assert found == [{**POD_ANSWER, "path": call.path} for call in calls]
    assert len(client._idle) <= 24
    assert not client._busy


def test_tls_with_another_name_than_the_hosts(server: Server) -> None:
    """The certificate must have the name that the kubeconfig says; with another one nothing is sent."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(PKI / "server.crt", PKI / "server.key")
    server.http.socket = tls.wrap_socket(server.http.socket, server_side=True)
    trusted = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    url = server.url.replace("http:", "https:")
    answers = []
    for name in ("api.test", "elsewhere.example"):
        client = BlockingClient(Access(url, trusted, name))
        answers.append(get(client))
        client.close()
    assert answers[0] == POD_ANSWER
    assert isinstance(answers[1], ApiUnavailable)
    assert "certificate" in str(answers[1])


def test_claims_in_the_version_that_the_server_has(server: Server) -> None:
    """An older server, and the same one after its upgrade: one request more at the first claim, none afterwards."""
    served = "v1beta2"

    def answer(handler: Any) -> tuple[int, object]:
        known = f"/apis/resource.k8s.io/{served}/" in handler.path or handler.path.startswith("/api/v1/")
        return (200, {**POD_ANSWER, "version": served}) if known else (404, {"message": "the server could not find it"})

    server.answer = answer
    client = ClaimClient(Access(server.url))
    wanted = [Wanted("claim", "default", "c"), Wanted("cached pod", "default", "p")]
    for version in ("v1beta2", "v1"):
        served = version
        for _ in range(2):
            assert client.ask(wanted, deadline=time.monotonic() + 20) == [{**POD_ANSWER, "version": version}] * 2
    paths = [path for path, _ in server.asked if "resourceclaims" in path]
    assert [path.split("/")[3] for path in paths] == ["v1", "v1beta2", "v1beta2", "v1beta2", "v1", "v1"]
    client.close()


def test_a_server_without_the_api_says_so(server: Server) -> None:
    """After all versions were tried."""
    server.answer = lambda _: (404, {"message": "the server could not find the requested resource"})
    client = ClaimClient(Access(server.url))
    (error,) = client.ask([Wanted("claim", "default", "c")], deadline=time.monotonic() + 20)
    assert isinstance(error, ApiError)
    assert "404" in str(error)
    client.close()


def test_several_requests_share_one_deadline(server: Server, client: BlockingClient) -> None:
    """Of a server that answers none of them, the last is not waited for after the first has taken all the time."""
    go_on = threading.Event()
    server.answer = lambda _: (200, {**POD_ANSWER, "late": go_on.wait(20)})
    begin = time.monotonic()
    answers = get(client, *[POD] * 4, within=0.5)
    assert time.monotonic() - begin < 1
    go_on.set()
    assert ["no answer in time" in str(answer) for answer in answers] == [True] * 4


@contextlib.contextmanager
def full_host() -> Iterator[str]:
    """The URL of a host that takes no connection."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


def test_a_host_that_takes_no_connection_is_given_up_soon() -> None:
    """Another server may take its place behind the same address, so there are several attempts, at first short ones."""
    with full_host() as url:
        client = BlockingClient(Access(url))
        begin = time.monotonic()
        assert "no answer in time" in str(get(client, within=20))
        assert time.monotonic() - begin < 5


def test_a_host_that_never_shakes_hands_is_given_up_soon() -> None:
    """As before, with TLS: a load balancer in front of a server that is gone."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(5)
        client = BlockingClient(Access(f"https://127.0.0.1:{mute.getsockname()[1]}", ssl.create_default_context()))
        begin = time.monotonic()
        assert "no answer in time" in str(get(client, within=20))
        assert time.monotonic() - begin < 5


def test_a_server_that_is_slow_to_shake_hands_gets_longer_each_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short attempts alone would never come through to one that is overloaded."""
    monkeypatch.setattr("hami_kubeletplugin.kube.blocking._CONNECT", (0.2, 60.0))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(PKI / "server.crt", PKI / "server.key")
    finish = server.http.finish_request

    def slowly(request: Any, address: Any) -> None:
        time.sleep(0.5)
        with contextlib.suppress(OSError), tls.wrap_socket(request, server_side=True) as secured:
            finish(secured, address)

    monkeypatch.setattr(server.http, "finish_request", slowly)
    trusted = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    client = BlockingClient(Access(server.url.replace("http:", "https:"), trusted, "api.test"))
    answers = [get(client) for _ in range(3)]
    assert [isinstance(answer, ApiUnavailable) for answer in answers] == [True, True, False]
    client.close()


def test_an_answer_may_take_as_long_as_the_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only connecting has a limit of its own: how long a slow server is waited for is up to who asks."""
    monkeypatch.setattr("hami_kubeletplugin.kube.blocking._CONNECT", (0.05, 0.05))
    go_on = threading.Event()
    server.answer = lambda _: (200, {**POD_ANSWER, "waited": not go_on.wait(0.5)})
    client = BlockingClient(Access(server.url))
    assert get(client)["waited"]
    client.close()


def test_closing_ends_an_attempt_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that stops waits for no host that takes no connection."""
    monkeypatch.setattr("hami_kubeletplugin.kube.blocking._CONNECT", (20.0, 60.0))
    with full_host() as url, ThreadPoolExecutor(1) as threads:
        client = BlockingClient(Access(url))
        asking = threads.submit(get, client, within=20)
        while not any(connection.is_open for connection in [*client._busy]):
            time.sleep(0.01)
        time.sleep(0.1)  # in connect; before that it is refused by itself
        client.close()
        assert isinstance(asking.result(5), ApiUnavailable)
    assert not client._busy


@pytest.mark.parametrize("token", ["a\nb", "tok\u20ac"])
def test_a_token_that_no_header_can_hold_is_an_error_that_says_so(server: Server, tmp_path: Path, token: str) -> None:
    """And no connection is left behind."""
    file = tmp_path / "token"
    file.write_text(token)
    client = BlockingClient(Access(server.url, token_file=file))
    for answer in get(client, POD, POD):
        assert isinstance(answer, ApiUnavailable)
        assert f"{file} holds something else than a token" in str(answer)
    assert not client._busy


def test_an_error_nested_beyond_what_python_reads_is_an_error(server: Server, client: BlockingClient) -> None:
    """From something else than the API server."""
    server.answer = lambda _: (502, b"[" * 200_000)
    assert isinstance(get(client), ApiUnavailable)


def test_closing_ends_a_handshake() -> None:
    """A daemon that stops waits for no server that accepts and says nothing; no request is sent any more."""
    listening = socket.create_server(("127.0.0.1", 0))
    client = BlockingClient(
        Access(f"https://127.0.0.1:{listening.getsockname()[1]}", ssl.create_default_context(), token="secret")
    )
    accepted: list[socket.socket] = []

    def stop() -> None:
        accepted.append(listening.accept()[0])
        accepted[0].recv(65536)  # its side of the handshake
        client.close()

    stopping = threading.Thread(target=stop)
    stopping.start()
    started = time.monotonic()
    error = get(client, POD, within=1.9)
    assert isinstance(error, ApiUnavailable)
    assert time.monotonic() - started < 1.8
    stopping.join(10)
    accepted[0].close()
    listening.close()
    assert not client._busy


@pytest.mark.parametrize("host", ["\u00fc." + "x" * 64 + ".test", ".test"])
def test_a_host_that_can_be_none_is_an_error_that_says_so(host: str) -> None:
    """An answer like any other, and nothing is left behind."""
    client = BlockingClient(Access(f"http://{host}:1"))
    assert isinstance(get(client), ApiUnavailable)
    assert not client._busy
    client.close()
