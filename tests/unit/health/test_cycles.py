"""Faults and recoveries by the thousand leave nothing behind."""

import gc
import os
import threading
from pathlib import Path

import pytest

from hami_kubeletplugin.gpu.conditions import Conditions, What
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.health.watch import HealthWatch
from hami_kubeletplugin.health.xids import XidRules
from tests.unit.gpu.fake_node import XID, FakeNode
from tests.unit.health.conftest import UUIDS, healthy

CYCLES = 2000
WARM = 500
"""After so many all caches are full."""


def held() -> tuple[int, int, int]:
    """Threads, file descriptors, and bytes of memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")


async def test_thousands_of_faults_and_recoveries(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is told and each ends; threads, descriptors and memory are at the end what they were after the first of them."""
    monkeypatch.delenv("FAKE_NVML_TRACE")  # a line for each call
    sessions = node.sessions()
    conditions = Conditions()
    in_use = set(UUIDS[:2])
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
    faults = [
        (What.ACTION, [healthy(0, action=1), healthy(1)]),
        (What.LOST, [healthy(0, "fail * 15"), healthy(1)]),
        (What.NOT_ANSWERING, ["fail nvmlSystemGetDriverVersion 999", healthy(0), healthy(1)]),
        (What.UNMONITORED, ["load 1", healthy(0, "events 0"), healthy(1)]),
    ]
    source = NvmlSource(sessions, node.sysfs)
    watch.known(await source.discover())
    before = held()
    for cycle in range(CYCLES):
        what, fault = faults[cycle % len(faults)]
        node.write(*fault)
        if what is What.ACTION:
            await watch.poll()
            node.write(healthy(0, action=1), healthy(1))
            node.happen(UUIDS[0], XID, 79)
            assert await watch.listen(5)
        else:
            await watch.poll()
        assert {each.what for each in conditions.of(UUIDS[0])} == {what}
        node.write(healthy(0), healthy(1))
        await watch.poll()
        await watch.poll()
        assert not conditions.all.get()
        if cycle == WARM:
            before = held()
    threads, descriptors, memory = held()
    assert threads <= before[0]
    assert descriptors <= before[1]
    assert memory <= 1.02 * before[2]
    sessions.keep_open = False
    await sessions.use(lambda nvml: None)
    assert node.can_be_unloaded()
