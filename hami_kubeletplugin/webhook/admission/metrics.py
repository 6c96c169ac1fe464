"""What Prometheus gets to see of the webhook. A registry of its own: nothing of it is global."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import ApiConflict, ApiError, ApiExpired, ApiForbidden, ApiNotFound, ApiUnavailable
from hami_kubeletplugin.kube.call import METHODS
from hami_kubeletplugin.observe import exposition
from hami_kubeletplugin.port.room import Room
from hami_kubeletplugin.webhook.admission.reasons import REASONS

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0, 10.0)
"""Seconds. Most reviews need 1 ms; those that write a template as long as the API server needs."""
_PREFIX: Final = "hami_webhook"
RESULTS: Final = ("allowed", "converted", "denied", "failed", "busy", "malformed", "stranger", "error")
"""What becomes of requests."""
_API_RESULTS: Final[Mapping[type[Exception], str]] = {
    ApiNotFound: "not_found",
    ApiConflict: "conflict",
    ApiExpired: "expired",
    ApiForbidden: "forbidden",
    ApiUnavailable: "unavailable",
    ApiError: "other",
}
"""The first three are no trouble: objects come and go, and watches reach back some minutes only."""


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
        self._refusals = Counter(
            f"{_PREFIX}_refusals",
            "Reviews that were denied, by why; failed and busy ones too.",
            ["endpoint", "reason"],
            registry=self._registry,
        )
        self._warned = Counter(
            f"{_PREFIX}_reviews_warned",
            "Reviews whose answer had warnings, allowed or not.",
            ["endpoint"],
            registry=self._registry,
        )
        self._requests = Counter(
            f"{_PREFIX}_api_requests",
            "Requests to the API server, by what came of them; of watches, how they began.",
            ["verb", "result"],
            registry=self._registry,
        )
        for verb in METHODS:
            for result in ("ok", *_API_RESULTS.values()):
                self._requests.labels(verb, result)
        self._collections = Counter(
            f"{_PREFIX}_collections",
            "Looks for unused templates: ok, failed, or left to another replica.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in ("ok", "failed", "left"):
            self._collections.labels(outcome)
        build = Gauge(f"{_PREFIX}_build_info", "1, for its labels.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)

    def review(self, endpoint: str, result: str, seconds: float) -> None:
        """Count one request."""
        self._reviews.labels(endpoint, result).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def expect(self, endpoints: Iterable[str]) -> None:
        """Have what can become of reviews there at 0, so that a rate knows the first one, too."""
        for endpoint in endpoints:
            for result in RESULTS:
                self._reviews.labels(endpoint, result)
            for reason in REASONS.values():
                self._refusals.labels(endpoint, reason)
            self._seconds.labels(endpoint)
            self._warned.labels(endpoint)

    def answer(self, endpoint: str, reason: str, *, warned: bool) -> None:
        """Count what is in an answer: why it denies, empty if it doesn't, and whether it warns."""
        if reason:
            self._refusals.labels(endpoint, reason).inc()
        if warned:
            self._warned.labels(endpoint).inc()

    def api_request(self, verb: str, error: ApiError | None) -> None:
        """Count a request to the API server."""
        result = "ok" if error is None else next(_API_RESULTS[c] for c in type(error).__mro__ if c in _API_RESULTS)
        self._requests.labels(verb, result).inc()

    def collection(self, outcome: str) -> None:
        """Count a look for unused templates: `ok`, `failed` or `left` to another replica."""
        self._collections.labels(outcome).inc()

    def template(self, action: str) -> None:
        """Count one write of a template: `created`, `stamped` or `collected`."""
        self._templates.labels(action).inc()

    def watch_sizes(self, count: Callable[[], int]) -> None:
        """Show how many sizes of GPU are known."""
        sizes = Gauge(f"{_PREFIX}_gpu_sizes", "Different GPUs, by model and memory, known.", registry=self._registry)
        sizes.set_function(lambda: float(count()))

    def watch_templates(self, count: Callable[[], int]) -> None:
        """Show how many templates of ours there are."""
        kept = Gauge(
            f"{_PREFIX}_templates_kept",
            "ResourceClaimTemplates of the webhook that the cluster has.",
            registry=self._registry,
        )
        kept.set_function(lambda: float(count()))

    def watch_readiness(self, missing: Callable[[], Sequence[str]]) -> None:
        """Show whether anything is still waited for."""
        ready = Gauge(f"{_PREFIX}_ready", "1 if all is known that reviews need, else 0.", registry=self._registry)
        ready.set_function(lambda: float(not missing()))

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
