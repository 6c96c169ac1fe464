"""A real Prometheus scrapes the daemon and the webhook: HAMi's dashboard shows our cluster, and so does ours."""

import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import NAMESPACE, NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.prometheus import ADDRESS, Prometheus, free_port, job
from tests.e2e.webhook.objects import gpu_pod, wanting
from tests.e2e.webhook.process import Webhook
from tests.monitoring import exposition
from tests.monitoring.exposition import families
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

NOTHING_HERE = OF_OTHERS - {"up"} | {"hami_gpu_condition", "hami_gpu_xids_total", "hami_nvml_timeouts_total"}
"""What there is none of in this test: no exporters of others, and GPUs of which nothing is to be said."""


@pytest.fixture
def metrics_port() -> int:
    """The daemon's, for metrics."""
    return free_port()


@pytest.fixture
def prometheus(
    metrics_port: int, daemon: Daemon, cluster: Cluster, webhook: Webhook, tmp_path: Path
) -> Iterator[Prometheus]:
    """It scrapes both; the daemon, started anew, serves its metrics."""
    daemon.stop()
    daemon.start("--metrics-address", f"{ADDRESS}:{metrics_port}", "--container-interval", "1")
    jobs = [
        job(
            "hami-system/hami-kubeletplugin", metrics_port, {"node": NODE, "namespace": "hami-system", "pod": "daemon"}
        ),
        job("hami-webhook", webhook.port, {}, scheme="https", tls_config={"insecure_skip_verify": True}),
    ]
    running = Prometheus(tmp_path, jobs, mark=str(cluster.directory))
    try:
        running.scraped()
        yield running
    finally:
        running.stop()
        daemon.restart()


def test_dashboards_show_what_runs(
    cluster: Cluster, prometheus: Prometheus, webhook: Webhook, metrics_port: int
) -> None:
    """Each query of HAMi's dashboard, and of ours where there can be some, gives data; the numbers are the claim's.

    And what `make check` gives to promtool is all that daemon and webhook show, so no family goes unchecked.
    """
    cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=4000, gpucores=30)))
    cluster.running("p")

    wait_for("HAMi's dashboard to show data", lambda: all_shown(prometheus, OF_HAMI), timeout=30)
    [(labels, limit)] = prometheus.query("hami_vgpu_memory_limit_bytes")
    mine = {"namespace": NAMESPACE, "pod": "p", "container": "main", "vdevice_index": "0", "zone": "vGPU"}
    assert mine.items() <= labels.items()
    assert limit == 4000 * MIB
    assert prometheus.query("sum(hami_gpu_memory_allocated_bytes)")[0][1] == 4000 * MIB
    assert prometheus.query("max(hami_gpu_core_allocated_ratio)")[0][1] == 30
    assert prometheus.query("sum(hami_claim_core_limit_ratio)")[0][1] == pytest.approx(0.3)

    [(of_claim, _)] = prometheus.query("hami_claim_memory_limit_bytes")
    [claim] = cluster.all("resourceclaims")
    assert of_claim["resourceclaim_name"] == claim["metadata"]["name"]

    ours = [query for query in queries() if can_have_data(query)]
    wait_for("our dashboard to show data", lambda: all_shown(prometheus, ours), timeout=30)
    for query in queries():
        prometheus.query(query)  # all of them are valid
    assert prometheus.query('ALERTS{alertstate="firing"}') == []

    with urllib.request.urlopen(f"http://{ADDRESS}:{metrics_port}/metrics", timeout=10) as answer:
        assert families(answer.read().decode()) == families(exposition.daemon())
    assert families(webhook.get("/metrics")) == families(exposition.webhook())


def all_shown(prometheus: Prometheus, asked: Iterable[str]) -> bool:
    """Each query gives data."""
    missing = [query for query in asked if not prometheus.query(query)]
    assert not missing, missing
    return True


def can_have_data(query: str) -> bool:
    """Whether nothing that it reads, itself or by a record, is among `NOTHING_HERE`."""
    recorded = {rule["record"]: metrics(rule["expr"]) for rule in rules() if "record" in rule}
    read = metrics(query)
    return not (read | {name for each in read for name in recorded.get(each, ())}) & NOTHING_HERE
