"""The daemon as a process, as a node runs it, and what the kernel says about it."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.objects import remove_slices
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.standin.kubelet import Plugin, StandinKubelet

PATIENCE: Final = 30.0
_BUILT: Final = Path(__file__).parents[1] / "tests/build"
HAMI_CORE: Final = _BUILT / "libvgpu.so"
"""The stand-in of the tests, as whose release the driver knows how regions are laid out."""
HOOK: Final = _BUILT / "hami-region-hook"
"""What the image ships. `hack/native` builds both."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Places:
    """Where it keeps its files.

    Attributes:
        disk: On a real disk, a folder for each node: records, HAMi-core's files, caches.
        memory: On a tmpfs, as /run is, too: CDI specs, the kubelet's registry.
    """

    disk: Path
    memory: Path


@dataclass(frozen=True, slots=True)
class Daemon:
    """One that is registered and has published.

    Attributes:
        pid: Its process.
        plugin: The caller's connection, as the kubelet has one.
        registered, published: Milliseconds from its start until then.
        slices, devices: What it has published.
    """

    pid: int
    plugin: Plugin
    registered: float
    published: float
    slices: int
    devices: int

    def pss(self) -> float:
        """MB of memory, shared pages in proportion."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise LookupError("smaps_rollup has no Pss")

    def cpu_seconds(self) -> float:
        """CPU time since its start, user and system."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS

    async def idle_cpu(self, seconds: float) -> float:
        """Percent of one CPU while nothing is asked but the health stream, which the kubelet keeps open."""
        stream = asyncio.create_task(self._follow_health())
        try:
            await asyncio.sleep(1)
            before, started = self.cpu_seconds(), time.monotonic()
            await asyncio.sleep(seconds)
            return 100 * (self.cpu_seconds() - before) / (time.monotonic() - started)
        finally:
            stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stream

    async def _follow_health(self) -> None:
        async for _ in self.plugin.watch_health():
            pass


@contextlib.asynccontextmanager
async def running(kubeconfig: Path, places: Places, api: KubeClient, node: str, simulate: str) -> AsyncIterator[Daemon]:
    """Start it, wait until it is registered and its GPUs are visible, stop it at the end.

    Raises:
        TimeoutError: It did not come that far; its log is on stderr.
    """
    await remove_slices(api, node)
    since = (await api.list_slices(DRIVER, node)).resource_version
    disk, memory = places.disk / node, places.memory / node
    registry = memory / "registry"
    async with StandinKubelet(registry, poll=0.005) as kubelet:
        visible = asyncio.create_task(_visible(api, node, since))
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).parent / "hami-kubeletplugin", "run"),
            *("--simulate", simulate, "--driver-edits", "none", "--node-name", node, "--log-level", "warning"),
            *("--kubeconfig", kubeconfig, "--registry-dir", registry, "--cdi-dir", memory / "cdi"),
            *("--plugin-dir", disk / "plugin", "--hami-dir", disk / "vgpu"),
            *("--hami-core", HAMI_CORE, "--region-hook", HOOK),
        )
        try:
            plugin = await kubelet.plugin(DRIVER, PATIENCE)
            registered = time.perf_counter()
            async with asyncio.timeout(PATIENCE):
                published, slices, devices = await visible
            yield Daemon(
                process.pid, plugin, (registered - started) * 1000, (published - started) * 1000, slices, devices
            )
        finally:
            visible.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), PATIENCE)


async def _visible(api: KubeClient, node: str, since: str) -> tuple[float, int, int]:
    """When the pool was complete: time, slices, devices."""
    devices: dict[str, int] = {}
    async for event in api.watch_slices(DRIVER, node, since):
        if event.type != "BOOKMARK":
            spec = event.object["spec"]
            devices[event.object["metadata"]["name"]] = len(spec["devices"])
            if len(devices) == spec["pool"]["resourceSliceCount"]:
                return time.perf_counter(), len(devices), sum(devices.values())
    raise TimeoutError("the watch ended before the slices were complete")
