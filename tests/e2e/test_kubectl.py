"""`kubectl hami` on the cluster, run by kubectl as people have it: with the plugin in PATH."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import Json, claim, config, container, minor, pod, request
from tests.waiting import wait_for


def hami(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl hami ...` as the administrator."""
    return subprocess.run(
        [cluster.directory / "bin" / cluster.version / "kubectl", "hami", *words],
        env={
            **CHECKOUT,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def gpu(cluster: Cluster, name: str) -> Json:
    """One GPU in the JSON of `usage`."""
    found = json.loads(hami(cluster, "usage", "-o", "json").stdout)
    (pool,) = (pool for pool in found["pools"] if pool["nodeName"] == NODE)
    return next(device for device in pool["devices"] if device["name"] == name)


def told(cluster: Cluster, name: str, *words: str) -> str:
    """What `why` says of a pod, once it says all of these words."""

    def probe() -> str:
        done = hami(cluster, "why", name, "-n", "e2e")
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in words), done.stdout
        return done.stdout

    return wait_for(f"kubectl hami why {name}", probe, timeout=60)


@pytest.mark.since("1.36")
def test_usage_fits_and_why(daemon: Daemon, cluster: Cluster) -> None:
    """A running pod's share is consumed, what is left fits and more doesn't; a pod for more waits, and it is said for what."""
    before = gpu(cluster, "hami-gpu-0")
    cluster.apply(
        claim("c", request(memory="4000Mi", cores=60, selector=minor(0))),
        pod("p", container(claims=["gpu"]), claims={"gpu": "c"}),
    )
    cluster.running("p")
    after = gpu(cluster, "hami-gpu-0")
    amounts = {each["name"]: each for each in after["capacity"]}
    assert (amounts["memory"]["consumed"], amounts["cores"]["consumed"]) == ("4000Mi", "60")
    assert (amounts["cores"]["available"], after["claims"]) == ("40", [{"namespace": "e2e", "name": "c"}])
    assert before["claims"] == []
    assert "e2e " in hami(cluster, "usage", "--by", "namespace").stdout

    room = hami(cluster, "usage", "--fits", "cores=50", "-o", "wide")
    assert room.returncode == 0
    fitting, _, others = room.stdout.partition("MISSING")
    assert "hami-gpu-0" not in fitting
    assert "cores: 50 wanted, 40 of 100 available" in others
    assert hami(cluster, "usage", "--fits", "memory=4Ti").returncode == 1

    cluster.apply(
        claim("more", request(cores=50, selector=minor(0))),
        pod("waits", container(claims=["gpu"]), claims={"gpu": "more"}),
    )
    told(
        cluster,
        "waits",
        "is not scheduled",
        "claim more is not allocated: gpu wants 1 GPU with cores 50",
        "default-scheduler, FailedScheduling: 0/1 nodes are available",
        "hami-gpu-0",
        "cores: 50 wanted, 40 of 100 available",
        f"is not what is selected: {minor(0)}",
    )


def test_why_a_pod_is_not_prepared(daemon: Daemon, cluster: Cluster) -> None:
    """A claim that is allocated and can't be prepared: the kubelet's words are shown. And a pod that nobody converted says so."""
    cluster.apply(
        claim("wrong", request(memory="1000Mi"), config=[config(corePolicy="sometimes")]),
        pod("unprepared", container(claims=["gpu"]), claims={"gpu": "wrong"}),
        pod("plain", container() | {"resources": {"limits": {"nvidia.com/gpumem": "1000"}}}),
    )
    told(
        cluster,
        "unprepared",
        f"is scheduled to node {NODE} and has not started there",
        "claim wrong is allocated",
        "FailedPrepareDynamicResources",
        "'sometimes'",
    )
    told(cluster, "plain", "container main asks for nvidia.com/gpumem, and no webhook has made a claim of it")
