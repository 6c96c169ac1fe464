"""In which order devices stand in the slices. kube-scheduler takes the first that fits, so this is the policy of placement.

Contract: k8s.io/dynamic-resource-allocation, structured: devices are tried in the order of slices and of devices in them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.usage import UNUSED, Usage
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.kube.retry import Sleep
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.publish.devices import Device, uuid

log = get_logger()

PACE: Final = 5.0
"""Seconds between two looks, so the longest for which the order can lag. Each write of a slice has the scheduler try all pods
again that wait for devices."""


def least_used_first(devices: Sequence[Device], used: Mapping[str, Usage]) -> list[Device]:
    """The devices by what is in use of each; those of which it is as much stay in their order.

    Args:
        devices: As they are published.
        used: What is held of each GPU, by UUID; of GPUs that aren't named nothing is.
    """
    return sorted(devices, key=lambda device: _load(device, used.get(uuid(device), UNUSED)))


def _load(device: Device, used: Usage) -> Fraction:
    """Slots, memory and cores in use, each as a part of what is published, added up: 0 to 3.

    The measure of HAMi's own policy `spread` (pkg/scheduler/policy/gpu_policy.go, ComputeScore).
    """
    capacity = device["capacity"]
    total = {name: quantity.parse(capacity[name]["value"]) for name in (names.SHARES, names.MEMORY, names.CORES)}
    held: dict[str, Fraction | int] = {
        names.SHARES: used.slots,
        names.MEMORY: used.memory_mib * names.MIB,
        names.CORES: used.cores,
    }
    return sum((held[name] / total[name] for name in total if total[name]), Fraction(0))


class UsageWatch:
    """Tells what is in use of each GPU whenever that may have changed, at a bounded pace.

    Made in the event loop that `run` runs in.

    Args:
        read: What is held of each GPU, by UUID. Called in a thread; raises a StorageError if it can't be told.
        tell: Gets it.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Usage]],
        tell: Callable[[Mapping[str, Usage]], None],
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._read, self._tell, self._sleep = read, tell, sleep
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()

    def changed(self) -> None:
        """A claim came or went. For any thread; never waits."""
        self._loop.call_soon_threadsafe(self._changed.set)

    async def look(self) -> None:
        """Tell what is in use now."""
        try:
            used = await asyncio.to_thread(self._read)
        except StorageError as error:
            log.warning("the order of GPUs stays as it is until a claim comes or goes", error=str(error))
        else:
            self._tell(used)

    async def run(self) -> None:
        """Look at once when something has changed, but not again within `PACE`. Runs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.look()
            await self._sleep(PACE)
