"""What can't be kept is refused, and the pod's event says why."""

from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import claim, config, container, pod, request
from tests.waiting import wait_for

FAILED = "FailedPrepareDynamicResources"


def refusal(cluster: Cluster, name: str) -> str:
    """Wait for the event that says why a pod does not start."""
    messages = wait_for(f"the event of pod {name}", lambda: cluster.events(name, FAILED), timeout=60)
    return messages[-1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"corePolicy": "sometimes"}, ["parameters.corePolicy", "'sometimes'"]),
        ({"corPolicy": "force"}, ["parameters.corPolicy", "unknown field", "corePolicy"]),
    ],
)
def test_a_wrong_gpu_config_is_explained(
    daemon: Daemon, cluster: Cluster, fields: dict[str, Any], words: list[str]
) -> None:
    """A claim with a wrong GpuConfig does not start; the event names the claim, the field and what is allowed."""
    cluster.apply(
        claim("c", request(memory="1000Mi"), config=[config(**fields)]),
        pod("p", container(claims=["gpu"]), claims={"gpu": "c"}),
    )
    message = refusal(cluster, "p")
    assert all(word in message for word in ["e2e/c", *words]), message
    assert not any(daemon.traces().values())


def test_one_share_in_two_containers_is_refused(daemon: Daemon, cluster: Cluster) -> None:
    """Two containers on one share would each get the whole limit; the event names both and the way out."""
    cluster.apply(
        claim("c", request(memory="1000Mi")),
        pod("p", container("one", claims=["gpu"]), container("two", claims=["gpu"]), claims={"gpu": "c"}),
    )
    message = refusal(cluster, "p")
    assert all(word in message for word in ("p/one", "p/two", "allowSharedContainers")), message


def test_one_share_in_two_containers_on_purpose(daemon: Daemon, cluster: Cluster) -> None:
    """With allowSharedContainers both containers start, each with a region of its own."""
    cluster.apply(
        claim("c", request(memory="1000Mi"), config=[config(allowSharedContainers=True)]),
        pod("p", container("one", claims=["gpu"]), container("two", claims=["gpu"]), claims={"gpu": "c"}),
    )
    cluster.running("p")
