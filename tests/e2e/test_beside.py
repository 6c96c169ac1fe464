"""Others on the node: a device plugin, a second driver with the same GPU, a cordon, a slice that hides the node's."""

import json
from typing import Any

import pytest

from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.manifests import claim, container, pod, request
from tests.waiting import wait_for

CORDON = "hami.io/device-cordon"


def devices(cluster: Cluster) -> dict[str, str] | None:
    """Published device names by UUID; None without a slice."""
    slices = [each["spec"] for each in cluster.all("resourceslices") if each["spec"]["driver"] == DRIVER]
    slices = [spec for spec in slices if spec.get("nodeName") == NODE]
    found = [device for spec in slices for device in spec.get("devices", [])]
    return {each["attributes"]["uuid"]["string"]: each["name"] for each in found} if slices else None


def said(daemon: Daemon, kind: str, *words: str) -> bool:
    """Whether the log tells of such a condition, with these words."""
    entries = [entry for entry in daemon.log() if entry.get("what") == kind and "ended" not in entry["event"]]
    return any(all(word in json.dumps(entry) for word in words) for entry in entries)


def ended(daemon: Daemon, kind: str) -> bool:
    """Whether the log says that the last such condition has ended."""
    entries = [entry for entry in daemon.log() if entry.get("what") == kind]
    return bool(entries) and "ended" in entries[-1]["event"]


@pytest.fixture
def published(daemon: Daemon, cluster: Cluster) -> dict[str, str]:
    """All that there is, published."""

    def all_four() -> dict[str, str] | None:
        found = devices(cluster)
        return found if found and len(found) == 4 else None

    return wait_for("four GPUs to be published", all_four)


def slice_(name: str, driver: str, uuid: str, generation: int = 1, **where: Any) -> dict[str, Any]:
    """A slice with one GPU in the pool that is called like the node."""
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}]}
    api = "resource.k8s.io/v1"
    return {"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec | where}


def test_a_second_driver_and_a_cordon(daemon: Daemon, cluster: Cluster, published: dict[str, str]) -> None:
    """A GPU of another driver's slice leaves ours at once, and one that is cordoned is said so within 30 s."""
    first, second, *_ = published
    cluster.kubectl("annotate", "node", NODE, f"{CORDON}={second}")
    cluster.apply(slice_("theirs", "gpu.example.com", first, nodeName=NODE))
    try:
        wait_for("the GPU to be withheld", lambda: first not in (devices(cluster) or {first: ""}), timeout=10)
        assert said(daemon, "given-out-twice", first, "gpu.example.com", "ResourceSlice theirs")
        wait_for("the cordon to be heeded", lambda: said(daemon, "cordoned", second), timeout=30)
    finally:
        cluster.kubectl("annotate", "node", NODE, f"{CORDON}-")
        cluster.delete("resourceslice", "theirs")
        daemon.restart()  # what has gone while it was away needs no wait
    wait_for("the GPU to be published again", lambda: devices(cluster) == published)
    wait_for("the cordon to end", lambda: ended(daemon, "cordoned"))


def test_a_slice_that_hides_the_node(daemon: Daemon, cluster: Cluster, published: dict[str, str]) -> None:
    """The scheduler sees none of the node's GPUs then; the log says which slice it is, and when it is deleted pods start."""
    cluster.apply(slice_("ghost", DRIVER, "GPU-of-nobody", 99, nodeSelector=_on(NODE)))
    try:
        wait_for(
            "the slice to be named", lambda: said(daemon, "hidden", "kubectl delete resourceslice ghost"), timeout=10
        )
        cluster.apply(claim("c", request(memory="1000Mi")), pod("p", container(claims=["gpu"]), claims={"gpu": "c"}))
        wait_for("the pod to be unschedulable", lambda: cluster.events("p", "FailedScheduling"))
    finally:
        cluster.delete("resourceslice", "ghost")
    wait_for("the condition to end", lambda: ended(daemon, "hidden"), timeout=10)
    # That a slice goes has the scheduler try nothing again: "p" has to wait for its next look, up to five minutes.
    cluster.apply(claim("d", request(memory="1000Mi")), pod("q", container(claims=["gpu"]), claims={"gpu": "d"}))
    cluster.running("q")


def _on(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def test_a_device_plugin(daemon: Daemon, cluster: Cluster, published: dict[str, str]) -> None:
    """Within 30 s nothing is published any more, and the log says why; a pod that runs goes on, and a new one waits."""
    cluster.apply(claim("c", request(memory="1000Mi")), pod("p", container(claims=["gpu"]), claims={"gpu": "c"}))
    cluster.running("p")
    offer(cluster, "2")
    try:
        wait_for("the pool to be empty", lambda: devices(cluster) == {}, timeout=30)
        assert said(daemon, "given-out-twice", "nvidia.com/gpu: 2")
        cluster.apply(claim("d", request(memory="1000Mi")), pod("q", container(claims=["gpu"]), claims={"gpu": "d"}))
        wait_for("the second pod to be unschedulable", lambda: cluster.events("q", "FailedScheduling"))
        cluster.running("p")
    finally:
        offer(cluster, None)
        daemon.restart()  # what has gone while it was away needs no wait
    cluster.running("p", "q")


def offer(cluster: Cluster, amount: str | None) -> None:
    """Have the Node say what the kubelet says of a device plugin's GPUs; None: it has never heard of them."""
    patch = {"status": {field: {"nvidia.com/gpu": amount} for field in ("capacity", "allocatable")}}
    cluster.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


def test_another_driver_name(daemon: Daemon, cluster: Cluster, published: dict[str, str]) -> None:
    """With a new --driver-name pods of the old one go on and can be deleted: nothing of their claims is left."""
    cluster.apply(claim("c", request(memory="1000Mi")), pod("p", container(claims=["gpu"]), claims={"gpu": "c"}))
    cluster.running("p")
    assert daemon.stop() == 0
    daemon.start("--driver-name", "renamed.example.com")
    try:
        (entry,) = [entry for entry in daemon.log() if entry.get("pods") == ["e2e/p"] and "call" not in entry]
        assert entry["driver"] == DRIVER
        cluster.kubectl("delete", "pod", "p", "-n", "e2e", "--wait=false")
        wait_for("the pod to be gone", lambda: not cluster.all("pods"), timeout=150)
        assert daemon.traces() == {"specs": [], "records": [], "caches": []}
        wait_for(
            "the old name to be let go",
            lambda: any("claims of another driver name are gone" in e["event"] for e in daemon.log()),
        )
    finally:
        assert daemon.stop() == 0
        daemon.start()
