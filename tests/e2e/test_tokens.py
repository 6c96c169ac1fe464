"""What the daemon's token can do on the API server, and what it can't: who takes over one node must not reach others."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.api.names import GPU_CONDITION, GPU_CONDITION_ENDED, LIMIT_NOT_IN_FORCE
from tests.e2e.cluster import NAMESPACE, NODE, Cluster, Json, KubectlFailed


@pytest.fixture
def token(cluster: Cluster, tmp_path: Path) -> Path:
    """A kubeconfig with a token as the daemon's pod on our node has it."""
    return cluster.kubeconfig_for(cluster.node_token("hami-system", "hami-kubeletplugin"), tmp_path / "kubeconfig")


@pytest.fixture
def created(cluster: Cluster) -> Iterator[list[str]]:
    """Slices that a test made."""
    names: list[str] = []
    yield names
    for name in names:
        cluster.kubectl("delete", "resourceslice", name, "--ignore-not-found")


def create(cluster: Cluster, token: Path, obj: Json) -> str:
    """Create an object with the token."""
    return cluster.kubectl("--kubeconfig", str(token), "create", "-f", "-", stdin=json.dumps(obj))


def slice_(name: str, *, node: str = NODE, pool: str = NODE, driver: str = "gpu.hami.io") -> Json:
    """A slice with one device."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu"}],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("other-node", {"node": "node-b", "pool": "node-b"}, "may not write slices of node node-b"),
        ("other-pool", {"pool": "node-b"}, "may not publish a pool called node-b"),
        ("other-driver", {"driver": "gpu.example.com"}, "slices of the driver gpu.hami.io only"),
    ],
)
def test_slices_of_others(
    cluster: Cluster, token: Path, created: list[str], name: str, fields: dict[str, str], message: str
) -> None:
    """Neither another node's slices, nor another node's pool on our node, nor another driver's."""
    created.append(name)
    with pytest.raises(KubectlFailed, match=message):
        create(cluster, token, slice_(name, **fields))


def test_a_slice_of_its_own(cluster: Cluster, token: Path, created: list[str]) -> None:
    """That can be written, but not made another node's afterwards, which Kubernetes itself forbids; and it can be deleted."""
    created.append("own")
    create(cluster, token, slice_("own"))
    own = cluster.get("resourceslice", "own")
    assert own is not None
    own["spec"]["pool"]["name"] = "node-b"
    with pytest.raises(KubectlFailed, match="pool"):
        cluster.kubectl("--kubeconfig", str(token), "replace", "-f", "-", stdin=json.dumps(own))
    cluster.kubectl("--kubeconfig", str(token), "delete", "resourceslice", "own")


def event(name: str, **changed: object) -> Json:
    """The daemon's event about a pod."""
    usual = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": NAMESPACE},
        "type": "Warning",
        "reason": LIMIT_NOT_IN_FORCE,
        "message": "m",
        "source": {"component": "gpu.hami.io", "host": NODE},
        "reportingComponent": "gpu.hami.io",
        "reportingInstance": NODE,
    }
    return usual | changed


IN_DEFAULT: Json = {"metadata": {"name": "other", "namespace": "default"}}
"""Where Events of nodes are."""


def node_(name: str) -> Json:
    """A node as what an event is about."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reason": "FailedScheduling"}, "events GpuLimitNotInForce about pods only"),
        (
            {"involvedObject": {"apiVersion": "v1", "kind": "Secret", "name": "p", "namespace": NAMESPACE}},
            "events GpuLimitNotInForce about pods only",
        ),
        ({"involvedObject": node_("node-b"), "reason": GPU_CONDITION, **IN_DEFAULT}, "about pods and its own node"),
        ({"involvedObject": node_(NODE), **IN_DEFAULT}, "events GpuLimitNotInForce about pods only"),
        ({"involvedObject": node_(NODE), "reason": "NodeNotReady", **IN_DEFAULT}, "about pods and its own node"),
        ({"reportingComponent": "kubelet"}, "as gpu.hami.io on its own node only"),
        ({"source": {"component": "kubelet", "host": NODE}}, "as gpu.hami.io on its own node only"),
        ({"reportingInstance": "node-b"}, "as gpu.hami.io on its own node only"),
        ({"source": {"component": "gpu.hami.io", "host": "node-b"}}, "as gpu.hami.io on its own node only"),
    ],
)
def test_events_of_others(cluster: Cluster, token: Path, changed: dict[str, object], message: str) -> None:
    """Nobody is told anything in another's name, or from another node."""
    with pytest.raises(KubectlFailed, match=message):
        create(cluster, token, event("other", **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"reason": GPU_CONDITION},
        {"reason": GPU_CONDITION_ENDED},
        {"reason": GPU_CONDITION, "involvedObject": node_(NODE), **IN_DEFAULT},
        {"reason": GPU_CONDITION_ENDED, "involvedObject": node_(NODE), **IN_DEFAULT},
    ],
)
def test_an_event_of_its_own(cluster: Cluster, token: Path, changed: dict[str, object]) -> None:
    """What the daemon has to say it can say, of pods and of its own node."""
    made = event("own", **changed)
    create(cluster, token, made)
    cluster.kubectl("delete", "event", made["metadata"]["name"], "-n", made["metadata"]["namespace"])


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("get", "resourceclaims", True),
        ("list", "resourceclaims", False),
        ("update", "resourceclaims", False),
        ("get", "pods", True),
        ("list", "pods", False),
        ("create", "pods", False),
        ("get", "secrets", False),
        ("list", "nodes", False),
        ("patch", "nodes", False),
        ("get", "events", False),
        ("create", "serviceaccounts/token", False),
    ],
)
def test_rights(cluster: Cluster, token: Path, verb: str, resource: str, *, allowed: bool) -> None:
    """Objects by name, as far as a prepare needs them, and nothing to list or to write."""
    assert cluster.may(token, verb, resource) == allowed
