"""A container that writes as much as it can into whatever of ours it can write costs the node little, and nobody else notices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.inside import Inside, look
from tests.e2e.manifests import claim, config, container, pod, request
from tests.e2e.test_limits_restart import container_ids, restarted

MIB = 1024 * 1024
GIB = 1024 * MIB
FILL = """
for file in {files}; do
  for piece in {{1..64}}; do printf '%16777216s' "" >>"$file" || break; done 2>/dev/null
  [ "${{file##*/}}" != junk ] || for name in {{1..3000}}; do : >"${{file%/*}}/$name" || break; done 2>/dev/null
done
rm -f /tmp/vgpulock/lock; chmod 0 /tmp/vgpulock; echo done
"""
"""Up to a gigabyte into each file, by bash alone, and many files beside it."""
OURS = ("/tmp/cudevshr.cache", "/tmp/vgpulock", "/usr/local/vgpu/cache")


def writable(inside: Inside) -> dict[str, str]:
    """A file in each place of ours that a container can write: the region itself, or one in a directory."""
    found = {path: inside.mounts[path] for path in OURS if path in inside.mounts}
    assert all({"nosuid", "nodev", "noexec"} <= mount.options for mount in found.values())
    return {path: path if path.endswith(".cache") else f"{path}/junk" for path in found}


def room(cluster: Cluster, name: str, file: str) -> int:
    """Bytes that the file system of a file can hold."""
    blocks, size = cluster.run_in("hostile", name, "stat", "-f", "-c", "%b %S", file).split()
    return int(blocks) * int(size)


def on_node(daemon: Daemon) -> int:
    """Bytes that all of ours takes on the node, on its disk and in its memory."""
    files = [daemon.hami_dir, *daemon.hami_dir.rglob("*")]
    return sum(path.lstat().st_blocks for path in files) * 512


@pytest.fixture(params=["regions", "node-wide lock", "one's own folder"])
def tenants(
    request: pytest.FixtureRequest, daemon: Daemon, cluster: Cluster, libraries: Path, library: Path, tmp_path: Path
) -> Iterator[Daemon]:
    """Two pods of different claims, with a library whose regions we make, with one that locks the node, and with neither."""
    assert daemon.stop() == 0
    if request.param == "one's own folder":
        unknown = tmp_path / "unknown"
        unknown.mkdir()
        (unknown / "libvgpu.so").write_bytes(library.read_bytes())
        daemon.start("--claim-files", "memory", "--hami-core", str(unknown))
    else:
        version = "2.8.0" if request.param == "node-wide lock" else "2.10.0"
        daemon.start("--claim-files", "memory", "--hami-core", str(libraries), "--hami-core-version", version)
    yield daemon
    clean(cluster, daemon)
    daemon.restart()


def test_writing_without_end(tenants: Daemon, cluster: Cluster) -> None:
    """A gigabyte into each of our files, thousands of names, rights taken away: at most 16 MiB of the node, and its end.

    The other pod keeps its limits, a new one starts, and the hostile one itself is as new after a restart; or, where nobody can
    renew its region, its programs may end for want of room.
    """
    cluster.apply(
        *(claim(name, request(memory="1000Mi")) for name in ("hostile", "other", "later")),
        claim("shared", request(memory="1000Mi"), config=[config(allowSharedContainers=True)]),
        pod(
            "hostile",
            container("main", claims=["own"]),
            container("one", claims=["shared"]),
            container("two", claims=["shared"]),
            claims={"own": "hostile", "shared": "shared"},
        ),
        pod("other", container(claims=["gpu"]), claims={"gpu": "other"}),
    )
    cluster.running("hostile", "other")
    before = on_node(tenants)
    renewed = OURS[0] in look(cluster, "hostile").mounts
    ids = container_ids(cluster, "hostile")
    for name in ("main", "one"):
        inside = look(cluster, "hostile", name)
        files = writable(inside)
        assert len(files) == 2, inside.mounts
        assert sum(room(cluster, name, path) for path in files) <= 16 * MIB
        script = FILL.format(files=" ".join(files.values()))
        assert cluster.run_in("hostile", name, "bash", "-c", script).strip() == "done"
    assert on_node(tenants) - before <= 16 * MIB
    assert look(cluster, "other").limits == [(1000, 0)]
    assert look(cluster, "hostile", "two").limits == [(1000, 0)]
    cluster.apply(pod("later", container(claims=["gpu"], securityContext={"runAsUser": 1000}), claims={"gpu": "later"}))
    cluster.running("later")
    inside = look(cluster, "later")
    assert (inside.limits, inside.report["lock"]) == ([(1000, 0)], "1")
    cluster.kill_container(ids["main"])
    restarted(cluster, "hostile", ids, "main")
    program = cluster.run_in("hostile", "main", "bash", "-c", "VGPU_REPORT=1 sleep 0 2>&1; echo status=$?")
    limited, ran = "memory.0=1048576000" in program, "status=0" in program
    assert limited if ran else not renewed, program


def test_nothing_stays_of_it(tenants: Daemon, cluster: Cluster) -> None:
    """What a container left goes with its claim, also while a process still holds a file of it open."""
    cluster.apply(claim("c", request(memory="1000Mi")), pod("p", container(claims=["gpu"]), claims={"gpu": "c"}))
    cluster.running("p")
    files = writable(look(cluster, "p"))
    cluster.run_in("p", "main", "bash", "-c", FILL.format(files=" ".join(files.values())))
    found = cluster.get("resourceclaim", "c")
    assert found is not None
    folder = tenants.hami_dir / "cache" / found["metadata"]["uid"]
    with next(path for path in folder.rglob("*") if path.is_file()).open("rb"):
        clean(cluster, tenants)
    assert on_node(tenants) < 4 * MIB
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
