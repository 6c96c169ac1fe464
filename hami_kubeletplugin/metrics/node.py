"""The node daemon itself, as a collector."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin import __version__


@dataclass(frozen=True, slots=True)
class Facts:
    """What is shown.

    Attributes:
        core: Version, layout and digest of HAMi-core as it is installed, each empty if unknown; None while it is not installed.
        in_region: Whether new containers get a region that we made, and don't depend on variables.
        not_limited: Running containers in which no process has loaded HAMi-core; None if that can't be told.
        not_known: Claims of which that can't be told, since their containers have too many mounts or mappings; None as before.
        open_to_all: Whether the NVIDIA runtime gives containers GPUs without a claim; None if that can't be told.
        published_at: UNIX time at which the ResourceSlices were last found, or made, right; None: never yet.
        registered: Whether the kubelet has the driver registered.
        registered_at: UNIX time at which the kubelet said so last; None: never yet.
        lacking: What keeps claims from being prepared on this node, in a word each.
        limit_differs: Running containers whose region has other limits than their claim; None if that can't be told.
    """

    core: tuple[str, str, str] | None
    in_region: bool
    not_limited: int | None
    not_known: int | None
    open_to_all: bool | None
    published_at: float | None
    registered: bool = False
    registered_at: float | None = None
    lacking: tuple[str, ...] = ()
    limit_differs: int | None = None


class Node(Collector):
    """The daemon's own families.

    Args:
        facts: Asked each time.
    """

    def __init__(self, facts: Callable[[], Facts]) -> None:
        self._facts = facts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All of them."""
        facts = self._facts()
        build = GaugeMetricFamily("hami_kubeletplugin_build_info", "1, for its labels.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        core = GaugeMetricFamily(
            "hami_kubeletplugin_library_info",
            "1, for its labels: the library that new containers get; what is not known is empty.",
            labels=["version", "layout", "digest"],
        )
        if facts.core is not None:
            core.add_metric(facts.core, 1)
        yield core
        yield GaugeMetricFamily(
            "hami_limits_in_region",
            "1 if new containers get their limits in a region made by the driver, 0 if in variables only.",
            float(facts.in_region),
        )
        yield GaugeMetricFamily(
            "hami_containers_not_limited",
            "Running containers in which no process has loaded HAMi-core; NaN if processes can't be seen.",
            _or_nan(facts.not_limited),
        )
        yield GaugeMetricFamily(
            "hami_claims_not_known",
            "Claims whose containers have more mounts or mappings than are read to tell it; NaN if processes can't be seen.",
            _or_nan(facts.not_known),
        )
        yield GaugeMetricFamily(
            "hami_containers_limit_differs",
            "Running containers whose region has other limits than their claim; NaN if that can't be told.",
            _or_nan(facts.limit_differs),
        )
        yield GaugeMetricFamily(
            "hami_gpus_without_claim",
            "1 if the NVIDIA runtime's configuration lets containers have GPUs without a claim, 0 if not; NaN if none is seen.",
            _or_nan(facts.open_to_all),
        )
        yield GaugeMetricFamily(
            "hami_slices_published_timestamp_seconds",
            "UNIX time at which the ResourceSlices were last found, or made, right; 0: never since the start.",
            facts.published_at or 0.0,
        )
        yield GaugeMetricFamily(
            "hami_kubelet_registered",
            "1 while the kubelet has the driver registered, else 0: no pod with its claims can start on this node.",
            float(facts.registered),
        )
        yield GaugeMetricFamily(
            "hami_kubelet_registered_timestamp_seconds",
            "UNIX time at which the kubelet last said that it has registered the driver; 0: never since the start.",
            facts.registered_at or 0.0,
        )
        yield GaugeMetricFamily(
            "hami_node_ready", "1 if claims can be prepared on this node, else 0.", float(not facts.lacking)
        )
        lacking = GaugeMetricFamily(
            "hami_node_lacks", "1 for each thing that keeps claims from being prepared on this node.", labels=["what"]
        )
        for what in facts.lacking:
            lacking.add_metric([what], 1)
        yield lacking


def _or_nan(known: float | None) -> float:
    return math.nan if known is None else float(known)
