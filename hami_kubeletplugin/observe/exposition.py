"""Prometheus' text format. Imported only where metrics are wanted: 2.5 MB.

Contract: https://prometheus.io/docs/instrumenting/exposition_formats/, text format 0.0.4.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

_number: Final[Callable[[float], str]] = floatToGoString
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Else each counter and histogram has a second family, with the time at which it was made: a series more for each of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]


def text(registry: CollectorRegistry) -> bytes:
    """All that the registry's collectors say now: gauges, counters and histograms.

    What the client library itself makes of them, in a third of its time: it looks again at each name of each sample, which with
    hundreds of containers is most of the cost of a scrape.
    """
    labels: _Labels = {}
    return "".join(line for family in registry.collect() for line in _lines(family, labels)).encode()


_Labels = dict[tuple[tuple[str, str], ...], str]
"""Labels as they stand in the text; a container's are the same in a dozen families."""


def _lines(family: Metric, labels: _Labels) -> Iterator[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    words = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {words}\n# TYPE {name} {family.type}\n"
    for sample in family.samples:
        key = (*sample.labels.items(),)
        written = labels.get(key)
        if written is None:
            written = labels[key] = _written(sample.labels)
        yield f"{sample.name}{written} {_number(sample.value)}\n"


def _written(labels: Mapping[str, str]) -> str:
    pairs = [f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items())]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
