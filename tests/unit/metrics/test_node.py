"""What Prometheus sees of the daemon itself, and of the health of GPUs."""

import math

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hami_kubeletplugin import __version__
from hami_kubeletplugin.gpu.conditions import Condition, Conditions, What
from hami_kubeletplugin.metrics.gpus import GpuStates
from hami_kubeletplugin.metrics.node import Facts, Node

NOTHING = Facts(None, False, None, None, None, None)


def page(collector: Collector) -> str:
    """Prometheus' text."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def samples(facts: Facts) -> dict[str, tuple[dict[str, str], float]]:
    """Labels and value by name; each has one sample at the most."""
    families = text_string_to_metric_families(page(Node(lambda: facts)))
    return {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}


def test_what_prometheus_sees() -> None:
    """Build, library, containers without limits, the last publishing, registration, what the node lacks."""
    before = samples(NOTHING)
    after = samples(
        Facts(("2.10.0", "1.2", "a" * 64), True, 3, 1, True, 1764450000.5, True, 1764450001.0, ("hami-core",), 2)
    )
    assert before.pop("hami_kubeletplugin_build_info") == ({"version": __version__}, 1)
    unknown = (
        "hami_containers_not_limited",
        "hami_claims_not_known",
        "hami_containers_limit_differs",
        "hami_gpus_without_claim",
    )
    assert all(math.isnan(before.pop(name)[1]) for name in unknown)
    assert before.pop("hami_node_ready") == ({}, 1)
    assert before == {
        "hami_limits_in_region": ({}, 0),
        "hami_slices_published_timestamp_seconds": ({}, 0),
        "hami_kubelet_registered": ({}, 0),
        "hami_kubelet_registered_timestamp_seconds": ({}, 0),
    }
    assert after == {
        "hami_kubeletplugin_build_info": ({"version": __version__}, 1),
        "hami_kubeletplugin_library_info": ({"version": "2.10.0", "layout": "1.2", "digest": "a" * 64}, 1),
        "hami_limits_in_region": ({}, 1),
        "hami_containers_not_limited": ({}, 3),
        "hami_claims_not_known": ({}, 1),
        "hami_containers_limit_differs": ({}, 2),
        "hami_gpus_without_claim": ({}, 1),
        "hami_slices_published_timestamp_seconds": ({}, 1764450000.5),
        "hami_kubelet_registered": ({}, 1),
        "hami_kubelet_registered_timestamp_seconds": ({}, 1764450001.0),
        "hami_node_ready": ({}, 0),
        "hami_node_lacks": ({"what": "hami-core"}, 1),
    }


def test_how_gpus_are() -> None:
    """One state of each GPU is 1, and each of its conditions is there as often as it came up."""
    conditions = Conditions()
    conditions.report("nvml", {"GPU-1": [Condition(What.XID, "", "79", count=3), Condition(What.LOST, "")]})
    text = page(GpuStates(lambda: {"GPU-1": "hami-gpu-0", "GPU-2": "hami-gpu-1"}, conditions))
    assert [line for line in text.splitlines() if line.startswith("hami_gpu_")] == [
        f'hami_gpu_health{{device="hami-gpu-{n}",device_uuid="GPU-{n + 1}",state="{state}"}} {float(state == now)}'
        for n, now in enumerate(("Unhealthy", "Healthy"))
        for state in ("Healthy", "Unknown", "Unhealthy")
    ] + [
        'hami_gpu_condition{device="hami-gpu-0",device_uuid="GPU-1",value="",what="lost"} 1.0',
        'hami_gpu_condition{device="hami-gpu-0",device_uuid="GPU-1",value="79",what="xid"} 3.0',
    ]
