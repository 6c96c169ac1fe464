"""What can't be kept is refused, and the pod's event says why."""

from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import CLEANED
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import Json, claim, config, container, init_container, pod, request
from tests.waiting import wait_for

FAILED = "FailedPrepareDynamicResources"
PRIVILEGED: Json = {"securityContext": {"privileged": True}}
ADMIN = "e2e-admin"


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


@pytest.mark.parametrize(
    "spec",
    [
        pod("p", container("root", claims=["gpu"], **PRIVILEGED), claims={"gpu": "c"}),
        pod("p", container(claims=["gpu"]), container("root", **PRIVILEGED), claims={"gpu": "c"}),
        pod("p", container(claims=["gpu"]), claims={"gpu": "c"}, initContainers=[init_container("root") | PRIVILEGED]),
    ],
    ids=["uses the claim", "beside", "init"],
)
def test_a_privileged_container_is_refused(daemon: Daemon, cluster: Cluster, spec: Json) -> None:
    """It would see all GPUs of the node; the event gives the webhook's reason, though the claim was written by hand."""
    cluster.apply(claim("c", request(memory="1000Mi")), spec)
    message = refusal(cluster, "p")
    assert all(word in message for word in ("e2e/p, container root", "sees every GPU", "no limit would hold")), message
    assert not any(daemon.traces().values())


def test_a_privileged_container_with_admin_access(daemon: Daemon, cluster: Cluster) -> None:
    """With adminAccess there is no limit to hold, so a privileged container may have it."""
    cluster.make_namespace(ADMIN, {"resource.kubernetes.io/admin-access": "true"})
    made = [
        claim("c", request(adminAccess=True)),
        pod("p", container("root", claims=["gpu"], **PRIVILEGED), claims={"gpu": "c"}),
    ]
    for each in made:
        each["metadata"]["namespace"] = ADMIN
    cluster.apply(*made)
    try:

        def runs() -> bool:
            found = cluster.get("pod", "p", ADMIN)
            return bool(found and found["status"]["phase"] == "Running")

        wait_for("the pod to run", runs, timeout=60)
    finally:
        cluster.purge(ADMIN, CLEANED)
        cluster.delete("namespace", ADMIN)
