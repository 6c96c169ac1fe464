"""The daemon, the kubelet, the node and the API server go away and come back."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import KUBELET_ROOT, Daemon
from tests.e2e.inside import look
from tests.e2e.manifests import claim, container, minor, pod, request, template
from tests.e2e.test_publish import slices
from tests.waiting import wait_for

OUTAGE = 30
"""Seconds that the API server is away."""


def with_gpu(cluster: Cluster, name: str, memory: str = "1000Mi", **fields: Any) -> None:
    """Create a pod with one GPU."""
    cluster.apply(
        template(f"of-{name}", request(memory=memory)),
        pod(name, container(claims=["gpu"], **fields), templates={"gpu": f"of-{name}"}),
    )


def empty_region(cluster: Cluster, name: str) -> None:
    """Have a container empty its region; unless it is renewed, the next process says that it is the first one there."""
    cluster.run_in(name, "main", "sh", "-c", ": >/tmp/cudevshr.cache")


def container_id(cluster: Cluster, name: str) -> str:
    """The present container of a pod: changes when it is started again."""
    [found] = cluster.running(name)
    identity: str = found["status"]["containerStatuses"][0]["containerID"]
    return identity


def device_names(cluster: Cluster) -> list[str]:
    """All devices that the driver publishes."""
    return [device["name"] for found in slices(cluster) for device in found["spec"]["devices"]]


@pytest.fixture
def late_image(cluster: Cluster) -> Iterator[str]:
    """The name of an image that the node does not have yet."""
    name = "localhost/late:1"
    cluster.forget_image(name)
    yield name
    cluster.forget_image(name)


@pytest.fixture
def node_file(daemon: Daemon, tmp_path: Path) -> Iterator[Path]:
    """Hardware that a test can change: a file with four GPUs, which the daemon reads again every second."""
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump({"profile": "t4x4"}))
    assert daemon.stop() == 0
    daemon.start("--simulate", str(file), "--rescan-interval", "1")
    yield file
    daemon.stop()


def test_killed_between_prepare_and_container_start(daemon: Daemon, cluster: Cluster, late_image: str) -> None:
    """A container whose claim was prepared starts with its limits even if the daemon died before; the next pods work too."""
    with_gpu(cluster, "p", image=late_image)  # prepared before its image is looked for
    wait_for("the claim to be prepared", lambda: daemon.traces()["specs"])
    daemon.kill()
    cluster.tag_image("localhost/glibc:1", late_image)
    cluster.running("p")
    assert look(cluster, "p").limits == [(1000, 0)]
    daemon.start()
    with_gpu(cluster, "q", "2000Mi")
    cluster.running("q")
    assert look(cluster, "q").limits == [(2000, 0)]
    cluster.delete("pod", "p")
    wait_for("the first claim's traces to go", lambda: len(daemon.traces()["records"]) == 1)


def test_killed_while_pods_run(daemon: Daemon, cluster: Cluster) -> None:
    """Pods go on without the daemon; one that is deleted meanwhile waits for it and then goes."""
    with_gpu(cluster, "stays")
    with_gpu(cluster, "goes")
    before = container_id(cluster, "stays")
    cluster.running("goes")
    daemon.kill()
    cluster.kubectl("delete", "pod", "goes", "-n", "e2e", "--wait=false")
    assert look(cluster, "stays").limits == [(1000, 0)]
    empty_region(cluster, "stays")
    daemon.start()
    wait_for("the deleted pod to go", lambda: cluster.get("pod", "goes") is None, timeout=120)
    wait_for("its claim's traces to go", lambda: len(daemon.traces()["records"]) == 1)
    assert container_id(cluster, "stays") == before
    inside = look(cluster, "stays")
    assert inside.limits == [(1000, 0)]
    assert inside.report["cache.first"] == "1", "the region of a running container was reset"


def test_orderly_stop(daemon: Daemon, cluster: Cluster) -> None:
    """SIGHUP changes nothing; SIGTERM ends the daemon with status 0 within 10 s and takes its sockets away."""
    daemon.signal(signal.SIGHUP)
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 10
    left = [*daemon.plugin_dir.glob("*.sock"), *(KUBELET_ROOT / "plugins_registry").glob("*.sock")]
    assert left == []


def test_the_kubelet_is_restarted(daemon: Daemon, cluster: Cluster) -> None:
    """After a restart of the kubelet pods go on, slices are back, and the next prepare and unprepare work."""
    with_gpu(cluster, "p")
    before = container_id(cluster, "p")
    cluster.control("restart", "kubelet")
    wait_for(
        "the daemon to be registered again",
        lambda: sum(entry["event"] == "registered with the kubelet" for entry in daemon.log()) >= 2,
    )
    wait_for("the slices", lambda: slices(cluster), timeout=90)
    with_gpu(cluster, "q", "2000Mi")
    cluster.running("q")
    assert look(cluster, "q").limits == [(2000, 0)]
    assert container_id(cluster, "p") == before


def test_the_node_reboots(daemon: Daemon, cluster: Cluster) -> None:
    """After a power cut, with the daemon up later than the kubelet, pods come back with their limits and a fresh region."""
    with_gpu(cluster, "p", "3000Mi")
    before = container_id(cluster, "p")
    empty_region(cluster, "p")
    cluster.control("halt")
    assert not daemon.is_running
    assert daemon.traces()["specs"] == []
    daemon.boot_id_file.write_text("boot-2\n")
    cluster.control("boot")
    daemon.start()
    wait_for("the pod to come back", lambda: container_id(cluster, "p") != before, timeout=120)
    inside = look(cluster, "p")
    assert inside.limits == [(3000, 0)]
    assert inside.report["cache.first"] == "0", "the region of before the reboot was used again"


def test_gpus_change_places_over_a_reboot(daemon: Daemon, cluster: Cluster, node_file: Path) -> None:
    """After a reboot limits are numbered by the buses of now: each GPU keeps its own, in another place of the order."""
    cluster.apply(
        claim("c", request("a", memory="1000Mi", selector=minor(0)), request("b", memory="2000Mi", selector=minor(1))),
        pod("p", container(claims=["gpus"]), claims={"gpus": "c"}),
    )
    before = container_id(cluster, "p")
    assert look(cluster, "p").limits == [(1000, 0), (2000, 0)]
    cluster.control("halt")
    buses = ("0000:5e:00.0", "0000:3b:00.0")
    node_file.write_text(yaml.safe_dump({"gpus": [{"model": "t4", "pciBusID": bus} for bus in buses]}))
    daemon.boot_id_file.write_text("boot-3\n")
    cluster.control("boot")
    daemon.start("--simulate", str(node_file))
    wait_for("the pod to come back", lambda: container_id(cluster, "p") != before, timeout=120)
    assert look(cluster, "p").limits == [(2000, 0), (1000, 0)]


def test_the_api_server_is_away(daemon: Daemon, cluster: Cluster, node_file: Path) -> None:
    """When the API server goes for 30 s during a prepare and a change of GPUs, pod and slice are right soon after."""
    wait_for("four GPUs", lambda: device_names(cluster) == [f"hami-gpu-{minor}" for minor in range(4)])
    daemon.signal(signal.SIGSTOP)
    try:
        with_gpu(cluster, "p")
        uid = wait_for("the claim", lambda: next((c["metadata"]["uid"] for c in cluster.all("resourceclaims")), None))
        # The kubelet writes its checkpoint when it has read the claim, just before it calls us.
        checkpoint = KUBELET_ROOT / "dra_manager_state"
        wait_for("the kubelet to call", lambda: checkpoint.exists() and uid in checkpoint.read_text())
        cluster.control("stop", "apiserver")
        node_file.write_text(yaml.safe_dump({"profile": "t4x4", "absent": [2]}))
    finally:
        daemon.signal(signal.SIGCONT)
    time.sleep(OUTAGE)
    assert daemon.is_running
    assert not daemon.traces()["specs"]
    cluster.control("start", "apiserver")
    cluster.running("p", timeout=120)
    assert look(cluster, "p").limits == [(1000, 0)]
    wait_for("three GPUs", lambda: device_names(cluster) == ["hami-gpu-0", "hami-gpu-1", "hami-gpu-3"])
    # Their watches back off for half a minute more, and the next tests would wait for that.
    cluster.control("restart", "manager", "scheduler", "kubelet")
