"""The daemon's metrics, as a process that has prepared a claim shows them."""

import asyncio
import hashlib
import socket
import time
from pathlib import Path

import aiohttp

from hami_kubeletplugin.fake.api_server import ApiServer
from tests.unit.process.daemon import Process
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
