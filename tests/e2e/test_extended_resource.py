"""`nvidia.com/gpu: N` without a webhook, by the optional DeviceClass."""

from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import NODE, REPOSITORY, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look
from tests.e2e.manifests import container, pod


@pytest.fixture
def extended(cluster: Cluster) -> Iterator[None]:
    """The DeviceClass of extended-resource.yaml, for one test."""
    manifest = yaml.safe_load((REPOSITORY / "extended-resource.yaml").read_text())
    cluster.apply(manifest)
    yield
    cluster.kubectl("delete", "deviceclass", manifest["metadata"]["name"])


@pytest.mark.since("1.36")
def test_two_whole_gpus(daemon: Daemon, cluster: Cluster, extended: None) -> None:
    """A container with `nvidia.com/gpu: 2` gets two GPUs, limited to all of their memory, in bus order.

    The Node doesn't name the resource as allocatable, or the daemon would take that for a device plugin's.
    """
    cluster.apply(pod("p", {**container(), "resources": {"limits": {"nvidia.com/gpu": "2"}}}))
    cluster.running("p")
    inside = look(cluster, "p")
    assert [cores for _, cores in inside.limits] == [0, 0]
    assert all(memory >= 15_000 for memory, _ in inside.limits)
    assert inside.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    node = cluster.get("node", NODE)
    assert node is not None
    assert "nvidia.com/gpu" not in node["status"]["allocatable"]
