"""What containers use of their claims, as a collector.

`namespace` and `resourceclaim_name` are as in kube-state-metrics' `kube_pod_resourceclaim_info`, so that they join.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.metrics.view import View
from hami_kubeletplugin.usage.model import OnGpu

_LABELS: Final = ("namespace", "resourceclaim_name", "pod", "container", "device", "device_uuid")
_TEXTS: Final = {
    "hami_claim_memory_limit_bytes": "GPU memory that the container may use; absent where nothing is limited.",
    "hami_claim_memory_used_bytes": "GPU memory that the container uses.",
    "hami_claim_core_limit_ratio": "Part of the GPU's compute that the container may use, 0 to 1; absent without a limit.",
    "hami_claim_utilization_ratio": "Part of the GPU's compute that the container uses, 0 to 1.",
}


class ClaimUsage(Collector):
    """Four families.

    Args:
        view: What is shown; asked each time.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Of each container, for each claim and each GPU that it has through it."""
        made = {name: GaugeMetricFamily(name, text, labels=_LABELS) for name, text in _TEXTS.items()}
        for of, on in self._view().by_claim():
            labels = (of.claim.namespace, of.claim.name, of.pod, of.container, on.device, on.uuid)
            for name, value in _values(on):
                if value is not None:
                    made[name].add_metric(labels, value)
        yield from made.values()


def _values(on: OnGpu) -> Iterator[tuple[str, float | None]]:
    yield "hami_claim_memory_limit_bytes", on.limit.memory_mib * MIB or None
    yield "hami_claim_memory_used_bytes", None if on.used is None else on.used.total
    yield "hami_claim_core_limit_ratio", on.limit.cores / 100 or None
    yield "hami_claim_utilization_ratio", None if on.utilization is None else on.utilization / 100
