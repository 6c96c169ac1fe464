"""Which GPU of a node the real scheduler gives to one pod after the other."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.manifests import Json, claim, container, pod, request
from tests.e2e.test_publish import published
from tests.waiting import wait_for

TWO = f'device.attributes["{DRIVER}"].minor < 2'
"""Of the simulated node's four GPUs; in PCI bus order 1 comes before 0."""
ONE = f'device.attributes["{DRIVER}"].minor == 0'
PODS = [f"p{number}" for number in range(4)]


@pytest.fixture
def spreading(session_daemon: Daemon, cluster: Cluster) -> Iterator[Daemon]:
    """The daemon with --gpu-order=spread."""
    if session_daemon.is_running:
        assert session_daemon.stop() == 0
    session_daemon.start("--gpu-order", "spread")
    yield session_daemon
    clean(cluster, session_daemon)
    assert session_daemon.stop() == 0


def with_a_share(name: str, *, cores: int | None, selector: str) -> tuple[Json, Json]:
    """A claim of 1000 MiB, and its pod."""
    wanted = request(memory="1000Mi", cores=cores, selector=selector)
    return claim(name, wanted), pod(name, container(claims=["gpu"]), claims={"gpu": name})


def one_more(cluster: Cluster, name: str, *, cores: int | None = 20, selector: str = TWO) -> None:
    """One of these, running."""
    cluster.apply(*with_a_share(name, cores=cores, selector=selector))
    cluster.running(name)


def shares(cluster: Cluster) -> Counter[str]:
    """How many claims each GPU has."""
    claims = cluster.all("resourceclaims")
    return Counter(r["device"] for c in claims for r in c["status"]["allocation"]["devices"]["results"])


def order(cluster: Cluster) -> list[str]:
    """The two GPUs as the scheduler goes through them."""
    names = [device["name"] for device in published(cluster)["spec"]["devices"]]
    return [name for name in names if name in {"hami-gpu-0", "hami-gpu-1"}]


def test_spread(spreading: Daemon, cluster: Cluster) -> None:
    """Four pods one after the other go to two GPUs in turns; what ends makes room; the pool's generation stays.

    The scheduler knows of a pod once the slice is written, which each but the last here waits for.
    """
    generation = published(cluster)["spec"]["pool"]["generation"]
    for name, turn in zip(PODS, ((0, 1), (1, 0), (0, 1), (1, 0)), strict=True):
        one_more(cluster, name)
        expected = [f"hami-gpu-{number}" for number in turn]
        wait_for("the order to be written", lambda: order(cluster) == expected, timeout=20)  # noqa: B023 - called here
    assert shares(cluster) == {"hami-gpu-0": 2, "hami-gpu-1": 2}
    first, *_ = cluster.all("resourceclaims")[0]["status"]["allocation"]["devices"]["results"]
    cluster.delete("pod", PODS[0])
    cluster.delete("resourceclaim", PODS[0])
    wait_for("the GPU with one claim to be first", lambda: order(cluster)[0] == first["device"], timeout=20)
    one_more(cluster, "p4")
    assert shares(cluster) == {"hami-gpu-0": 2, "hami-gpu-1": 2}
    assert published(cluster)["spec"]["pool"]["generation"] == generation


def test_binpack(daemon: Daemon, cluster: Cluster) -> None:
    """By default four pods one after the other go to one GPU, the first in PCI bus order."""
    for name in PODS:
        one_more(cluster, name)
    assert shares(cluster) == {"hami-gpu-1": 4}


def test_a_share_without_cores_joins_a_gpu_whose_cores_are_all_given(daemon: Daemon, cluster: Cluster) -> None:
    """Unlike with HAMi: who asks for no cores has none set aside, and needs none to be left. Who asks for one waits."""
    for name, cores in (("most", 60), ("rest", 40), ("none", None)):
        one_more(cluster, name, cores=cores, selector=ONE)
    assert shares(cluster) == {"hami-gpu-0": 3}
    cluster.apply(*with_a_share("more", cores=1, selector=ONE))
    messages = wait_for("the event of the last pod", lambda: cluster.events("more", "FailedScheduling"))
    assert "cannot allocate all claims" in messages[-1]
