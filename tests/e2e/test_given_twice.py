"""A GPU that was given out twice, as kube-scheduler may do it: nobody gets more than there is, and who waits is told for whom."""

import json
import uuid

from tests.e2e.cluster import NAMESPACE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import Json, claim, container, minor, pod, request
from tests.e2e.test_refusals import refusal


def whole(name: str) -> Json:
    """A claim that has one GPU for itself."""
    return claim(name, request(selector=minor(0), capacity={"requests": {"shares": "10k"}}))


def allocation(cluster: Cluster, name: str) -> Json:
    """What the scheduler gave a claim."""
    found = cluster.get("resourceclaim", name)
    assert found is not None
    made: Json = found["status"]["allocation"]
    return made


def give(cluster: Cluster, name: str, allocated: Json) -> None:
    """Allocate a claim by hand: the same devices, as another share."""
    for result in allocated["devices"]["results"]:
        result["shareID"] = str(uuid.uuid4())
    patch = {
        "metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]},
        "status": {"allocation": allocated},
    }
    words = ("patch", "resourceclaim", name, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    cluster.kubectl(*words)
    cluster.kubectl(*words, "--subresource=status")


def test_a_gpu_that_was_given_out_twice(daemon: Daemon, cluster: Cluster) -> None:
    """The second pod's event says who has the GPU; it starts once that one is gone."""
    cluster.apply(whole("first"), pod("first", container(claims=["gpu"]), claims={"gpu": "first"}))
    cluster.running("first")
    before = daemon.traces()
    cluster.apply(whole("second"))
    give(cluster, "second", allocation(cluster, "first"))
    cluster.apply(pod("second", container(claims=["gpu"]), claims={"gpu": "second"}))
    message = refusal(cluster, "second")
    for part in (
        f"claim {NAMESPACE}/second was allocated more of device hami-gpu-0",
        f"{NAMESPACE}/first holds the rest",
    ):
        assert part in message, message
    assert daemon.traces() == before
    cluster.running("first")
    cluster.delete("pod", "first")
    cluster.running("second", timeout=150)
