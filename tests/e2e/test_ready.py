"""A node on which no claim can be prepared: the kubelet and the scheduler hear of it, and of its end, without a restart."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import NAMESPACE, REPOSITORY, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import container, pod, request, template
from tests.e2e.test_daemonset import PROBES
from tests.waiting import wait_for

PORT = ":9400"


@pytest.fixture
def other_daemon(daemon: Daemon) -> Iterator[Daemon]:
    """The daemon, stopped, to be started on a node that lacks something; the usual one again afterwards."""
    assert daemon.stop() == 0
    yield daemon
    daemon.restart()


def probed() -> dict[str, Any]:
    """A pod in whose name the kubelet asks the daemon on the node what it would ask the DaemonSet's pod."""
    objects = yaml.safe_load_all((REPOSITORY / "daemonset.yaml").read_text())
    (spec,) = (item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet")
    (real,) = spec["containers"]
    return pod("probed", {**container(), **{name: real[name] for name in (*PROBES, "ports")}}, hostNetwork=True)


def status(cluster: Cluster) -> dict[str, Any]:
    """What the kubelet says of that pod's container."""
    found: list[dict[str, Any]] = (cluster.get("pod", "probed") or {}).get("status", {}).get("containerStatuses", [])
    return found[0] if found else {}


def test_a_node_without_hami_core(other_daemon: Daemon, cluster: Cluster, library: Path, tmp_path: Path) -> None:
    """Its daemon lives, and isn't ready; the scheduler puts no pod there. When the library is there a pod that waited runs."""
    other_daemon.start("--hami-core", str(tmp_path), "--metrics-address", PORT)
    cluster.apply(probed())
    wait_for("the daemon to have started", lambda: status(cluster).get("started"))
    wait_for("the kubelet to say that it isn't ready", lambda: cluster.events("probed", "Unhealthy"))
    cluster.apply(
        template("t", request(memory="1000Mi")), pod("waits", container(claims=["gpu"]), templates={"gpu": "t"})
    )
    wait_for("the scheduler to hold the pod back", lambda: cluster.events("waits", "FailedScheduling"))
    assert "nodeName" not in (cluster.get("pod", "waits", NAMESPACE) or {})["spec"]
    assert not status(cluster)["ready"]
    for name in ("libvgpu.so", "versions.json"):
        shutil.copy(library.with_name(name), tmp_path)
    wait_for("the daemon to be ready", lambda: status(cluster).get("ready"), timeout=30)
    assert status(cluster)["restartCount"] == 0
    cluster.running("waits", timeout=30)  # sooner than a kubelet comes again
