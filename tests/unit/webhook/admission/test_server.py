"""The admission server over real TLS: what may come over a connection, and when."""

import asyncio
import contextlib
import gzip
import json
import socket
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.port.room import Bounds
from hami_kubeletplugin.webhook.admission.metrics import Metrics
from hami_kubeletplugin.webhook.admission.server import Limits
from tests.unit.webhook.admission.https import (
    CLAIMS,
    MALFORMED,
    ApiServerSide,
    CertificateFiles,
    gpu_pod,
    pod,
    review,
    serve_with,
)
from tests.unit.webhook.server import Both, Webhook, serving
from tests.waiting import until


async def test_an_api_server_that_does_not_answer(both: Both) -> None:
    """The answer is there before the caller's time-out is over: a denial that says try again."""
    webhook, api_server = both
    webhook.templates.hold = asyncio.Event()
    started = asyncio.get_running_loop().time()
    status = (await api_server.ask("/mutate?timeout=1s", review(gpu_pod()))).response["status"]
    assert asyncio.get_running_loop().time() - started < 1.0
    assert (status["code"], status["reason"]) == (504, "Timeout")
    assert "try again" in status["message"]


async def test_our_own_bugs(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody foresaw is 500, so that failurePolicy decides, and its traceback is in the log; the next review works."""
    webhook, api_server = both
    webhook.templates.error = KeyError("oops")
    reply = await api_server.ask("/mutate", review(gpu_pod()))
    assert (reply.status, webhook.counted("error")) == (500, 1)
    assert "oops" not in reply.text
    webhook.templates.error = None
    assert (await api_server.ask("/mutate", review(gpu_pod()))).response["allowed"]
    assert "KeyError" in "".join(capsys.readouterr())


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_reviews(both: Both, body: bytes) -> None:
    """What is no review is 400 with a short text, at each endpoint, and the server goes on."""
    webhook, api_server = both
    for path in ("/mutate", "/validate"):
        reply = await api_server.ask(path, body)
        assert (reply.status, len(reply.text) < 250) == (400, True)
        assert webhook.counted("malformed", path) == 1
    assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]


async def test_other_methods_types_and_paths(both: Both) -> None:
    """What nobody should send is answered with the status that says what is wrong."""
    _, api_server = both
    body = json.dumps(review(pod())).encode()
    refused = [
        (await api_server.ask("/mutate", method="GET"), 405),
        (await api_server.ask("/mutate", body, method="PUT"), 405),
        (await api_server.ask("/healthz", body), 405),
        (await api_server.ask("/mutate", body, content_type="application/yaml"), 415),
        (await api_server.ask("/mutate", body, content_type=""), 415),
        (await api_server.ask("/mutate", gzip.compress(body), **{"Content-Encoding": "gzip"}), 415),
        (await api_server.ask("/nothing", body), 404),
        (await api_server.ask("/mutate/", body), 404),
    ]
    assert [reply.status for reply, _ in refused] == [status for _, status in refused]
    assert refused[0][0].headers["Allow"] == "POST"
    with_charset = await api_server.ask("/mutate", body, content_type="application/json; charset=utf-8")
    assert with_charset.response["allowed"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "uid": JSON,
        "operation": st.sampled_from(["CREATE", "UPDATE", "DELETE"]) | JSON,
        "resource": st.sampled_from([CLAIMS]) | JSON,
        "namespace": JSON,
        "dryRun": JSON,
        "subResource": JSON,
        "oldObject": JSON,
        "object": st.fixed_dictionaries(
            {},
            optional={
                "metadata": JSON,
                "kind": JSON,
                "spec": st.fixed_dictionaries(
                    {}, optional={"containers": JSON, "initContainers": JSON, "resourceClaims": JSON, "devices": JSON}
                ),
            },
        )
        | JSON,
    },
)
CONTAINERS = st.fixed_dictionaries(
    {"name": JSON},
    optional={
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "limits": st.dictionaries(
                    st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"]),
                    st.integers(-1, 20) | st.sampled_from(["1", "5k", "x"]) | JSON,
                ),
                "requests": JSON,
                "claims": JSON,
            },
        )
        | JSON,
        "env": JSON,
        "restartPolicy": JSON,
        "securityContext": JSON,
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=REQUESTS, containers=st.lists(CONTAINERS, max_size=3), raw=st.binary(max_size=100))
async def test_whatever_is_sent_is_answered(
    files: CertificateFiles, changes: dict[str, Any], containers: list[Any], raw: bytes
) -> None:
    """Each body has an answer, and none is a failure of ours."""
    async with serving(files) as (_, api_server):
        for body in (review(gpu_pod(), **changes), review(gpu_pod() | {"spec": {"containers": containers}}), raw):
            for path in ("/mutate", "/validate"):
                reply = await api_server.ask(path, body)
                assert reply.status in {200, 400}, reply.text
                if reply.status == 200:
                    assert isinstance(reply.response["allowed"], bool)


async def test_too_deep_for_who_looks_at_it(both: Both) -> None:
    """Any depth of nesting is an answer, also one that the decoder just takes and others don't."""
    webhook, api_server = both
    for depth in (100, *range(940, 1000, 2), 2000):
        deep = "[" * depth + "]" * depth
        body = json.dumps(review(gpu_pod()))
        body = body.replace('"resources": {', f'"resources": {{"claims": {deep}, "more": {deep}, ', 1)
        assert (await api_server.ask("/mutate", body.encode())).status in {200, 400}
    webhook.templates.error = RecursionError()
    assert (await api_server.ask("/mutate", review(gpu_pod()))).status == 400


async def test_large_bodies(files: CertificateFiles) -> None:
    """A body of the cap's length is taken; a longer one is 413, announced or not, and nothing of it stays."""
    body = json.dumps(review(pod())).encode()
    async with serving(files, Limits(body=len(body))) as (webhook, api_server):
        assert (await api_server.ask("/mutate", body)).response["allowed"]
        assert (await api_server.ask("/mutate", body + b" ")).status == 413
        reader, writer = await api_server.raw()
        head = (
            b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(head + b"%x\r\n" % (len(body) + 1) + body + b" \r\n0\r\n\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()
        await until(lambda: webhook.room._received == 0)


async def test_what_an_api_server_may_send_fits(both: Both) -> None:
    """A new and an old object of 3 MiB each are taken."""
    _, api_server = both
    large = pod() | {"metadata": {"annotations": {"a": "x" * 3 * 1024 * 1024}}}
    assert (await api_server.ask("/mutate", review(large, operation="UPDATE", oldObject=large))).response["allowed"]


async def test_a_slow_body(files: CertificateFiles) -> None:
    """Who starts a body and does not end it is told so after a time, and the place is free again."""
    async with serving(files, Limits(reading=0.2)) as (webhook, api_server):
        reader, writer = await api_server.raw()
        writer.write(
            b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert b" 408 " in await reader.readline()
        writer.close()
        await until(lambda: webhook.server._asked == 0)
        assert webhook.counted("malformed") == 1


async def test_who_goes_away(both: Both) -> None:
    """A connection that is cut in the middle of a body frees its place; no failure of ours is counted."""
    webhook, api_server = both
    _, writer = await api_server.raw()
    writer.write(b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
    await writer.drain()
    await until(lambda: webhook.server._asked == 1)
    writer.transport.abort()
    await until(lambda: webhook.server._asked == 0)
    assert webhook.counted("error") == 0


@pytest.mark.parametrize(
    ("limits", "fitting"), [(Limits(reviews=2), 2), (Limits(bodies=3000, body=1500), 3)], ids=["number", "bytes"]
)
async def test_too_many_at_a_time(files: CertificateFiles, limits: Limits, fitting: int) -> None:
    """What is beyond the limits is told to come back, as the API server's client then does; what is within is answered."""
    async with serving(files, limits) as (webhook, api_server):
        webhook.templates.hold = asyncio.Event()
        body = json.dumps(review(gpu_pod())).encode().ljust(1000)
        waiting = [asyncio.create_task(api_server.ask("/mutate", body)) for _ in range(fitting)]
        await until(lambda: webhook.templates.asked == fitting)
        beyond = await api_server.ask("/mutate", body)
        assert (beyond.status, beyond.headers["Retry-After"]) == (429, "1")
        assert (await api_server.ask("/healthz", method="GET")).status == 200
        webhook.templates.hold.set()
        assert all([(await task).response["allowed"] for task in waiting])
        assert (await api_server.ask("/mutate", body)).response["allowed"]
        assert webhook.counted("busy") == 1


def announcing(length: int, body: bytes) -> bytes:
    """A request whose body is not whole."""
    head = b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % length + body


async def test_what_is_announced_costs_nothing(both: Both) -> None:
    """Connections that announce the largest bodies, and send a byte, turn no review away, however many they are."""
    webhook, api_server = both
    connections = [await api_server.raw() for _ in range(8)]
    for _, writer in connections:
        writer.write(announcing(8 * 1024 * 1024, b"{"))
    await until(lambda: webhook.server._asked == 8)
    for _ in range(10):
        assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
    assert webhook.counted("busy") == 0
    for _, writer in connections:
        writer.transport.abort()


async def test_reviews_that_are_not_whole_do_not_count(files: CertificateFiles) -> None:
    """Only what is being answered does: as many as there may be can wait for their bodies, and one more is answered."""
    async with serving(files, Limits(reviews=1)) as (webhook, api_server):
        _, writer = await api_server.raw()
        writer.write(announcing(100, b"{"))
        await until(lambda: webhook.server._asked == 1)
        assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
        writer.transport.abort()


async def test_bytes_of_bodies_that_do_not_end(files: CertificateFiles) -> None:
    """When there is no room for them the largest is told to come again, as one that is real does; small ones are answered."""
    async with serving(files, Limits(port=Bounds(connections=16, received=100_000))) as (_, api_server):
        kept = []
        for size in (40_000, 50_000):
            reader, writer = await api_server.raw()
            writer.write(announcing(1_000_000, b" " * size))
            kept.append((reader, writer))
        for _ in range(10):
            body = json.dumps(review(pod())).encode().ljust(20_000)
            assert (await api_server.ask("/mutate", body)).response["allowed"]
        assert b" 429 " in await kept[1][0].readline()
        headers = await kept[1][0].readuntil(b"\r\n\r\n")
        assert b"Retry-After: 1\r\n" in headers
        assert b"Connection: close\r\n" in headers
        assert not kept[0][0].at_eof()
        for _, writer in kept:
            writer.transport.abort()


async def test_pages_end_their_connection(both: Both) -> None:
    """Health and metrics are answered once: nobody has a hundred of them made by one write."""
    _, api_server = both
    reader, writer = await api_server.raw()
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: w\r\n\r\n" * 100)
    assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 1
    writer.close()


async def test_readiness(both: Both) -> None:
    """Not ready while something is missing, which is named; alive all the while; reviews are answered all the same."""
    webhook, api_server = both
    webhook.missing = ["ResourceSlices"]
    reply = await api_server.ask("/readyz", method="GET")
    assert (reply.status, reply.text) == (503, "waiting for ResourceSlices\n")
    assert (await api_server.ask("/healthz", method="GET")).status == 200
    assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
    webhook.missing = []
    assert (await api_server.ask("/readyz", method="GET")).status == 200


async def test_draining(both: Both) -> None:
    """First not ready, and connections end with their answers; then no new ones, and what is in flight is answered."""
    webhook, api_server = both
    kept = await api_server.ask("/mutate", review(pod()))
    assert "Connection" not in kept.headers
    webhook.templates.hold = asyncio.Event()
    in_flight = asyncio.create_task(api_server.ask("/mutate", review(gpu_pod())))
    await until(lambda: webhook.templates.asked)
    # One more, of which only half of the body is here.
    reader, writer = await api_server.raw()
    body = json.dumps(review(pod())).encode()
    head = b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    writer.write(head + body[:20])
    await until(lambda: webhook.server._asked == 2)

    webhook.server.drain()
    assert (await api_server.ask("/readyz", method="GET")).status == 503
    answered = await api_server.ask("/mutate", review(pod()))
    assert (answered.response["allowed"], answered.headers["Connection"]) == (True, "close")

    stopping = asyncio.create_task(webhook.server.stop(within=10.0))
    port = webhook.server.port
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    assert not stopping.done()
    writer.write(body[20:])
    assert b" 200 " in await reader.readline()
    webhook.templates.hold.set()
    assert (await in_flight).response["allowed"]
    await stopping
    writer.close()


async def test_who_comes_in_the_last_moment(files: CertificateFiles) -> None:
    """When the port is left, who has not asked yet is still served, also on a connection that nobody has taken yet.

    So is who asks again over a connection that rested: nobody can close that one and be sure that no review is on its way. When
    the clients have closed all, it has stopped.
    """
    webhook = Webhook(Limits(parting=60))
    await webhook.server.start("127.0.0.1", 0, serve_with(files))
    body = json.dumps(review(gpu_pod())).encode()
    head = b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    async with ApiServerSide(webhook.server.port, files) as api_server:
        resting, silent = await api_server.raw(), await api_server.raw()
        resting[1].write(head + body)
        first = await resting[0].readuntil(b"\r\n\r\n")
        assert b"Connection: close" not in first
        await resting[0].readexactly(int(first.lower().partition(b"content-length: ")[2].split()[0]))
        late = socket.create_connection(("127.0.0.1", api_server.port))  # while the loop stands still
        stopping = asyncio.create_task(webhook.server.stop(within=60))
        late.setblocking(False)
        queued = await asyncio.open_connection(sock=late, ssl=api_server.tls, server_hostname="127.0.0.1")
        await asyncio.wait({stopping}, timeout=0.6)  # longer than connections that rested were once left open
        for reader, writer in (silent, queued, resting):
            writer.write(head + body)
            answer = await reader.read()  # to the end of the connection
            assert b" 200 " in answer.splitlines()[0]
            assert b"Connection: close" in answer
            writer.close()
        async with asyncio.timeout(10):
            await stopping


async def test_a_failure_does_not_wait_for_clients(files: CertificateFiles) -> None:
    """When the program ends because a part of it failed, connections that rest don't keep the next start from coming soon."""
    webhook = Webhook(Limits(parting=60))
    await webhook.server.start("127.0.0.1", 0, serve_with(files))
    async with ApiServerSide(webhook.server.port, files) as api_server:
        reader, writer = await api_server.raw()
        async with asyncio.timeout(10):
            await webhook.server.stop(patient=False)
            assert await reader.read() == b""
        writer.close()


async def test_stopping_does_not_wait_for_ever(files: CertificateFiles) -> None:
    """A review that does not end is cut off when the time is over."""
    async with serving(files) as (webhook, api_server):
        webhook.templates.hold = asyncio.Event()
        stuck = asyncio.create_task(api_server.ask("/mutate?timeout=30s", review(gpu_pod())))
        await until(lambda: webhook.templates.asked)
        async with asyncio.timeout(5):
            await webhook.server.stop(within=0.1)
        with pytest.raises(aiohttp.ClientError):
            await stuck


async def test_two_processes_share_a_port(files: CertificateFiles) -> None:
    """A successor listens on the same port before its predecessor stops."""
    async with serving(files) as (webhook, api_server):
        successor = Webhook()
        await successor.server.start("127.0.0.1", webhook.server.port, serve_with(files))
        await webhook.server.stop()
        assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
        await successor.server.stop()


async def test_what_is_no_http(both: Both, capfd: pytest.CaptureFixture[str]) -> None:
    """Bytes that are neither TLS nor HTTP end their own connection, are not repeated in the log, and hurt nobody else."""
    _, api_server = both
    reader, writer = await asyncio.open_connection("127.0.0.1", api_server.port)
    writer.write(b"GET /secret HTTP/1.1\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    reader, writer = await api_server.raw()
    writer.write(b"secret secret secret\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
    assert "secret" not in "".join(capfd.readouterr())


async def test_metrics(both: Both) -> None:
    """Reviews, their time, warnings, templates, sizes, the certificate and the version are there for Prometheus.

    What has not come up is there too, with 0.
    """
    _, api_server = both
    await api_server.ask("/mutate", review(pod()))
    await api_server.ask("/mutate", review(None, operation="DELETE"))
    text = (await api_server.ask("/metrics", method="GET")).text
    for line in (
        'hami_webhook_reviews_total{endpoint="/mutate",result="allowed"} 2.0',
        'hami_webhook_review_seconds_count{endpoint="/mutate"} 2.0',
        'hami_webhook_templates_total{action="created"} 0.0',
        "hami_webhook_connections 1.0",
        'hami_webhook_connections_ended_total{why="room"} 0.0',
        'hami_webhook_connections_ended_total{why="time"} 0.0',
        'hami_webhook_reviews_total{endpoint="/mutate",result="failed"} 0.0',
        'hami_webhook_refusals_total{endpoint="/mutate",reason="too_soon"} 0.0',
        'hami_webhook_reviews_warned_total{endpoint="/mutate"} 1.0',
        'hami_webhook_reviews_warned_total{endpoint="/validate"} 0.0',
    ):
        assert line in text.splitlines()
    assert "hami_webhook_build_info{version=" in text
    assert "_created" not in text
    assert Metrics().text() != b""
    assert 'result="allowed"' not in Metrics().text().decode()
