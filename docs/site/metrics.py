"""docs/reference/metrics.md: every family that daemon and webhook show, from pages on which all of them are."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from docs.site.declared import code, table
from hami_kubeletplugin.metrics.hami import METRICS
from tests.monitoring.exposition import daemon, webhook

_INTRODUCTION: Final = """\
# Metrics

All families with type, labels and help, as they stand on the pages. What to make of them is in
[operating.md](../operating.md#metrics) and [observability.md](../observability.md), which holds HAMi's beside ours.
"""
_OLDER: Final = """
## HAMi's older names

With `--legacy-metrics` of the daemon, beside the names that they have now.

"""
_BUCKET: Final = "le"


def page() -> str:
    """The page."""
    parts = (
        "\n## Of the daemon\n\n`/metrics` of `--metrics-address`.\n\n",
        table(_HEAD, _rows(daemon())),
        "\n## Of the webhook\n\n`/metrics` of `--port`, over HTTPS.\n\n",
        table(_HEAD, _rows(webhook())),
        _OLDER,
        table(("older name", "now"), ((code(each.legacy), code(each.name)) for each in METRICS if each.legacy)),
    )
    return _INTRODUCTION + "".join(parts)


_HEAD: Final = ("metric", "type", "labels", "help")


def _rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    for family in sorted(text_string_to_metric_families(text), key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels: Mapping[str, None] = {
            label: None for sample in family.samples for label in sample.labels if label != _BUCKET
        }
        yield code(name), family.type, ", ".join(map(code, labels)), family.documentation
