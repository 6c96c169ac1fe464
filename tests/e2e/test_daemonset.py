"""The pod of daemonset.yaml on a real kubelet and container runtime, with a shell in the place of the daemon."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.health.runtimes import check_cdi_directory
from tests.e2e.cluster import REPOSITORY, Cluster, KubectlFailed
from tests.e2e.manifests import IMAGE
from tests.waiting import wait_for

SYSTEM, NAME = "hami-system", "as-the-daemon"
OPERATOR = Path("/run/nvidia")
SOCKETS = (Path("/run/nvidia-persistenced"), Path("/run/nvidia-fabricmanager"))
VGPU = Path("/usr/local/vgpu")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
FOLDERS = (OPERATOR, *SOCKETS, VGPU)


def mount(*words: str | Path) -> None:
    """Mount something on the node."""
    subprocess.run(["mount", *words], check=True, timeout=20)


@pytest.fixture
def node() -> Iterator[None]:
    """A node as systemd sets it up, where containers that want to see what is mounted later; as it was before, afterwards."""
    made = [folder for folder in FOLDERS if not folder.exists()]
    for folder in made:
        folder.mkdir()
    shared = (Path("/usr"), VGPU, OPERATOR)
    for folder in shared:
        mount("--bind", folder, folder)
        mount("--make-shared", folder)
    yield
    for folder in reversed(shared):
        subprocess.run(["umount", "--recursive", "--lazy", folder], check=True, timeout=20)
    for folder in made:
        for path in folder.iterdir():
            path.rmdir()
        folder.rmdir()


@pytest.fixture
def pod(cluster: Cluster, node: None) -> Iterator[str]:
    """The DaemonSet's pod: its mounts and rights, and a shell that waits."""
    objects = yaml.safe_load_all((REPOSITORY / "daemonset.yaml").read_text())
    (spec,) = (item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet")
    (container,) = spec["containers"]
    container |= {"image": IMAGE, "command": ["sh", "-c", "while :; do sleep 1; done"]}
    for probe in PROBES:
        del container[probe]  # a shell doesn't answer; see test_ready
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "namespace": SYSTEM}}
    cluster.apply({**made, "spec": {**spec, "terminationGracePeriodSeconds": 0}})

    def runs() -> bool:
        found = cluster.get("pod", NAME, SYSTEM) or {}
        events = cluster.kubectl("events", "-n", SYSTEM, "--for", f"pod/{NAME}")
        assert found.get("status", {}).get("phase") == "Running", events
        return True

    try:
        wait_for("the pod to run", runs)
        yield NAME
    finally:
        cluster.delete("pod", NAME, namespace=SYSTEM)


def test_what_the_daemon_has_of_the_host(cluster: Cluster, pod: str) -> None:
    """The driver's folders, all of which it can't write, and no other; a driver container's root appears when it is mounted."""

    def shell(script: str) -> str:
        return cluster.kubectl("exec", pod, "-n", SYSTEM, "--", "sh", "-c", script)

    assert shell("cd /driver-root && echo *").split() == ["etc", "run", "usr"]
    assert shell("cd /driver-root/run && echo *").split() == sorted(folder.name for folder in (OPERATOR, *SOCKETS))
    assert shell("cat /driver-root/etc/hostname") == Path("/etc/hostname").read_text()
    for folder in ("usr", "etc", *(f"run/{folder.name}" for folder in (OPERATOR, *SOCKETS))):
        with pytest.raises(KubectlFailed, match="Read-only file system"):
            shell(f"> /driver-root/{folder}/written")
    (OPERATOR / "driver").mkdir(exist_ok=True)
    mount("-t", "tmpfs", "driver", OPERATOR / "driver")
    (OPERATOR / "driver/libcuda.so.1").touch()
    assert shell("cd /driver-root/run/nvidia/driver && echo *") == "libcuda.so.1\n"


def test_the_runtime_that_runs_it(cluster: Cluster, pod: str, tmp_path: Path) -> None:
    """The pod knows its own containerd, and whether that reads a folder of CDI specs."""
    parent = int(cluster.kubectl("exec", pod, "-n", SYSTEM, "--", "sh", "-c", "echo $PPID"))
    check_cdi_directory(Path("/var/run/cdi"), parent=parent)
    with pytest.raises(StorageError, match=r"^containerd reads CDI specs in .*/var/run/cdi only, and not in"):
        check_cdi_directory(tmp_path, parent=parent)


def test_mounts_of_claims_are_seen_and_let_go(cluster: Cluster, pod: str) -> None:
    """What is mounted for a claim is there for daemon and node; when it is unmounted, nobody holds it any more."""
    claim = VGPU / "claim"
    claim.mkdir()
    mount("-t", "tmpfs", "claim", claim)
    (claim / "region").touch()

    def mounts() -> str:
        return cluster.kubectl("exec", pod, "-n", SYSTEM, "--", "cat", "/proc/self/mountinfo")

    try:
        assert cluster.kubectl("exec", pod, "-n", SYSTEM, "--", "ls", str(claim)) == "region\n"
        assert f"/driver-root{claim} " in mounts()
        own = next(line.split() for line in mounts().splitlines() if line.split()[4] == str(VGPU))
        assert any(word.startswith("shared:") for word in own), "what the daemon mounts would be its own alone"
    finally:
        subprocess.run(["umount", claim], check=True, timeout=20)
        claim.rmdir()
    assert str(claim) not in mounts()
