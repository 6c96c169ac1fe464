"""Prometheus' text format. Imported only where metrics are wanted: 2.5 MB."""

from typing import Final

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Else each counter and histogram has a second family, with the time at which it was made: a series more for each of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]


def text(registry: CollectorRegistry) -> bytes:
    """All that the registry's collectors say now."""
    return generate_latest(registry)
