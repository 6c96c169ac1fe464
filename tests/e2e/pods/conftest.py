"""The image on two nodes, and the chart installed; the cluster is as it was after the last test of this folder."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin import __version__
from tests.e2e.cluster import NAMESPACE, REPOSITORY, Cluster
from tests.e2e.conftest import CLEANED, apply_daemonset, daemon_kubeconfig
from tests.e2e.daemon import CDI_DIR, Daemon
from tests.e2e.pods.release import CHART, NODES, SECOND, Release, values
from tests.waiting import wait_for


@pytest.fixture(scope="package")
def image() -> Path:
    """The image of both programs, with the fake of libvgpu.so in it: HAMI_E2E_IMAGE, or made, minutes at first."""
    if "HAMI_E2E_IMAGE" in os.environ:
        return Path(os.environ["HAMI_E2E_IMAGE"])
    subprocess.run([REPOSITORY / "hack" / "image"], check=True, timeout=3000)
    return REPOSITORY / "tests" / "build" / "hami-dra.tar"


@pytest.fixture(scope="package")
def helm() -> Path:
    """The program; minutes where it was never made."""
    done = subprocess.run([REPOSITORY / "hack" / "helm"], check=True, timeout=3000, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip()) / "helm"


@pytest.fixture(scope="package")
def nodes(cluster: Cluster, session_daemon: Daemon, image: Path) -> Iterator[None]:
    """Two nodes that have the image, and no daemon."""
    if session_daemon.is_running:
        session_daemon.stop()
    cluster.control("boot", SECOND)
    for node in NODES:
        cluster.import_image(image, node)
    yield
    cluster.control("halt", SECOND)
    cluster.delete("node", SECOND)
    shutil.rmtree(cluster.directory / SECOND)  # as if it had never been one


@pytest.fixture(scope="package")
def installed(
    cluster: Cluster, session_daemon: Daemon, nodes: None, helm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart, on a cluster where what it brings was applied from the manifests before."""
    release = Release(cluster, helm, tmp_path_factory.mktemp("helm"))
    release.helm(
        "install",
        "hami-dra",
        CHART,
        "--take-ownership",
        "--force-conflicts",
        "--wait",
        "--timeout=120s",
        values=values(__version__),
    )
    yield release
    release.helm("uninstall", "hami-dra", "--ignore-not-found", "--wait")
    apply_daemonset(cluster)
    daemon_kubeconfig(cluster, session_daemon.folder)


@pytest.fixture
def release(installed: Release, cluster: Cluster) -> Iterator[Release]:
    """The release. Afterwards a test's pods and claims are gone, and nothing of them is left on the nodes."""
    yield installed
    cluster.purge(NAMESPACE, CLEANED)

    def nothing_left() -> bool:
        left = [cluster.enter(node, "ls", str(CDI_DIR)) for node in NODES]
        assert not any(left), left
        return True

    wait_for("CDI specs to be gone", nothing_left, timeout=30)
