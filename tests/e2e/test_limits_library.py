"""Libraries of several versions, and of none that is known."""

import json
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.inside import Inside, look, look_cleared
from tests.e2e.manifests import container, pod, request, template
from tests.e2e.test_limits_restart import container_ids, restarted
from tests.waiting import wait_for

LIBRARY = "/usr/local/vgpu/libvgpu.so"


@pytest.fixture
def other_daemon(daemon: Daemon) -> Iterator[Daemon]:
    """The daemon, stopped, to be started with other libraries; the usual one again afterwards."""
    assert daemon.stop() == 0
    yield daemon
    daemon.restart()


def claims(daemon: Daemon) -> list[dict[str, Any]]:
    """What `hami-kubeletplugin claims` tells."""
    found: list[dict[str, Any]] = json.loads(daemon.claims("--output", "json"))
    return found


def digest_of(inside: Inside) -> str:
    """The end of the host's name for the library that a container has mounted."""
    return inside.mounts[LIBRARY].source.rpartition(".")[2]


def test_an_update_of_the_library(other_daemon: Daemon, cluster: Cluster, libraries: Path) -> None:
    """A running container keeps its library and region; started again it has the new ones, which fit together as well."""
    digests = {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in libraries.glob("libvgpu.so.*")}
    other_daemon.start("--hami-core", str(libraries), "--hami-core-version", "2.8.0")
    cluster.apply(
        template("t", request(memory="1000Mi")),
        pod("p", container(claims=["gpu"]), templates={"gpu": "t"}),
    )
    before = container_ids(cluster, "p")
    assert other_daemon.stop() == 0
    other_daemon.start("--hami-core", str(libraries))
    for version in ("2.8.0", "2.10.0"):
        inside = look(cluster, "p")
        assert digest_of(inside) == digests[f"libvgpu.so.{version}"]
        assert "error" not in inside.report
        assert inside.limits == look_cleared(cluster, "p").limits == [(1000, 0)]
        if version == "2.8.0":
            cluster.kill_container(before["main"])
            restarted(cluster, "p", before, "main")
    assert [found["library"] for found in claims(other_daemon)] == ["2.10.0"]


def test_a_library_that_nobody_knows(other_daemon: Daemon, cluster: Cluster, library: Path, tmp_path: Path) -> None:
    """Its regions can't be made, so limits are in variables only; `claims` and the log say so, the latter once."""
    (tmp_path / "libvgpu.so").write_bytes(library.read_bytes())
    other_daemon.start("--hami-core", str(tmp_path))
    cluster.apply(
        template("t", request(memory="1000Mi")),
        *(pod(name, container(claims=["gpu"]), templates={"gpu": "t"}) for name in ("p", "q")),
    )
    cluster.running("p", "q")
    inside = look(cluster, "p")
    assert inside.limits == [(1000, 0)]
    assert inside.report["cache.first"] == "1"
    assert look_cleared(cluster, "p").limits == []
    assert [(found["library"], found["regions"]) for found in claims(other_daemon)] == [(None, False)] * 2
    [warning] = [entry for entry in other_daemon.log() if "limits are in variables only" in entry["event"]]
    assert "versions.json" in warning["reason"]


def test_a_static_program_is_reported(other_daemon: Daemon, cluster: Cluster, tmp_path: Path) -> None:
    """A static program never loads the library, and nothing limits it: its pod gets an event; one beside it gets none."""
    tmp_path.chmod(0o755)
    (tmp_path / "p.c").write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    command = ["gcc", "-static", "-O2", "-o", str(tmp_path / "program"), str(tmp_path / "p.c")]
    subprocess.run(command, check=True, timeout=60)
    other_daemon.start("--container-interval", "0.5")
    static = {**container("static", claims=["one"]), "command": ["/host/program"]}
    static["volumeMounts"] = [{"name": "host", "mountPath": "/host"}]
    cluster.apply(
        template("t", request(memory="1000Mi")),
        pod(
            "p",
            static,
            container("dynamic", claims=["two"]),
            templates={"one": "t", "two": "t"},
            volumes=[{"name": "host", "hostPath": {"path": str(tmp_path)}}],
        ),
    )
    cluster.running("p")
    found = wait_for("the event", lambda: cluster.events("p", "GpuLimitNotInForce"), timeout=30)
    assert len(found) == 1
    assert "static" in found[0]


def _write(region: Path, offset: int, number: int) -> None:
    """As any program of its container can; the images here have none that writes into the middle of a file."""
    with region.open("r+b") as file:
        file.seek(offset)
        file.write(number.to_bytes(8, "little"))


def test_what_is_used_is_seen_and_a_raised_limit_is_told(other_daemon: Daemon, cluster: Cluster) -> None:
    """`top` has what a living process uses, beside the limit; a program that raises its own limit has an Event of its pod."""
    other_daemon.start("--container-interval", "0.5")
    cluster.apply(
        template("t", request(memory="1000Mi", cores=30)),
        pod(
            "p",
            container("steady", claims=["one"]),
            container("greedy", claims=["two"]),
            templates={"one": "t", "two": "t"},
        ),
    )
    cluster.running("p")
    cluster.run_in("p", "steady", "sh", "-c", "VGPU_REPORT=1 VGPU_ALLOC=64 sleep 100 >/dev/null 2>&1 &")
    cluster.run_in("p", "greedy", "sh", "-c", "VGPU_REPORT=1 VGPU_ALLOC=32 sleep 0 >/dev/null 2>&1")

    def seen(name: str) -> dict[str, Any]:
        (found,) = (each for each in other_daemon.top()["containers"] if each["container"] == name)
        return dict(found)

    steady = wait_for("its process to use memory", lambda: (found := seen("steady"))["processes"] and found, timeout=20)
    assert steady["gpus"][0]["used"]["total"] == 64 << 20
    assert steady["gpus"][0]["limit"] == steady["gpus"][0]["region"] == {"memory_mib": 1000, "cores": 30}
    greedy = seen("greedy")
    assert (greedy["processes"], greedy["gpus"][0]["used"]["total"], greedy["differs"]) == (0, 0, False)
    _write(other_daemon.hami_dir / "cache" / greedy["claim"]["uid"] / "use-0.region", 1600, 40 << 30)
    found = wait_for("the event", lambda: cluster.events("p", "GpuLimitNotInForce"), timeout=30)
    assert len(found) == 1
    assert "Container greedy has other GPU limits" in found[0]
    assert "is 40960 MiB instead of 1000 MiB" in found[0]
    assert (seen("greedy")["differs"], seen("steady")["differs"]) == (True, False)
