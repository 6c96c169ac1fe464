"""The node daemon's page for Prometheus and probes, over real HTTP."""

import asyncio
import contextlib
import socket

import aiohttp
import pytest
from prometheus_client.core import GaugeMetricFamily

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.observe import endpoint
from hami_kubeletplugin.observe.endpoint import Door, served
from hami_kubeletplugin.port.room import Bounds


async def page(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    """Status and text of an answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_what_probes_see() -> None:
    """200 while it is well, or 503 and words; a path that nobody gave is told what there is."""
    well = True

    async def probe() -> tuple[bool, str]:
        return well, "hami-core"

    async with served("127.0.0.1:0", [], {"/readyz": probe}) as port:
        assert await page(port, "/readyz") == (200, "ok\n")
        well = False
        assert await page(port, "/readyz") == (503, "not well: hami-core\n")
        assert await page(port, "/readyz", "POST") == (405, "GET it\n")
        assert await page(port, "/healthz") == (404, "there is /metrics, /readyz\n")


async def test_there_is_nothing_else() -> None:
    """Other paths and methods are answered with what there is."""
    async with served("127.0.0.1:0", []) as port:
        assert await page(port, "/") == (404, "there is /metrics\n")
        assert await page(port, method="POST") == (405, "GET it\n")


@pytest.mark.parametrize("host", ["", "[::1]", "localhost"])
async def test_addresses(host: str) -> None:
    """All addresses, an IPv6 one, or a name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        async with served(f"{host}:{port}", []) as got:
            assert got == port
            _, writer = await asyncio.open_connection("::1" if host == "[::1]" else "127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
    except SettingsError as error:
        if "assign requested address" not in str(error) or host != "[::1]":
            raise
        pytest.skip("needs IPv6")


async def test_an_address_that_is_taken() -> None:
    """The error names the option and the reason."""
    async with served("127.0.0.1:0", []) as port:
        with pytest.raises(SettingsError, match=f"--metrics-address 127.0.0.1:{port} .*Address already in use"):
            async with served(f"127.0.0.1:{port}", []):
                pass


async def test_connections_that_only_sit_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """They don't keep Prometheus away, not even from their own address; only so many stay, and each for a while only."""
    monkeypatch.setattr(endpoint, "_BOUNDS", Bounds(connections=4, received=1000, header=0.5))
    async with served("127.0.0.1:0", []) as port, contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            readers.append(reader)
        assert (await page(port))[0] == 200
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(reader.read() for reader in readers)) == [b""] * 8
        assert (await page(port))[0] == 200


async def test_metrics_are_made_after_a_look() -> None:
    """What collectors show is what was seen just now, and HEAD tells how long it is."""
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1

    class Looks:
        def collect(self) -> list[GaugeMetricFamily]:
            return [GaugeMetricFamily("looks", "So many.", value=looks)]

    async with served("127.0.0.1:0", [Looks()], look=look) as port:
        status, text = await page(port)
        assert (status, text.splitlines()[-1], looks) == (200, "looks 1.0", 1)
        assert await page(port, method="HEAD") == (200, "")
        await asyncio.gather(*(page(port) for _ in range(20)))
        assert looks <= 2  # as many as there are seconds


async def test_a_token_is_for_metrics_alone() -> None:
    """401 and what it takes without it, and nothing is looked at; probes are answered, as the kubelet has no token."""

    async def probe() -> tuple[bool, str]:
        return True, ""

    async def look() -> None:
        raise AssertionError("nobody may")

    door = Door(allows=lambda header: header == "Bearer secret")
    async with (
        served("127.0.0.1:0", [], {"/readyz": probe}, look=look, door=door) as port,
        aiohttp.ClientSession() as session,
    ):
        for header in ({}, {"Authorization": "Bearer other"}):
            async with session.get(f"http://127.0.0.1:{port}/metrics", headers=header) as response:
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert "--metrics-token-file" in await response.text()
        assert await page(port, "/readyz") == (200, "ok\n")
    allowed = {"Authorization": "Bearer secret"}
    async with (
        served("127.0.0.1:0", [], door=door) as port,
        aiohttp.ClientSession(headers=allowed) as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate, GZIP;q=0.5", "gzip"),
        ("gzip; q=0.01", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0.000, br", None),
        ("identity", None),
        ("x-gzip", None),
        ("", None),
    ],
)
async def test_who_takes_it_gets_it_compressed(accepted: str, coding: str | None) -> None:
    """Prometheus does; the text is the same."""

    class One:
        def collect(self) -> list[GaugeMetricFamily]:
            return [GaugeMetricFamily("one", "One.", value=1)]

    async with (
        served("127.0.0.1:0", [One()]) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": accepted}) as response,
    ):
        assert response.headers.get("Content-Encoding") == coding
        assert (await response.text()).endswith("one 1.0\n")
