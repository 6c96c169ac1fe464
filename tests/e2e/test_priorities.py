"""What a PriorityClass does for pods with claims; docs/with-other-controllers.md says so, and when this changes it has to."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import Json, container, minor, pod, request, template
from tests.waiting import wait_for

HIGH = "e2e-high"


@pytest.fixture
def high(cluster: Cluster) -> Iterator[str]:
    """A PriorityClass above that of other pods."""
    made: Json = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": HIGH},
        "value": 1000,
    }
    cluster.apply(made)
    yield HIGH
    cluster.kubectl("delete", "priorityclass", HIGH)


def with_gpu(name: str, claim_template: str, **spec: Any) -> Json:
    """A pod with a claim from this template."""
    return pod(name, container(claims=["gpu"]), templates={"gpu": claim_template}, **spec)


def test_a_share_is_not_taken_from_a_pod_of_lower_priority(daemon: Daemon, cluster: Cluster, high: str) -> None:
    """The pod with the high priority waits, and its event says so; it starts when the other one has been deleted."""
    cluster.apply(
        template("most", request(memory="40000Mi", selector=minor(3))),
        template("some", request(memory="10000Mi", selector=minor(3))),
        with_gpu("low", "most"),
    )
    cluster.running("low")
    cluster.apply(with_gpu("high", "some", priorityClassName=high))
    wait_for(
        "the scheduler to have thought of preemption",
        lambda: any(
            "cannot allocate all claims" in message and "Preemption is not helpful" in message
            for message in cluster.events("high", "FailedScheduling")
        ),
        timeout=60,
    )
    cluster.running("low")
    cluster.delete("pod", "low")
    cluster.running("high")


def test_cpu_is_taken_from_a_pod_with_a_gpu(daemon: Daemon, cluster: Cluster, high: str) -> None:
    """A GPU does not keep its pod from being preempted for what else it holds."""
    most = {"requests": {"cpu": _most_of_the_cpu(cluster)}}
    cluster.apply(template("some", request(memory="1000Mi")))
    low = with_gpu("low", "some")
    low["spec"]["containers"][0]["resources"] |= most
    cluster.apply(low)
    cluster.running("low")
    cluster.apply(pod("high", container(resources=most), priorityClassName=high))
    cluster.running("high")
    wait_for("the other one to be gone", lambda: cluster.get("pod", "low") is None)


def _most_of_the_cpu(cluster: Cluster) -> str:
    """More than half of what the node has, in thousandths."""
    return f"{int(cluster.all('nodes')[0]['status']['allocatable']['cpu']) * 600}m"
