"""A node on which no claim can be prepared says so, and mends itself, with the daemon as a process."""

import asyncio
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.hamicore.mounted import can_mount, mounted
from tests.unit.process.daemon import Process, allocated
from tests.waiting import until

DRIVER = "gpu.hami.io"


class Probes:
    """The daemon's port, as the kubelet's probes and Prometheus ask it."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text; 0 while nobody listens."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{self.address}{path}") as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def become(self, expected: tuple[int, str]) -> None:
        """Wait until that is what readiness says."""
        async with asyncio.timeout(20):
            while (last := await self.get("/readyz")) != expected:
                assert last[0] in {0, 200, 503}
                await asyncio.sleep(0.05)


def _library(process: Process) -> Callable[[], object]:
    content = process.library.read_bytes()
    process.library.unlink()
    return lambda: process.library.write_bytes(content)


def _cdi_directory(process: Process) -> Callable[[], object]:
    process.cdi.write_text("a file")
    return process.cdi.unlink


def _records(process: Process) -> Callable[[], object]:
    process.plugin_dir.mkdir()
    (process.plugin_dir / "claims").write_text("a file")
    return (process.plugin_dir / "claims").unlink


def _noexec(process: Process) -> Callable[[], object]:
    folder = process.root / "vgpu"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "vgpu", folder], check=True, timeout=10)
    return lambda: subprocess.run(["mount", "-o", "remount,exec", folder], check=True, timeout=10)


@pytest.mark.parametrize(
    ("harm", "what", "words"),
    [
        (_library, "hami-core", "libvgpu.so"),
        (_cdi_directory, "cdi-dir", "cdi"),
        (_records, "records", "claims"),
        pytest.param(_noexec, "noexec, hami-core", "noexec", marks=can_mount),
    ],
)
async def test_not_ready_until_it_is_mended(
    process: Process, api: ApiServer, harm: Callable[[Process], Callable[[], object]], what: str, words: str
) -> None:
    """Readiness, metrics and the log say what is missing; the daemon is alive and registered; the repair needs no restart."""
    probes = Probes()
    mend = harm(process)
    with mounted(process.root / "vgpu"):
        async with FakeKubelet(process.registry) as kubelet:
            await process.start("--metrics-address", probes.address)
            plugin = await kubelet.plugin(DRIVER)
            await until(lambda: api.all("resourceslices"))
            await probes.become((503, f"not well: {what}\n"))
            assert await probes.get("/healthz") == (200, "ok\n")
            text = (await probes.get("/metrics"))[1]
            assert "hami_node_ready 0.0" in text
            assert "hami_kubelet_registered 1.0" in text
            assert f'hami_node_lacks{{what="{what.partition(",")[0]}"}} 1.0' in text
            ref = allocated(api, "train", memory="4000Mi")
            assert words in str((await plugin.prepare([ref]))[ref.uid])
            mend()
            await probes.become((200, "ok\n"))
            assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)
            assert await plugin.unprepare([ref]) == {ref.uid: None}
        said = [event["what"] for event in process.events() if event["event"].startswith("this node is not ready")]
        assert said == what.split(", ")
        assert await process.stop() == 0


async def test_unprepare_goes_on(process: Process, api: ApiServer) -> None:
    """A node that has become unable to prepare is alive all the while, and what was prepared can be unprepared."""
    probes = Probes()
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--metrics-address", probes.address)
        plugin = await kubelet.plugin(DRIVER)
        await until(lambda: api.all("resourceslices"))
        await probes.become((200, "ok\n"))
        ref = allocated(api, "train", memory="4000Mi")
        assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)
        for path in (process.library, *(process.root / "vgpu/lib").iterdir()):
            path.unlink()
        await probes.become((503, "not well: hami-core\n"))
        assert await probes.get("/healthz") == (200, "ok\n")
        assert await plugin.unprepare([ref]) == {ref.uid: None}


async def test_a_kubelet_that_refuses(process: Process, api: ApiServer) -> None:
    """A node whose kubelet refused the driver is not ready, and is asked again by itself."""
    probes = Probes()
    async with FakeKubelet(process.registry) as kubelet:
        kubelet.refusing = "busy"
        await process.start("--metrics-address", probes.address)
        await probes.become((503, "not well: kubelet, registration\n"))
        assert "hami_kubelet_registered 0.0" in (await probes.get("/metrics"))[1]
        kubelet.refusing = ""
        await kubelet.plugin(DRIVER, within=20)
        await probes.become((200, "ok\n"))


async def test_no_toolkit(process: Process, api: ApiServer, tmp_path: Path) -> None:
    """Without nvidia-ctk no claim could be prepared, so the node is not ready, before any claim was tried."""
    probes = Probes()
    missing = str(tmp_path / "nvidia-ctk")
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--metrics-address", probes.address, "--driver-edits", "toolkit", "--nvidia-ctk", missing)
        await kubelet.plugin(DRIVER)
        await probes.become((503, "not well: driver-edits\n"))
        (entry,) = [event for event in process.events() if event["event"].startswith("this node is not ready")]
        assert missing in entry["error"]
