"""A release is upgraded, rolled back and uninstalled, and the manifests applied in its place, under a GPU pod that runs on.

At the end deploy/uninstall.yaml takes away what is left on the nodes.
"""

import contextlib
import json
from collections.abc import Iterator

import yaml

from hami_kubeletplugin import __version__
from tests.e2e.cluster import NAMESPACE, NODE, REPOSITORY, Cluster, Json
from tests.e2e.pods.release import CHART, DAEMON, NODES, SECOND, SYSTEM, WEBHOOK, Release, values
from tests.e2e.pods.test_release import gpu_pod, limits, started
from tests.waiting import wait_for

UNINSTALL = "app.kubernetes.io/name=hami-uninstall"


def shares(release: Release, node: str) -> set[str]:
    """How much of one core's percents the published GPUs of a node hold, which scaling changes."""
    return {device["capacity"]["cores"]["value"] for device in release.published(node)}


def test_upgrade_rollback_uninstall(release: Release, cluster: Cluster) -> None:
    """A changed value is in force, and taken back; new pods start in between; uninstalling leaves running GPU pods alone.

    What is on the nodes stays as long as they use it, and can be taken away after them.
    """
    cluster.apply(gpu_pod("first", NODE), gpu_pod("second", SECOND))
    before = started(cluster.running("first", "second"))
    was = shares(release, NODE)

    release.helm(
        "upgrade", "hami-dra", CHART, "--wait", "--timeout=120s", values=values(__version__, deviceCoreScaling=2)
    )
    wait_for("the upgrade to be in force", lambda: shares(release, NODE) == {"200"} == shares(release, SECOND))
    cluster.apply(gpu_pod("upgraded"))
    cluster.running("upgraded")

    release.helm("rollback", "hami-dra", "--wait", "--timeout=120s")
    wait_for("the rollback to be in force", lambda: shares(release, NODE) == was == shares(release, SECOND))
    cluster.apply(gpu_pod("rolled-back"))
    cluster.running("rolled-back")

    release.helm("uninstall", "hami-dra", "--wait", "--timeout=120s")
    wait_for("its pods to be gone", lambda: not [*release.pods(DAEMON), *release.pods(WEBHOOK)])
    assert started(cluster.running("first", "second")) == before
    for name in ("first", "second", "upgraded", "rolled-back"):
        assert limits(cluster, name) == [(4000, 30)], name

    with taking_away(cluster):
        for said in wait_for("nodes to refuse", lambda: told(cluster, "Error"), timeout=30).values():
            assert "nothing was removed" in said
            assert "claims are prepared on this node" in said
    for name in ("first", "second", "upgraded", "rolled-back"):
        assert limits(cluster, name) == [(4000, 30)], name

    # Claims of those pods are let go by whoever serves them next, here by the manifests.
    try:
        apply_manifests(cluster, release)
        cluster.apply(gpu_pod("by-manifests", NODE))
        cluster.running("by-manifests")
        assert limits(cluster, "by-manifests") == [(4000, 30)]
        cluster.purge(NAMESPACE, ("pods", "resourceclaims.resource.k8s.io"))
    finally:
        for file in ("webhook.yaml", "daemonset.yaml"):
            gone = [each for each in manifest(file) if each["kind"] != "Namespace"]
            listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": gone})
            cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=listed, timeout=90)

    wait_for("its pods to be gone", lambda: not cluster.all("pods", SYSTEM, "-l", DAEMON), timeout=30)
    assert all(left_on(cluster, node) for node in NODES)
    with taking_away(cluster):
        wait_for("nodes to be cleared", lambda: told(cluster, "Completed"), timeout=30)
    assert {node: left_on(cluster, node) for node in NODES} == {node: [] for node in NODES}


@contextlib.contextmanager
def taking_away(cluster: Cluster) -> Iterator[None]:
    """deploy/uninstall.yaml is applied, as it is but for its images, until the block ends."""
    text = (REPOSITORY / "deploy" / "uninstall.yaml").read_text()
    text = text.replace("image: hami-dra:", "image: localhost/hami-dra:")
    text = text.replace("image: registry.k8s.io/pause:3.10", "image: localhost/pause:1")
    cluster.apply(*yaml.safe_load_all(text))
    yield
    cluster.delete("daemonset", "hami-uninstall", namespace="kube-system")
    wait_for("its pods to be gone", lambda: not cluster.all("pods", "kube-system", "-l", UNINSTALL), timeout=60)


def told(cluster: Cluster, *reasons: str) -> dict[str, str]:
    """By node, what it last said; empty until it ended for one of these reasons on all."""
    found = {}
    for each in cluster.all("pods", "kube-system", "-l", UNINSTALL):
        for status in each["status"].get("initContainerStatuses", ()):
            ended = status["state"].get("terminated") or status["lastState"].get("terminated") or {}
            if ended.get("reason") in reasons:
                found[each["spec"]["nodeName"]] = ended.get("message", "")
    return found if set(found) == set(NODES) else {}


def left_on(cluster: Cluster, node: str) -> list[str]:
    """What of ours a node has where the manifests let daemons write."""
    kubelet = "/var/lib/kubelet"
    script = (
        "find /usr/local/vgpu /var/run/cdi -mindepth 1; "
        f"find {kubelet}/plugins {kubelet}/plugins_registry -mindepth 1 -path '*hami*'"
    )
    return cluster.enter(node, "sh", "-c", script).split()


def manifest(file: str) -> list[Json]:
    """A manifest with our image in it, for nodes without GPUs."""
    text = (REPOSITORY / file).read_text().replace("image: hami-dra:", "image: localhost/hami-dra:")
    made = [*yaml.safe_load_all(text)]
    for item in made:
        if item["kind"] == "DaemonSet":
            simulated = {"HAMI_SIMULATE": "mixed", "HAMI_DRIVER_EDITS": "none"}
            env = item["spec"]["template"]["spec"]["containers"][0]["env"]
            env += [{"name": name, "value": value} for name, value in simulated.items()]
    return made


def apply_manifests(cluster: Cluster, release: Release) -> None:
    """Install by kubectl, and wait for it."""
    cluster.apply(*manifest("daemonset.yaml"), *manifest("webhook.yaml"))
    for node in (NODE, SECOND):
        release.daemon(node)
    cluster.kubectl("rollout", "status", "deployment/hami-webhook", "-n", SYSTEM, "--timeout=60s", timeout=90)
    wait_for("its GPUs", lambda: len(release.published(NODE)) == len(release.published(SECOND)) == 4)
