"""A node with NVML whose GPUs are watched, all in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.conditions import Conditions, What, of
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.gpu.watch import HardwareWatch
from hami_kubeletplugin.health.service import GpuHealth
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu
from tests.waiting import until

UUIDS = [f"GPU-00000000-0000-0000-0000-{minor:012d}" for minor in range(4)]


class Watched:
    """Health and hardware of a node, as the daemon has them; polls come fast.

    Attributes:
        in_use: UUIDs of the GPUs that prepared claims have.
        offered: What slices are to be made of, as it came.
    """

    def __init__(self, node: FakeNode) -> None:
        self.node, self.conditions, self.in_use = node, Conditions(), set[str]()
        self.offered: list[Inventory | None] = []
        self.sessions = Sessions(node.library)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, time_limit: float = 20.0, **options: str) -> None:
        """Begin to watch."""
        settings = Settings.checked(node_name="n", sysfs=self.node.sysfs, **({"health_poll": "0.3"} | options))
        self.sessions = self.node.sessions(time_limit)
        self.hardware = HardwareWatch(
            NvmlSource(self.sessions, self.node.sysfs),
            interval=3600,
            on_change=self._changed,
            in_use=lambda: self.in_use,
        )
        self.health = GpuHealth(
            settings,
            self.conditions,
            self.sessions,
            in_use=lambda: self.in_use,
            hardware_changed=self.hardware.wake,
        )
        self._tasks = [asyncio.create_task(part.run()) for part in (self.hardware, self.health)]

    async def listening(self, count: int = 1) -> None:
        """Start to listen to events of so many GPUs in use."""
        self.in_use = set(UUIDS[:count])
        self.start()
        await self.heard(count)

    async def heard(self, count: int) -> None:
        """Wait until NVML is held open and so many GPUs in all have been registered."""
        await until(lambda: self.called("nvmlDeviceRegisterEvents") >= count and not self.node.can_be_unloaded())

    def called(self, call: str) -> int:
        """How often NVML was called so."""
        return [name for _, name in self.node.calls()].count(call)

    def said(self, minor: int) -> dict[What, str]:
        """The conditions of a GPU, and their values."""
        return {each.what: each.value for each in of(self.conditions.all.get(), UUIDS[minor])}

    def message(self, minor: int, what: What) -> str:
        """What people are told."""
        return {each.what: each.message for each in self.conditions.of(UUIDS[minor])}[what]

    def minors(self) -> list[int] | None:
        """The GPUs that slices are made of."""
        return [gpu.minor for gpu in self.offered[-1].gpus] if self.offered and self.offered[-1] else None

    async def polled(self, times: int = 3) -> None:
        """Wait for some more polls."""
        before = self.called("nvmlDeviceGetCount_v2")
        await until(lambda: self.called("nvmlDeviceGetCount_v2") >= before + times)

    def _changed(self, inventory: Inventory | None) -> None:
        self.offered.append(inventory)
        self.health.known(inventory)

    async def stop(self) -> None:
        """End it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.node.write()
        self.sessions.keep_open = False
        await self.sessions.use(lambda nvml: nvml.require("nvmlDeviceGetCount"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """Two GPUs whose driver names recovery actions."""
    fake = FakeNode(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    fake.write(healthy(0), healthy(1))
    return fake


@pytest.fixture
async def watched(node: FakeNode) -> AsyncIterator[Watched]:
    """That node, before anybody watches."""
    watched = Watched(node)
    yield watched
    await watched.stop()


def healthy(minor: int, *more: str, action: int | None = 0) -> str:
    """The lines of a GPU that has this recovery action; None: its driver doesn't know of such."""
    fields = () if action is None else (f"field 230 {action}", "field 144 0", "field 145 0")
    return lines_of_gpu(minor, *fields, *more)
