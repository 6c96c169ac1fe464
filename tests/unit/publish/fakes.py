"""GPUs, a clock that tests steer, and a publisher that runs against an API server in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.publish.publisher import Publisher
from tests.waiting import settled


def gpu(minor: int = 0, **fields: Any) -> Gpu:
    """An A100 of 40 GiB; `fields` change it."""
    facts: dict[str, Any] = {
        "uuid": f"GPU-00000000-0000-0000-0000-{minor:012}",
        "minor": minor,
        "pci_bus_id": bus_id(minor),
        "name": "NVIDIA A100-SXM4-40GB",
        "brand": "Tesla",
        "architecture": "Ampere",
        "compute_capability": (8, 0),
        "memory_bytes": 40 * 2**30,
        "driver_version": "550.54.15",
        "cuda_driver_version": (12, 4),
        "pcie_root": "pci0000:00",
        "numa_node": 0,
    }
    return Gpu(**facts | fields)


def bus_id(number: int) -> str:
    """A PCI bus id that grows with the number."""
    return f"0000:{number:02x}:00.0"


TWO = Inventory((gpu(0), gpu(1)))
MANY = Inventory(tuple(gpu(n) for n in range(66)))


class Time:
    """A clock that only moves when somebody sleeps; while `held`, sleepers wait until `release`."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()
        self._go = asyncio.Event()
        self._go.set()

    async def sleep(self, seconds: float) -> None:
        """Pass the time at once, or when released."""
        self.slept.append(seconds)
        await self._go.wait()
        self.now += seconds
        await asyncio.sleep(0)

    def clock(self) -> float:
        """The time now."""
        return self.now

    def hold(self) -> None:
        """Let sleepers wait from now on."""
        self._go.clear()

    def release(self) -> None:
        """Let them go on."""
        self._go.set()


class World:
    """A server with a node, and one publisher on it."""

    def __init__(self, server: ApiServer, publisher: Publisher, time: Time) -> None:
        self.server, self.publisher, self.time = server, publisher, time

    @property
    def slices(self) -> list[dict[str, Any]]:
        """The slices that are there."""
        return self.server.all("resourceslices")

    @property
    def devices(self) -> list[str]:
        """Names of all published devices, in the scheduler's order."""
        return [device["name"] for item in self.slices for device in item["spec"].get("devices", [])]

    @property
    def told(self) -> dict[str, str]:
        """What the kubelet is told of each device."""
        return {each.device: each.health for each in self.publisher.health.get()}

    async def quiet(self) -> None:
        """Let everything that is under way end, without moving the time."""
        before = -1
        while before != (before := self.server.requests.total()):
            await asyncio.sleep(0.05)
            await (
                settled()
            )  # also where this process had no time to run in these 50 ms: server and client are both in it


@asynccontextmanager
async def running(server: ApiServer, **options: Any) -> AsyncIterator[World]:
    """A publisher that runs, on a server that is up."""
    time = Time()
    settings: dict[str, Any] = {"driver": "gpu.hami.io", "node": "n1", "sharing": Sharing()} | options
    async with KubeClient(Access(server.url), timeout=5) as client:
        publisher = Publisher(client, sleep=time.sleep, clock=time.clock, **settings)
        task = asyncio.create_task(publisher.run())
        try:
            yield World(server, publisher, time)
            assert not task.done(), task.result()
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
