"""How each GPU is, as a collector."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin.gpu.conditions import EVERY, Conditions, health

_STATES: Final = ("Healthy", "Unknown", "Unhealthy")
"""What the kubelet is told of a GPU."""


class GpuStates(Collector):
    """The health of each GPU that is known, and what is to be said of it: at most one condition of each kind.

    Args:
        devices: Gives the names of devices by UUID.
        conditions: What is to be said of GPUs.
    """

    def __init__(self, devices: Callable[[], Mapping[str, str]], conditions: Conditions) -> None:
        self._devices, self._conditions = devices, conditions

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Two families."""
        state = GaugeMetricFamily(
            "hami_gpu_health",
            "1 for the state that the kubelet is told of the GPU's device, 0 for the others.",
            labels=["device", "device_uuid", "state"],
        )
        condition = GaugeMetricFamily(
            "hami_gpu_condition",
            "What is to be said of the GPU, as often as it came up since it began; absent when it has ended.",
            labels=["device", "device_uuid", "what", "value"],
        )
        devices = self._devices()
        for uuid in sorted({*devices, *self._conditions.all.get()} - {EVERY}):
            device, found = devices.get(uuid, ""), self._conditions.of(uuid)
            now = health(found)[0].value
            for each in _STATES:
                state.add_metric([device, uuid, each], float(each == now))
            for one in found:
                condition.add_metric([device, uuid, one.what.value, one.value], one.count)
        yield state
        yield condition
