"""The daemon as a process, as a node runs it, and the reference beside it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.objects import remove_slices
from bench.process import HAMI_CORE, PATIENCE, REFERENCE, REGION_HOOK, Places, Process, program
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.fake.kubelet import FakeKubelet, Plugin
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.kube.resource_api import KubeClient


@dataclass(frozen=True, slots=True)
class Driver:
    """One that is registered: ours or another.

    Attributes:
        process: Itself.
        socket: Where it serves DRA.
    """

    process: Process
    socket: Path


@dataclass(frozen=True, slots=True)
class Daemon(Driver):
    """One that is registered and has published.

    Attributes:
        plugin: The caller's connection, as the kubelet has one.
        registered, published: Milliseconds from its start until then.
        slices, devices: What it has published.
    """

    plugin: Plugin
    registered: float
    published: float
    slices: int
    devices: int

    async def idle_cpu(self, seconds: float) -> float:
        """Percent of one CPU while nothing is asked but the health stream, which the kubelet keeps open."""
        stream = asyncio.create_task(self._follow_health())
        try:
            await asyncio.sleep(1)
            return await self.process.idle_cpu(seconds)
        finally:
            stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stream

    async def _follow_health(self) -> None:
        async for _ in self.plugin.watch_health():
            pass


@contextlib.asynccontextmanager
async def running(
    kubeconfig: Path,
    places: Places,
    api: KubeClient,
    node: str,
    simulate: str,
    *,
    region_hook: Path = REGION_HOOK,
    poll: float = 0.005,
    options: Sequence[str] = (),
) -> AsyncIterator[Daemon]:
    """Start it, wait until it is registered and its GPUs are visible, stop it at the end.

    Looks for it every `poll` seconds, for as long as it runs: often for the time of its start, seldom for that of calls.

    Raises:
        TimeoutError: It did not come that far; its log is on stderr.
    """
    await remove_slices(api, node)
    since = (await api.list_slices(DRIVER, node)).resource_version
    disk, memory = places.disk / node, places.memory / node
    registry = memory / "registry"
    arguments: tuple[str | Path, ...] = (
        *("run", "--simulate", simulate, "--driver-edits", "none", "--node-name", node, "--log-level", "warning"),
        *("--kubeconfig", kubeconfig, "--registry-dir", registry, "--cdi-dir", memory / "cdi"),
        *("--plugin-dir", disk / "plugin", "--hami-dir", disk / "vgpu"),
        *("--hami-core", HAMI_CORE, "--region-hook", region_hook),
        *options,
    )
    async with FakeKubelet(registry, poll=poll) as kubelet:
        visible = asyncio.create_task(_visible(api, node, since))
        started = time.perf_counter()
        try:
            async with program("hami-kubeletplugin", *arguments) as process:
                plugin = await kubelet.plugin(DRIVER, PATIENCE)
                registered = time.perf_counter()
                async with asyncio.timeout(PATIENCE):
                    published, slices, devices = await visible
                yield Daemon(
                    process,
                    disk / "plugin/dra.sock",
                    plugin,
                    (registered - started) * 1000,
                    (published - started) * 1000,
                    slices,
                    devices,
                )
        finally:
            visible.cancel()
            for claim in (disk / "vgpu/cache").glob("*"):  # where it ended before what it had prepared
                mounts.unmount(claim)


@contextlib.asynccontextmanager
async def reference(kubeconfig: Path, places: Places, node: str) -> AsyncIterator[Driver]:
    """Run the reference for the same driver name and node, in folders of its own, until the end of the block.

    Raises:
        TimeoutError: It did not register; its log is on stderr.
    """
    disk, memory = places.disk / "reference", places.memory / "reference"
    options = (
        *("--node-name", node, "--driver-name", DRIVER, "--kubeconfig", kubeconfig),
        *("--plugin-dir", disk, "--registry-dir", memory / "registry", "--cdi-dir", memory / "cdi"),
    )
    async with FakeKubelet(memory / "registry", poll=1) as kubelet, program(REFERENCE, *options) as process:
        await kubelet.plugin(DRIVER, PATIENCE)
        yield Driver(process, disk / "dra.sock")


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
