"""The daemon's metrics, as a process that has prepared a claim shows them."""

import asyncio
import hashlib
import socket
import ssl
import time
from pathlib import Path

import aiohttp
import pytest

from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.gpu.fake_node import FakeNode
from tests.unit.metrics.world import Series, one, series, total
from tests.unit.process.daemon import Process, allocated
from tests.unit.webhook.admission.https import certificate
from tests.waiting import until


async def test_the_daemon_shows_what_it_does(process: Process, api: ApiServer, native: Path) -> None:
    """Which library it installed, that limits are in regions, and that it has published just now; and it stops with status 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    known = ("--hami-core", native / "libvgpu.so", "--region-hook", native / "hami-region-hook")
    started = time.time()
    await process.start(*map(str, known), "--metrics-address", address)
    await until(lambda: api.all("resourceslices"))
    async with aiohttp.ClientSession() as session, asyncio.timeout(15):
        text = ""
        while "hami_slices_published_timestamp_seconds 1." not in text:
            async with session.get(f"http://{address}/metrics") as response:
                text = await response.text()
            await asyncio.sleep(0.05)
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    digest = hashlib.sha256((native / "libvgpu.so").read_bytes()).hexdigest()
    (core,) = (name for name in lines if name.startswith("hami_kubeletplugin_library_info"))
    assert f'digest="{digest}"' in core
    assert 'layout="1.2"' in core
    assert lines["hami_limits_in_region"] == "1.0"
    assert started <= float(lines["hami_slices_published_timestamp_seconds"]) <= time.time()
    assert await process.stop() == 0


async def test_a_share_is_shown_from_its_preparation_to_its_end(
    process: Process, api: ApiServer, native: Path, node: FakeNode, tmp_path: Path
) -> None:
    """Under HAMi's names old and new, and by claim, with the UUID though nothing has run; over TLS, to who has the token."""
    pair, token = certificate(tmp_path), tmp_path / "token"
    token.write_text("0123456789abcdef")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    known = {"--hami-core": native / "libvgpu.so", "--region-hook": native / "hami-region-hook"}
    shown = {"--metrics-address": address, "--metrics-token-file": token, "--legacy-metrics": "true"}
    tls = {"--tls-cert-file": pair.cert, "--tls-key-file": pair.key}

    async def page(shares: int) -> dict[str, Series]:
        """The first one on which so many shares are held, and used."""
        async with asyncio.timeout(20):
            while True:
                async with session.get(f"https://{address}/metrics") as response:
                    assert response.status == 200
                    found = series(await response.text())
                of_gpus, of_claims = (
                    found.get("hami_gpu_shared_count", {}),
                    found.get("hami_claim_memory_used_bytes", {}),
                )
                if len(of_gpus) == 2 and total(of_gpus) == len(of_claims) == shares:
                    return found
                await asyncio.sleep(0.1)

    async with (
        FakeKubelet(process.registry) as kubelet,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=pair.cert)),
            headers={"Authorization": "Bearer 0123456789abcdef"},
        ) as session,
    ):
        await process.start(*(str(each) for pair in (known | shown | tls).items() for each in pair), on=node)
        await until(lambda: api.all("resourceslices"))
        plugin = await kubelet.plugin("gpu.hami.io")
        async with aiohttp.ClientSession() as stranger:
            with pytest.raises(aiohttp.ClientError):
                await stranger.get(f"http://{address}/metrics")
        before = await page(0)
        assert len(before["hami_host_gpu_memory_used_bytes"]) == len(before["hami_gpu_memory_limit_bytes"]) == 2
        ref = allocated(api, "train", memory="4000Mi", cores="30")
        await plugin.prepare([ref])
        during = await page(1)
        of_claim, limit = one(during["hami_claim_memory_limit_bytes"])
        assert limit == 4000 * MIB
        assert (of_claim["namespace"], of_claim["resourceclaim_name"], of_claim["pod"]) == ("default", "train", "train")
        uuid = of_claim["device_uuid"]
        for name, value in {
            "hami_vgpu_memory_limit_bytes": 4000 * MIB,
            "hami_vgpu_memory_used_bytes": 0,
            "hami_vgpu_memory_allocated_bytes": 4000 * MIB,
            "hami_vgpu_core_allocated_ratio": 30,
            "hami_gpu_memory_allocated_bytes": 4000 * MIB,
            "hami_gpu_shared_count": 1,
            "hami_gpu_core_allocated_ratio": 30,
            "hami_claim_core_limit_ratio": 0.3,
        }.items():
            assert total(during[name], device_uuid=uuid) == value
        assert total(during["vGPU_device_memory_limit_in_bytes"], deviceuuid=uuid) == 4000 * MIB
        await plugin.unprepare([ref])
        assert (await page(0)).keys() == before.keys()
    assert await process.stop() == 0


async def test_metrics_are_off_by_default_and_a_taken_port_is_named(process: Process, api: ApiServer) -> None:
    """Nothing listens unless asked; a port that somebody has ends the daemon with words."""
    await process.start()
    await until(lambda: api.all("resourceslices"))
    assert not any("metrics" in event["event"] for event in process.events())
    assert await process.stop() == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        second = await process.start("--metrics-address", f"127.0.0.1:{taken.getsockname()[1]}")
        async with asyncio.timeout(10):
            assert await second.wait() == 1
    assert "--metrics-address 127.0.0.1:" in process.log.read_text().splitlines()[-1]
