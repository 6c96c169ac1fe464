"""What the daemon has done since its start, as collectors: its claims, what it published, what it mended, NVML, Xids.

Label sets of which there are few are there from the start, at 0: a rate knows the first failure then, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_kubeletplugin.claims.reasons import INTERNAL, REASONS
from hami_kubeletplugin.observe.counts import Counts, Operation, Repaired, Step, Verb

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. A step takes some milliseconds; one that waits for somebody else, as long as a call of the kubelet."""
_REASONS: Final[Mapping[Operation, Iterable[str]]] = {
    "prepare": (*REASONS.values(), INTERNAL),
    "unprepare": ("refused", "timeout", "not_begun", "storage", INTERNAL),
}
"""What the operations come to grief by. An unprepare needs neither the API server nor the driver."""
_STEPS: Final[Mapping[Operation, tuple[Step, ...]]] = {"prepare": get_args(Step), "unprepare": ("write",)}


class Done(Counts, Collector):
    """What the parts of the daemon tell while they work. Each series is looked up once: a prepare tells seven things."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        operations = Counter(
            "hami_claim_operations",
            "Answers to the kubelet, one for each claim and call; reason is empty where it did not fail.",
            ["operation", "outcome", "reason"],
            registry=registry,
        )
        steps = Histogram(
            "hami_claim_step_seconds",
            "Time of the steps of work on claims: read asks the API server, plan and the driver, write the node's files.",
            ["operation", "step"],
            buckets=_BUCKETS,
            registry=registry,
        )
        in_flight = Gauge(
            "hami_claims_in_flight",
            "Claims in work, or that wait for their turn; what was given up and still hangs is among them.",
            ["operation"],
            registry=registry,
        )
        repairs = Counter(
            "hami_repairs", "What the daemon mended by itself, as often as it did.", ["what"], registry=registry
        )
        slices = Counter("hami_slice_writes", "Writes of ResourceSlices.", ["verb", "outcome"], registry=registry)
        self._answers = {
            (operation, reason): operations.labels(operation, _outcome(not reason), reason)
            for operation, reasons in _REASONS.items()
            for reason in ("", *reasons)
        }
        self._steps = {
            (operation, step): steps.labels(operation, step) for operation, each in _STEPS.items() for step in each
        }
        self._in_flight = {operation: in_flight.labels(operation) for operation in _STEPS}
        self._repairs = {what: repairs.labels(what) for what in get_args(Repaired)}
        self._slices = {
            (verb, good): slices.labels(verb, _outcome(good)) for verb in get_args(Verb) for good in (True, False)
        }

    def collect(self) -> Iterable[Metric]:
        """Five families."""
        return self._registry.collect()

    def began(self, operation: Operation) -> None:
        """See `Counts`."""
        self._in_flight[operation].inc()

    def ended(self, operation: Operation) -> None:
        """See `Counts`."""
        self._in_flight[operation].dec()

    def answered(self, operation: Operation, reason: str) -> None:
        """See `Counts`."""
        self._answers[operation, reason if (operation, reason) in self._answers else INTERNAL].inc()

    def step(self, operation: Operation, step: Step, seconds: float) -> None:
        """See `Counts`."""
        self._steps[operation, step].observe(seconds)

    def repaired(self, what: Repaired) -> None:
        """See `Counts`."""
        self._repairs[what].inc()

    def slice_written(self, verb: Verb, *, good: bool) -> None:
        """See `Counts`."""
        self._slices[verb, good].inc()


class Records(Collector):
    """Records of claims.

    Args:
        counted: How many can be used, and how many can't.
    """

    def __init__(self, counted: Callable[[], tuple[int, int]]) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = GaugeMetricFamily(
            "hami_claim_records",
            "Claims that have a record on this node: prepared, or damaged, which it can't be used and has yet to be made anew.",
            labels=["state"],
        )
        for state, count in zip(("prepared", "damaged"), self._counted(), strict=True):
            family.add_metric([state], count)
        yield family


class Driver(Collector):
    """What NVIDIA's driver told, and where it did not answer. Xids that nobody knows are counted as `other`.

    Args:
        xids: Their number by GPU (UUID) and Xid; of GPUs that are there.
        devices: Gives the names of devices by UUID.
        timeouts: How often NVML was given up, by call.
    """

    def __init__(
        self,
        xids: Callable[[], Mapping[str, Mapping[str, int]]],
        devices: Callable[[], Mapping[str, str]],
        timeouts: Callable[[], Mapping[str, int]],
    ) -> None:
        self._xids, self._devices, self._timeouts = xids, devices, timeouts

    def collect(self) -> Iterator[Metric]:
        """Two families."""
        xids = CounterMetricFamily(
            "hami_gpu_xids", "Xids that the driver told of.", labels=["device", "device_uuid", "xid"]
        )
        devices = self._devices()
        for uuid, counts in sorted(self._xids().items()):
            for xid, count in counts.items():
                xids.add_metric([devices.get(uuid, ""), uuid, xid], count)
        timeouts = CounterMetricFamily(
            "hami_nvml_timeouts", "How often NVML was given up, by the call that did not return.", labels=["call"]
        )
        for call, count in sorted(self._timeouts().items()):
            timeouts.add_metric([call], count)
        yield xids
        yield timeouts


def _outcome(good: bool) -> str:
    return "ok" if good else "failed"
