"""Faults and recoveries by the thousand leave nothing behind."""

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hami_kubeletplugin.gpu.conditions import Conditions, What
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.health.watch import HealthWatch
from hami_kubeletplugin.health.xids import XidRules
from tests.unit.gpu.fake_node import XID, FakeNode
from tests.unit.health.conftest import UUIDS, healthy
from tests.waiting import until

CYCLES = 2000
WARM = 500
"""After so many all caches are full."""
LOAD = 10
"""For so many the driver stays loaded."""


async def settled() -> tuple[int, int, int]:
    """What is held when each thread that has answered has come to its end."""
    await until(lambda: all(thread.name != "nvml" for thread in threading.enumerate()))
    return held()


def held() -> tuple[int, int, int]:
    """Threads, file descriptors, and bytes of memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(600)  # 30 s on a machine that has nothing else to do
async def test_thousands_of_faults_and_recoveries(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is told and each ends; threads, descriptors and memory are at the end what they were after the first of them."""
    monkeypatch.delenv("FAKE_NVML_TRACE")  # a line for each call
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # asyncio's own grows now and then
    sessions = node.sessions()
    conditions = Conditions()
    in_use = set(UUIDS[:3])
    watch = HealthWatch(
        sessions,
        conditions,
        interval=1,
        listen=True,
        rules=XidRules(),
        sysfs=node.sysfs,
        in_use=lambda: in_use,
        hardware_changed=lambda: None,
    )
    try:
        source = NvmlSource(sessions, node.sysfs)
        node.write(*map(healthy, range(3)))
        watch.known(await source.discover())
        await watch.poll()
        before = await settled()
        for cycle in range(CYCLES):
            # One fails, the one before has answered once since, the one before that twice.
            minor, xid = cycle % 3, cycle % 5 == 0
            faulty = healthy(minor, action=1) if xid else healthy(minor, f"fail * {15 + cycle % 2}")
            node.write(f"load {cycle // LOAD}", *(faulty if each == minor else healthy(each) for each in range(3)))
            if xid:
                node.happen(UUIDS[minor], XID, 79)
                await watch.listen(5)
            await watch.poll()
            if cycle % LOAD == 0:
                await source.discover()
            assert conditions.of(UUIDS[minor])[0].what is (What.LOST if not xid and cycle % 2 == 0 else What.ACTION)
            assert not conditions.of(UUIDS[(minor + 1) % 3])
            if cycle == WARM:
                before = await settled()
        threads, descriptors, memory = await settled()
        assert threads <= before[0]
        assert descriptors <= before[1]
        assert memory <= 1.02 * before[2]
    finally:  # else no other test in this process gets NVML
        sessions.keep_open = False
        await sessions.use(lambda nvml: None)
    assert node.can_be_unloaded()
