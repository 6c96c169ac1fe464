"""What a hostile tenant leaves on the node is for nobody else there, and does not outlive the start of a container."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.hamicore.processes import MOUNTINFO
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import CDI_DIR, Daemon
from tests.e2e.inside import look, look_cleared
from tests.e2e.manifests import Json, claim, container, pod, request
from tests.e2e.test_limits_restart import container_ids, restarted
from tests.other_user import achieved
from tests.unit.hamicore.hook import ATTRIBUTES
from tests.waiting import wait_for

REGION = "/tmp/cudevshr.cache"
USER: Json = {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "capabilities": {"drop": ["ALL"]}}}
PROGRAM = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


@pytest.fixture(scope="module")
def regions(
    session_daemon: Daemon, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Path]]:
    """A pod with containers of root and of a user, and two that run static programs; the region of each."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)
    (folder / "p.c").write_text(PROGRAM)
    for name in ("program", "libvgpu.so"):
        subprocess.run(["gcc", "-static", "-o", folder / name, folder / "p.c"], check=True, timeout=60)
    if session_daemon.is_running:
        assert session_daemon.stop() == 0
    session_daemon.start("--container-interval", "0.5")

    def static(name: str, program: str) -> Json:
        mounts = [{"name": "host", "mountPath": "/host"}]
        return {**container(name, claims=[name]), "command": [f"/host/{program}"], "volumeMounts": mounts}

    names = ("root", "user", "static", "alike")
    cluster.apply(
        *(claim(name, request(memory="1000Mi")) for name in names),
        pod(
            "p",
            container("root", claims=["root"]),
            container("user", claims=["user"], **USER),
            static("static", "program"),
            static("alike", "libvgpu.so"),
            claims={name: name for name in names},
            volumes=[{"name": "host", "hostPath": {"path": str(folder)}}],
        ),
    )
    cluster.running("p")
    found = {each["metadata"]["name"]: each["metadata"]["uid"] for each in cluster.all("resourceclaims")}
    yield {name: session_daemon.hami_dir / "cache" / found[name] / "use-0.region" for name in names}
    clean(cluster, session_daemon)
    session_daemon.restart()


@pytest.mark.parametrize("name", ["root", "user"])
def test_containers_of_any_user_have_their_region(cluster: Cluster, regions: dict[str, Path], name: str) -> None:
    """Whatever is closed above it on the node: with variables and without, and they can write it."""
    assert look(cluster, "p", name).limits == look_cleared(cluster, "p", name).limits == [(1000, 0)]
    assert REGION in look(cluster, "p", name).mounts
    assert cluster.run_in("p", name, "bash", "-c", f": >>{REGION} && echo written") == "written\n"


def test_the_region_is_among_the_first_mounts(cluster: Cluster, regions: dict[str, Path]) -> None:
    """So it is found in the part that is read of what a container may make any number of."""
    text = cluster.run_in("p", "root", "cat", "/proc/self/mountinfo")
    assert text.index(REGION) < MOUNTINFO / 10, text


def test_a_file_that_is_only_called_like_the_library(cluster: Cluster, regions: dict[str, Path]) -> None:
    """Static programs are reported as containers without limits, whatever their file is called, and no other is."""

    def both() -> list[str]:
        found = sorted(cluster.events("p", "GpuLimitNotInForce"))
        assert len(found) == 2, found
        return found

    alike, static = wait_for("both events", both, timeout=30)
    assert "Container alike" in alike
    assert "Container static" in static


def test_other_users_of_the_node_get_at_nothing(
    cluster: Cluster, session_daemon: Daemon, regions: dict[str, Path]
) -> None:
    """A setuid program that a container's root leaves in its region can't be run, and no limit can be read or changed."""
    cluster.run_in("p", "root", "bash", "-c", f"cat /bin/cat >{REGION} && chmod 4777 {REGION}")
    assert regions["root"].stat().st_mode & 0o7777 == 0o4777
    specs = list(CDI_DIR.iterdir())
    folders = {folder for region in regions.values() for folder in (region.parent, region.parent.parent)}
    assert len(specs) == len(regions)
    assert achieved(*regions.values(), *folders, *specs) == []


def test_an_access_control_list_does_not_outlive_a_start(cluster: Cluster, regions: dict[str, Path]) -> None:
    """A container's root shuts user 1000 out of its region; at the next start that user has its limit again."""
    name = "system.posix_acl_access"
    os.setxattr(regions["user"], name, ATTRIBUTES[name])
    assert cluster.run_in("p", "user", "bash", "-c", f"(: <{REGION}) 2>/dev/null || echo refused") == "refused\n"
    before = container_ids(cluster, "p")
    cluster.kill_container(before["user"])
    restarted(cluster, "p", before, "user")
    assert os.listxattr(regions["user"]) == []
    assert look_cleared(cluster, "p", "user").limits == [(1000, 0)]
