"""The node daemon's page for Prometheus, over real HTTP."""

import asyncio
import contextlib
import math
import socket
from dataclasses import replace

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.observe import metrics
from hami_kubeletplugin.observe.metrics import Facts, Gpu, served
from hami_kubeletplugin.port.room import Bounds

NOTHING = Facts(None, False, None, None, None, None)


async def page(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    """Status and text of an answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


def samples(text: str) -> dict[str, tuple[dict[str, str], float]]:
    """Labels and value by name; each has one sample at the most."""
    families = text_string_to_metric_families(text)
    return {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}


async def test_what_prometheus_sees() -> None:
    """Build, library, containers without limits, the last publishing, registration, what the node lacks; as they are just now."""
    facts = NOTHING
    async with served("127.0.0.1:0", lambda: facts) as port:
        before = samples((await page(port))[1])
        facts = Facts(("2.10.0", "1.2", "a" * 64), True, 3, 1, True, 1764450000.5, True, 1764450001.0, ("hami-core",))
        after = samples((await page(port))[1])
    assert before.pop("hami_kubeletplugin_build_info") == ({"version": __version__}, 1)
    unknown = ("hami_containers_not_limited", "hami_claims_not_known", "hami_gpus_without_claim")
    assert all(math.isnan(before.pop(name)[1]) for name in unknown)
    assert before.pop("hami_node_ready") == ({}, 1)
    assert before == {
        "hami_limits_in_region": ({}, 0),
        "hami_slices_published_timestamp_seconds": ({}, 0),
        "hami_kubelet_registered": ({}, 0),
        "hami_kubelet_registered_timestamp_seconds": ({}, 0),
    }
    assert after == {
        "hami_kubeletplugin_build_info": ({"version": __version__}, 1),
        "hami_core_info": ({"version": "2.10.0", "layout": "1.2", "digest": "a" * 64}, 1),
        "hami_limits_in_region": ({}, 1),
        "hami_containers_not_limited": ({}, 3),
        "hami_claims_not_known": ({}, 1),
        "hami_gpus_without_claim": ({}, 1),
        "hami_slices_published_timestamp_seconds": ({}, 1764450000.5),
        "hami_kubelet_registered": ({}, 1),
        "hami_kubelet_registered_timestamp_seconds": ({}, 1764450001.0),
        "hami_node_ready": ({}, 0),
        "hami_node_lacks": ({"what": "hami-core"}, 1),
    }


async def test_how_gpus_are() -> None:
    """One state of each GPU is 1, and each of its conditions is there as often as it came up."""
    gpus = (
        Gpu("hami-gpu-0", "GPU-1", "Unhealthy", (("xid", "79", 3), ("lost", "", 1))),
        Gpu("hami-gpu-1", "GPU-2", "Healthy", ()),
    )
    facts = replace(NOTHING, gpus=gpus)
    async with served("127.0.0.1:0", lambda: facts) as port:
        text = (await page(port))[1]
    assert [line for line in text.splitlines() if line.startswith("hami_gpu_")] == [
        f'hami_gpu_health{{device="hami-gpu-{n}",device_uuid="GPU-{n + 1}",state="{state}"}} {float(state == now)}'
        for n, now in enumerate(("Unhealthy", "Healthy"))
        for state in ("Healthy", "Unknown", "Unhealthy")
    ] + [
        'hami_gpu_condition{device="hami-gpu-0",device_uuid="GPU-1",value="79",what="xid"} 3.0',
        'hami_gpu_condition{device="hami-gpu-0",device_uuid="GPU-1",value="",what="lost"} 1.0',
    ]


async def test_what_probes_see() -> None:
    """200 while it is well, or 503 and words; a path that nobody gave is told what there is."""
    well = True

    async def probe() -> tuple[bool, str]:
        return well, "hami-core"

    async with served("127.0.0.1:0", lambda: NOTHING, {"/readyz": probe}) as port:
        assert await page(port, "/readyz") == (200, "ok\n")
        well = False
        assert await page(port, "/readyz") == (503, "not well: hami-core\n")
        assert await page(port, "/readyz", "POST") == (405, "GET it\n")
        assert await page(port, "/healthz") == (404, "there is /metrics, /readyz\n")


async def test_there_is_nothing_else() -> None:
    """Other paths and methods are answered with what there is."""
    async with served("127.0.0.1:0", lambda: NOTHING) as port:
        assert await page(port, "/") == (404, "there is /metrics\n")
        assert await page(port, method="POST") == (405, "GET it\n")


@pytest.mark.parametrize("host", ["", "[::1]", "localhost"])
async def test_addresses(host: str) -> None:
    """All addresses, an IPv6 one, or a name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        async with served(f"{host}:{port}", lambda: NOTHING) as got:
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
    async with served("127.0.0.1:0", lambda: NOTHING) as port:
        with pytest.raises(SettingsError, match=f"--metrics-address 127.0.0.1:{port} .*Address already in use"):
            async with served(f"127.0.0.1:{port}", lambda: NOTHING):
                pass


async def test_connections_that_only_sit_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """They don't keep Prometheus away, not even from their own address; only so many stay, and each for a while only."""
    monkeypatch.setattr(metrics, "_BOUNDS", Bounds(connections=4, received=1000, header=0.5))
    async with served("127.0.0.1:0", lambda: NOTHING) as port, contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            readers.append(reader)
        assert (await page(port))[0] == 200
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(reader.read() for reader in readers)) == [b""] * 8
        assert (await page(port))[0] == 200
