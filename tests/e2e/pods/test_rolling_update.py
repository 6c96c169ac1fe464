"""Daemons and webhook are replaced by new pods, as with every update of the release, under GPU pods that stay, come and go."""

import time

from tests.e2e.cluster import NAMESPACE, Cluster, Json
from tests.e2e.coming import coming
from tests.e2e.pods.release import DAEMON, NODES, SYSTEM, WEBHOOK, Release
from tests.e2e.pods.test_release import gpu_pod, limits, started
from tests.waiting import wait_for

WORKLOADS = ("daemonset/hami-kubeletplugin", "daemonset/hami-kubeletplugin-second", "deployment/hami-webhook")
AT_ONCE = 2


def is_ready(pod: Json) -> bool:
    """Whether a pod is, by its condition."""
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_rolling_update(release: Release, cluster: Cluster) -> None:
    """Each node has a ready daemon at every moment: the new one is ready while it stands by, then the old one ends.

    No pod is refused, no prepare fails, and no GPU pod is started again.
    """
    cluster.apply(*(gpu_pod(f"stays-{node}", node) for node in NODES))
    names = [f"stays-{node}" for node in NODES]
    before = started(cluster.running(*names))
    old = {each["metadata"]["uid"] for label in (DAEMON, WEBHOOK) for each in release.pods(label)}
    without: list[tuple[str, float]] = []

    def replaced() -> bool:
        daemons = cluster.all("pods", SYSTEM, "-l", DAEMON)
        ready = {each["spec"].get("nodeName") for each in daemons if is_ready(each)}
        without.extend((node, time.monotonic() - began) for node in NODES if node not in ready)
        now = [*(each for each in daemons if "deletionTimestamp" not in each["metadata"]), *release.pods(WEBHOOK)]
        return len(now) == len(old) and all(is_ready(each) and each["metadata"]["uid"] not in old for each in now)

    with coming(cluster, lambda name, number: gpu_pod(name, NODES[number % 2]), AT_ONCE) as pods:
        wait_for("pods before it", lambda: pods.more_than(0))
        made, began = pods.made, time.monotonic()
        cluster.kubectl("rollout", "restart", "-n", SYSTEM, *WORKLOADS)
        wait_for("all to be replaced", replaced, timeout=90)
        took, during = time.monotonic() - began, pods.made - made
        at_end = pods.made
        wait_for("pods after it", lambda: pods.more_than(at_end))
    print(f"replaced in {took:.1f} s, pods meanwhile: {during}, in all: {pods.made}")
    assert not pods.failed, pods.failed
    assert without == []
    failures = cluster.all("events", NAMESPACE, "--field-selector", "reason=FailedPrepareDynamicResources")
    # The API server's own authorizer may hear of a claim later than the kubelet, which then never comes to ask us.
    said = [event["message"] for event in failures if "fetch ResourceClaim" not in event["message"]]
    assert said == []
    assert started(cluster.running(*names)) == before
    assert [limits(cluster, name) for name in names] == [[(4000, 30)]] * 2
    # Ready before it served: it was there while the old one still held the lock.
    for each in release.pods(DAEMON):
        assert "standing by" in cluster.kubectl("logs", "-n", SYSTEM, each["metadata"]["name"])
