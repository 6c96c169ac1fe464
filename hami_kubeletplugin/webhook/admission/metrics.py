"""What Prometheus gets to see of the webhook. A registry of its own: nothing of it is global."""

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin import __version__
from hami_kubeletplugin.observe import exposition
from hami_kubeletplugin.port.room import Room

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0, 10.0)
"""Seconds. Most reviews need 1 ms; those that write a template as long as the API server needs."""
_PREFIX: Final = "hami_webhook"


class _Ended(Collector):
    def __init__(self, room: Room) -> None:
        self._room = room

    def collect(self) -> Iterator[CounterMetricFamily]:
        ended = CounterMetricFamily(
            f"{_PREFIX}_connections_ended",
            "Connections that we ended: no room, or their client took too much time.",
            labels=["why"],
        )
        for why, count in self._room.ended.items():
            ended.add_metric([why], count)
        yield ended


class Metrics:
    """Counters of the webhook, and gauges that are read when somebody asks."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            f"{_PREFIX}_reviews",
            "Requests to an endpoint, by what became of them.",
            ["endpoint", "result"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_review_seconds",
            "Time from a request's headers to its answer.",
            ["endpoint"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._templates = Counter(
            f"{_PREFIX}_templates",
            "Writes of ResourceClaimTemplates.",
            ["action"],
            registry=self._registry,
        )
        for action in ("created", "stamped", "collected"):
            self._templates.labels(action)
        build = Gauge(f"{_PREFIX}_build_info", "1, for its labels.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)

    def review(self, endpoint: str, result: str, seconds: float) -> None:
        """Count one request."""
        self._reviews.labels(endpoint, result).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def template(self, action: str) -> None:
        """Count one write of a template: `created`, `stamped` or `collected`."""
        self._templates.labels(action).inc()

    def watch_sizes(self, count: Callable[[], int]) -> None:
        """Show how many sizes of GPU are known."""
        sizes = Gauge(f"{_PREFIX}_gpu_sizes", "Different GPUs, by model and memory, known.", registry=self._registry)
        sizes.set_function(lambda: float(count()))

    def watch_certificate(self, expires_at: Callable[[], datetime | None]) -> None:
        """Show how long the certificate is good for."""
        expiry = Gauge(
            f"{_PREFIX}_certificate_expiry_seconds",
            "Seconds until the certificate that is served expires; NaN if none is.",
            registry=self._registry,
        )

        def left() -> float:
            end = expires_at()
            return math.nan if end is None else (end - datetime.now(end.tzinfo)).total_seconds()

        expiry.set_function(left)

    def watch_connections(self, room: Room) -> None:
        """Show how many connections there are, and how many we ended."""
        gauge = Gauge(f"{_PREFIX}_connections", "Connections that are open.", registry=self._registry)
        gauge.set_function(lambda: float(len(room)))
        self._registry.register(_Ended(room))

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return exposition.text(self._registry)
