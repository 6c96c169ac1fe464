"""Our GPUs beside the devices of another driver."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look
from tests.e2e.manifests import claim, container, pod, request
from tests.e2e.other_driver import NAME, VARIABLE, OtherDriver

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


@pytest.fixture
def other_driver(daemon: Daemon, cluster: Cluster) -> Iterator[OtherDriver]:
    """One network card, below the PCIe root of the GPU with minor 1, which the scheduler would not take first."""
    card = {"name": "nic-0", "attributes": {PCIE_ROOT: {"string": "pci0000:85"}}}
    with OtherDriver(cluster, [card]) as driver:
        yield driver


def test_aligned_by_pcie_root(daemon: Daemon, cluster: Cluster, other_driver: OtherDriver) -> None:
    """One claim for a GPU and a network card below the same PCIe root gets them, and each driver prepares its part."""
    cluster.apply(
        claim(
            "c",
            request("gpu", memory="1000Mi"),
            request("nic", device_class=NAME),
            constraints=[{"matchAttribute": PCIE_ROOT}],
        ),
        pod("p", container(claims=["both"]), claims={"both": "c"}),
    )
    cluster.running("p")
    found = cluster.get("resourceclaim", "c")
    assert found is not None
    devices = {r["request"]: r["device"] for r in found["status"]["allocation"]["devices"]["results"]}
    assert devices == {"gpu": "hami-gpu-1", "nic": "nic-0"}
    inside = look(cluster, "p")
    assert inside.limits == [(1000, 0)]
    assert inside.env[VARIABLE] == "c"


def test_claims_of_two_drivers_in_one_pod(daemon: Daemon, cluster: Cluster, other_driver: OtherDriver) -> None:
    """A container with a claim of ours and one of another driver gets both."""
    cluster.apply(
        claim("ours", request(memory="2000Mi", cores=25)),
        claim("theirs", request("nic", device_class=NAME)),
        pod("p", container(claims=["ours", "theirs"]), claims={"ours": "ours", "theirs": "theirs"}),
    )
    cluster.running("p")
    inside = look(cluster, "p")
    assert inside.limits == [(2000, 25)]
    assert inside.env[VARIABLE] == "theirs"
