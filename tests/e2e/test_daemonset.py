"""The pod of daemonset.yaml on a real kubelet and container runtime, with a shell in the place of the daemon."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import REPOSITORY, Cluster, KubectlFailed
from tests.e2e.manifests import IMAGE
from tests.waiting import wait_for

SYSTEM, NAME = "hami-system", "as-the-daemon"
OPERATOR = Path("/run/nvidia")
FOLDERS = (OPERATOR, Path("/run/nvidia-persistenced"), Path("/run/nvidia-fabricmanager"))


def mount(*words: str | Path) -> None:
    """Mount something on the node."""
    subprocess.run(["mount", *words], check=True, timeout=20)


@pytest.fixture
def node() -> Iterator[None]:
    """A node as systemd sets it up, where mounts below /run are seen in containers that want to; as it was before, afterwards."""
    made = [folder for folder in FOLDERS if not folder.exists()]
    for folder in made:
        folder.mkdir()
    mount("--bind", OPERATOR, OPERATOR)
    mount("--make-shared", OPERATOR)
    yield
    subprocess.run(["umount", "--recursive", OPERATOR], check=True, timeout=20)
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
    assert shell("cd /driver-root/run && echo *").split() == sorted(folder.name for folder in FOLDERS)
    assert shell("cat /driver-root/etc/hostname") == Path("/etc/hostname").read_text()
    for folder in ("usr", "etc", *(f"run/{folder.name}" for folder in FOLDERS)):
        with pytest.raises(KubectlFailed, match="Read-only file system"):
            shell(f"> /driver-root/{folder}/written")
    (OPERATOR / "driver").mkdir(exist_ok=True)
    mount("-t", "tmpfs", "driver", OPERATOR / "driver")
    (OPERATOR / "driver/libcuda.so.1").touch()
    assert shell("cd /driver-root/run/nvidia/driver && echo *") == "libcuda.so.1\n"
