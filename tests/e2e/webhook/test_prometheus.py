"""A real Prometheus scrapes the daemon and the webhook: HAMi's dashboard shows our cluster, and so does ours."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.prometheus import ADDRESS, Prometheus, free_port, job
from tests.e2e.webhook.objects import gpu_pod, wanting
from tests.e2e.webhook.process import Webhook
from tests.monitoring.reading import OF_OTHERS, metrics, queries, rules
from tests.waiting import wait_for

MIB = 2**20
OF_HAMI = (
    "count(hami_gpu_memory_limit_bytes{node=~'.*'})",
    "sum(hami_gpu_memory_limit_bytes{node=~'.*'})",
    "sum(hami_gpu_memory_allocated_bytes{node=~'.*'})",
    "100 * sum(hami_gpu_memory_allocated_bytes{node=~'.*'}) / sum(hami_gpu_memory_limit_bytes{node=~'.*'})",
    "sum(hami_gpu_shared_count{node=~'.*'})",
    "hami_host_gpu_memory_used_bytes and on (device_uuid) hami_gpu_memory_limit_bytes{node=~'.*'}",
    "hami_host_gpu_utilization_ratio and on (device_uuid) hami_gpu_memory_limit_bytes{node=~'.*'}",
    "sum by (node) (hami_gpu_memory_allocated_bytes{node=~'.*'})",
    "sum by (node) (hami_gpu_memory_limit_bytes{node=~'.*'})",
    "hami_node_gpu_memory_allocated_ratio{node=~'.*'}",
    "hami_gpu_core_allocated_ratio{node=~'.*'}",
    "hami_gpu_shared_count{node=~'.*'}",
    "hami_vgpu_memory_used_bytes{namespace=~'e2e'}",
    "hami_vgpu_memory_limit_bytes{namespace=~'e2e'}",
    "hami_container_device_utilization_ratio{namespace=~'e2e'}",
    "100 * hami_vgpu_memory_used_bytes{namespace=~'e2e'} / hami_vgpu_memory_limit_bytes{namespace=~'e2e'}",
    "topk(10, hami_vgpu_memory_used_bytes{namespace=~'e2e'})",
)
"""All that the dashboard of HAMi 2.10 asks (dashboards/hami-vgpu-dashboard.json), its variables filled in."""

NOTHING_HERE = OF_OTHERS - {"up"} | {
    "hami_gpu_condition",  # nothing is to be said of a GPU
    "hami_gpu_xids_total",
    "hami_nvml_timeouts_total",
    "hami_repairs_total",
}
"""Of these there is nothing in this test, or there may be nothing."""


@pytest.fixture
def prometheus(daemon: Daemon, cluster: Cluster, webhook: Webhook, tmp_path: Path) -> Iterator[Prometheus]:
    """It scrapes both; the daemon, started anew, serves its metrics."""
    port = free_port()
    daemon.stop()
    daemon.start("--metrics-address", f"{ADDRESS}:{port}")
    jobs = [
        job("hami-system/hami-kubeletplugin", port, {"node": NODE, "namespace": "hami-system", "pod": "daemon"}),
        job("hami-webhook", webhook.port, {}, scheme="https", tls_config={"insecure_skip_verify": True}),
    ]
    running = Prometheus(tmp_path, jobs, mark=str(cluster.directory))
    try:
        running.scraped()
        yield running
    finally:
        running.stop()
        daemon.restart()


def test_dashboards_show_what_runs(cluster: Cluster, prometheus: Prometheus) -> None:
    """Each query of HAMi's dashboard, and of ours where there can be some, gives data; the numbers are the claim's."""
    cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=4000, gpucores=30)))
    cluster.running("p")
    mine = {"namespace": "e2e", "pod": "p", "container": "main", "vdevice_index": "0"}

    def shown() -> bool:
        for query in OF_HAMI:
            assert prometheus.query(query), query
        return True

    wait_for("HAMi's dashboard to show data", shown, timeout=30)
    [(labels, limit)] = prometheus.query("hami_vgpu_memory_limit_bytes")
    assert mine.items() <= labels.items()
    assert limit == 4000 * MIB
    assert prometheus.query("sum(hami_gpu_memory_allocated_bytes)")[0][1] == 4000 * MIB
    assert prometheus.query("sum(hami_gpu_shared_count)")[0][1] == 1
    assert max(value for _, value in prometheus.query("hami_gpu_core_allocated_ratio")) == 30
    assert prometheus.query("sum(hami_claim_core_limit_ratio)")[0][1] == pytest.approx(0.3)

    [(per_claim, _)] = prometheus.query("hami_claim_memory_limit_bytes")
    [claim] = cluster.all("resourceclaims")
    assert per_claim["resourceclaim_name"] == claim["metadata"]["name"]

    recorded = {rule["record"]: metrics(rule["expr"]) for rule in rules() if "record" in rule}

    def can_have_data(query: str) -> bool:
        read = metrics(query)
        return not read | set().union(*(recorded.get(name, set()) for name in read)) & NOTHING_HERE

    def ours_shown() -> bool:
        for query in queries():
            assert prometheus.query(query) or not can_have_data(query), query
        return True

    wait_for("our dashboard to show data", ours_shown, timeout=30)
    firing = prometheus.query('ALERTS{alertstate="firing", alertname!~".*Xid|HamiNvmlTimeouts"}')
    assert firing == []


def test_all_that_is_exported_was_looked_at(prometheus: Prometheus, webhook: Webhook, exported: set[str]) -> None:
    """What `make check` gives to promtool is all that daemon and webhook have, so no family goes unchecked."""
    there = {labels["__name__"] for labels, _ in prometheus.query('{__name__=~"hami_.+", __name__!~".+:.+"}')}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) if name.startswith("hami_claim_step") else name for name in there}
    assert families
