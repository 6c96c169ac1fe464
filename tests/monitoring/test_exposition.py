"""The pages for Prometheus: as promtool wants them, whatever stands in labels."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.conftest import Promtool
from tests.monitoring.exposition import HOSTILE, daemon, families, webhook

PAGES = pytest.mark.parametrize("page", [daemon, webhook], ids=["daemon", "webhook"])
OF_HAMI = ('hami_gpu_shared_count non-histogram and non-summary metrics should not have "_count" suffix',)
"""What promtool has against names that HAMi gave, and its dashboards ask for."""


@PAGES
def test_promtool_has_nothing_against_it(page: Callable[[], str], promtool: Promtool) -> None:
    """Names, units, types and help follow Prometheus' conventions. HAMi's older names are left out: they are camel case."""
    said = promtool("check", "metrics", stdin=page(), may_fail=True).splitlines()
    assert [line for line in said if line not in OF_HAMI] == []


@PAGES
def test_each_family_is_looked_at(page: Callable[[], str]) -> None:
    """Promtool passes over families without samples, so here each has one."""
    text = page()
    sampled = {family.name for family in text_string_to_metric_families(text) if family.samples}
    assert {name.removesuffix("_total") for name in families(text)} == {name.removesuffix("_total") for name in sampled}


def test_hostile_labels_stay_labels() -> None:
    """Whatever a GPU, a pod or a condition is called comes back as it was, and makes no line of its own; older names too."""
    found = list(text_string_to_metric_families(daemon(legacy=True)))
    values = {value for family in found for sample in family.samples for value in sample.labels.values()}
    assert {value for value in values if '"' in value} == {HOSTILE, f"NVIDIA-{HOSTILE}"}
    assert any(family.name == "HostGPUMemoryUsage" for family in found)
