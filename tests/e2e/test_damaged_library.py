"""HAMi-core's library is cut on the node while the daemon, which would put it back, is away: nothing starts without limits."""

import os

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import claim, container, pod, request
from tests.e2e.test_limits_restart import container_ids, restarted, why_not


def test_a_container_is_not_restarted_with_a_library_that_was_cut(daemon: Daemon, cluster: Cluster) -> None:
    """The pod's event says what is wrong and what to do; with the daemon back, the library is, and the container starts."""
    cluster.apply(claim("c", request(memory="1000Mi")), pod("p", container(claims=["gpu"]), claims={"gpu": "c"}))
    before = container_ids(cluster, "p")
    assert daemon.stop() == 0
    (library,) = (daemon.hami_dir / "lib").glob("libvgpu.so.*")
    size = library.stat().st_size
    os.truncate(library, size // 2)
    cluster.kill_container(before["main"])
    message = why_not(cluster, "p", "hami-region-hook", str(library))
    assert "is not as the driver installed it: it is cut short" in message
    assert "see that the daemon runs on this node" in message
    daemon.start()
    assert library.stat().st_size == size
    restarted(cluster, "p", before, "main")
