"""One cluster and one daemon for all tests; each test leaves the node as it found it, and that is checked."""

import json
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import NAMESPACE, REPOSITORY, Cluster
from tests.e2e.daemon import Daemon
from tests.waiting import wait_for

KUBERNETES = os.environ.get("HAMI_E2E_KUBERNETES", "1.37.2")
KEEP = os.environ.get("HAMI_E2E_KEEP") == "1"
"""Leave the cluster up afterwards and take it as it is next time: for writing tests."""
CLEANED = ("pods", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io")


def pytest_configure(config: pytest.Config) -> None:
    """Make our marker known."""
    config.addinivalue_line("markers", "since(version): needs this version of Kubernetes, e.g. 1.36, or a newer one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this Kubernetes does not have. Time-outs are minutes here: nodes boot and API servers go away."""
    deselected = []
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
        since = item.get_closest_marker("since")
        if since and _minor(KUBERNETES) < _minor(since.args[0]):
            deselected.append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def _minor(version: str) -> int:
    return int(version.split(".")[1])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the daemon's log and the cluster's view beside a failure."""
    report = yield
    used = getattr(item, "funcargs", {})
    cluster = used.get("cluster")
    for name in ("daemon", "session_daemon", "webhook", "installed", "release"):
        if report.failed and name in used:
            report.sections.append((f"log of the {name}", used[name].log_tail()))
    if report.failed and cluster is not None:
        for words in (("get", "pods,resourceclaims", "-o", "wide"), ("events",)):
            try:
                report.sections.append((f"kubectl {' '.join(words)}", cluster.kubectl(*words, "-n", NAMESPACE)))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                report.sections.append((f"kubectl {' '.join(words)}", str(error)))
    return report


@pytest.fixture(scope="session")
def library() -> Path:
    """The fake of libvgpu.so; beside it its versions.json and the hook that renews regions."""
    subprocess.run([REPOSITORY / "hack" / "native"], check=True, timeout=120)
    return REPOSITORY / "tests" / "build" / "libvgpu.so"


@pytest.fixture
def libraries(library: Path, tmp_path: Path) -> Path:
    """A folder with two releases, whose regions differ: 2.8.0 and 2.10.0."""
    (tmp_path / "libvgpu.so.2.10.0").write_bytes(library.read_bytes())
    old = tmp_path / "libvgpu.so.2.8.0"
    command = [
        "gcc",
        "-std=c11",
        "-shared",
        "-fPIC",
        "-DMINOR=1",
        "-o",
        str(old),
        str(REPOSITORY / "tests" / "native" / "fake_vgpu.c"),
    ]
    subprocess.run(command, check=True, timeout=60)
    entries = [
        {"sha256": sha256(path.read_bytes()).hexdigest(), "version": path.name.removeprefix("libvgpu.so.")}
        for path in tmp_path.glob("libvgpu.so.*")
    ]
    (tmp_path / "versions.json").write_text(json.dumps(entries))
    return tmp_path


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster, up, with everything of daemonset.yaml except the DaemonSet, whose pod the daemon's process stands for."""
    directory = Path(os.environ.get("CLUSTER_DIR", REPOSITORY / ".cluster")).resolve()
    cluster = Cluster(KUBERNETES, directory)
    cluster.build()
    try:
        if not KEEP:
            cluster.down()
        cluster.up()
        apply_daemonset(cluster)
        cluster.make_namespace(NAMESPACE)
        yield cluster
    finally:
        if not KEEP:
            cluster.down()


def apply_daemonset(cluster: Cluster) -> None:
    """Everything of daemonset.yaml, which an installed chart takes along when it goes; not the DaemonSet."""
    manifest = yaml.safe_load_all((REPOSITORY / "daemonset.yaml").read_text())
    cluster.apply(*(item for item in manifest if item["kind"] != "DaemonSet"))


@pytest.fixture(scope="session")
def session_daemon(cluster: Cluster, library: Path) -> Iterator[Daemon]:
    """The daemon's folder and rights; `daemon` starts it."""
    folder = cluster.directory / "e2e"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    daemon = Daemon(folder, library, daemon_kubeconfig(cluster, folder))
    yield daemon
    if daemon.is_running:
        daemon.kill()
    subprocess.run(["umount", "-R", "-l", daemon.hami_dir], check=False, timeout=30)


def daemon_kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """The kubeconfig of the daemon, with a token as its pod has it, which ends when somebody deletes the ServiceAccount."""
    token = cluster.node_token("hami-system", "hami-kubeletplugin")
    return cluster.kubeconfig_for(token, folder / "daemon.kubeconfig")


@pytest.fixture
def daemon(session_daemon: Daemon, cluster: Cluster) -> Iterator[Daemon]:
    """The daemon, running and registered. Afterwards a test's objects are deleted, and nothing of a claim may be left."""
    if not session_daemon.is_running:
        session_daemon.start()
    yield session_daemon
    cluster.up()  # nothing to do, unless the test failed halfway through an outage
    if not session_daemon.is_running:
        session_daemon.start()
    clean(cluster, session_daemon)


def clean(cluster: Cluster, daemon: Daemon, *first: str) -> None:
    """Delete the tests' objects, of kinds `first` before others; nothing of a claim may be left on the node then."""
    cluster.purge(NAMESPACE, (*first, *CLEANED))

    def nothing_left() -> bool:
        left = daemon.traces()
        assert not any(left.values()), f"left on the node: {left}"
        return True

    wait_for("the node to be clean", nothing_left, timeout=30)
