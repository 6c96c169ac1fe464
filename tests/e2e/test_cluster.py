"""hack/cluster: beside another cluster, and when it is up already."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cluster import SCRIPTS, Cluster
from tests.e2e.daemon import KUBELET_ROOT


@pytest.mark.parametrize("command", ["down --wipe", "up {version}"])
def test_another_clusters_state_is_left_alone(cluster: Cluster, tmp_path: Path, command: str) -> None:
    """From another folder nothing is wiped nor started over it: it says whose the kubelet's state is, and all runs on."""
    (tmp_path / "bin").symlink_to(cluster.directory / "bin")
    name, word = command.format(version=cluster.version).split()
    done = subprocess.run(
        [SCRIPTS / name, word],
        env={**os.environ, "CLUSTER_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{KUBELET_ROOT} belongs to the cluster of {cluster.directory}, not to that of {tmp_path}" in done.stderr
    assert (KUBELET_ROOT / ".hami-cluster").read_text() == f"{cluster.directory}\n"
    cluster.control("status")


def test_what_runs_is_left_as_it_is(cluster: Cluster) -> None:
    """`up` of a cluster that runs starts nothing anew: tests call it after each of them."""
    before = cluster.control("status")
    assert "kubelet of node-1 runs as " in before
    cluster.up()
    assert cluster.control("status") == before
