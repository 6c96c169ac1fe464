"""What takes limits away elsewhere does not here: one pod, in which each case is a container with a share of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, KubectlFailed
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look, look_cleared
from tests.e2e.manifests import Json, claim, container, init_container, minor, pod, request

PRELOAD, LIBRARY, REGION = "/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so", "/tmp/cudevshr.cache"
PROTECTED = Path("/proc/sys/fs/protected_regular")
"""2 forbids to open others' files in sticky folders with O_CREAT, as the library does; systemd sets 1, Debian 2."""

STRAY = {
    "CUDA_VISIBLE_DEVICES": "1,0",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_MEMORY_LIMIT": "0",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "0",
    "CUDA_DEVICE_SM_LIMIT_0": "100",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/home/own.cache",
    "CUDA_DISABLE_CONTROL": "true",
    "CUDA_REDIRECT": "/lib/libcuda.so.1",
    "GPU_CORE_UTILIZATION_POLICY": "disable",
}
NOBODY = {"runAsUser": 65534, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def volumes(*at: str) -> Json:
    """Mounts of the pod's volumes: `volume:path`, or `volume/file:path` for one file of it."""
    mounts = []
    for name, _, path in (each.partition(":") for each in at):
        volume, _, file = name.partition("/")
        mounts.append({"name": volume, "mountPath": path} | ({"subPath": file} if file else {}))
    return {"volumeMounts": mounts}


FIRST = "VGPU_REPORT=1 sleep 0"
CASES: dict[str, Json] = {
    "cleared": {"command": ["env", "-i", "bash", "-c", f"{FIRST}; trap exit TERM; sleep infinity & wait"]},
    "nobody": {"securityContext": NOBODY},
    "nobody-tmp": {"securityContext": NOBODY, **volumes("scratch:/tmp")},
    "pods-variables": {"env": [{"name": name, "value": value} for name, value in STRAY.items()]},
    "images-variables": {"image": "localhost/variables:1"},
    "tmp": volumes("tmp:/tmp"),
    "hosts-tmp": volumes("hosts-tmp:/tmp"),
    "above": volumes("etc:/etc", "vgpu:/usr/local/vgpu"),
    "at": volumes(f"files/empty:{PRELOAD}", f"files/empty:{LIBRARY}", f"files/empty:{REGION}"),
    "askew": volumes("files/empty:/etc//ld.so.preload", f"files/empty:/usr/../{LIBRARY}", f"files/empty:{REGION}/"),
}
EMPTY = ("scratch", "tmp", "etc", "vgpu", "files")


@pytest.fixture(scope="module")
def strict() -> Iterator[None]:
    """The kernel as strict about sticky folders as distributions have it."""
    before = PROTECTED.read_text()
    PROTECTED.write_text("2")
    yield
    PROTECTED.write_text(before)


@pytest.fixture(scope="module")
def memory(
    session_daemon: Daemon, cluster: Cluster, strict: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """The pod runs; MiB by container."""
    if not session_daemon.is_running:
        session_daemon.start()
    hosts_tmp = tmp_path_factory.mktemp("tmp")
    hosts_tmp.chmod(0o1777)
    mib = {name: 500 + 10 * number for number, name in enumerate(CASES)}
    cluster.apply(
        claim(
            "c",
            *(request(name, memory=f"{size}Mi", cores=20) for name, size in mib.items()),
            request("two-1", memory="2000Mi", selector=minor(1)),
            request("two-2", memory="3000Mi", selector=minor(2)),
        ),
        pod(
            "p",
            *(container(name, claims=[("gpus", name)], **fields) for name, fields in CASES.items()),
            container("two", claims=[("gpus", "two-1"), ("gpus", "two-2")]),
            claims={"gpus": "c"},
            initContainers=[init_container("files", script="touch /files/empty") | volumes("files:/files")],
            volumes=[
                *({"name": name, "emptyDir": {}} for name in EMPTY),
                {"name": "hosts-tmp", "hostPath": {"path": str(hosts_tmp)}},
            ],
        ),
    )
    cluster.running("p")
    yield mib
    clean(cluster, session_daemon)


@pytest.mark.parametrize("case", [name for name in CASES if name != "cleared"])
def test_the_limit_stays(cluster: Cluster, memory: dict[str, int], case: str) -> None:
    """Whatever user, variables or volumes a container has: processes with all variables and with none keep one limit."""
    inside, cleared = look(cluster, "p", case), look_cleared(cluster, "p", case)
    assert inside.limits == cleared.limits == [(memory[case], 20)]
    assert (inside.report["consistent"], inside.report["cache.first"], cleared.report["cache.first"]) == ("1", "0", "0")
    assert not {"error", "used.0"} & inside.report.keys()
    assert inside.preload == LIBRARY


def test_an_entry_point_that_clears_the_environment(cluster: Cluster, memory: dict[str, int]) -> None:
    """The first process of a container has no variable, and its limit; so have the programs of `kubectl exec`."""
    report = dict(line.split("=", 1) for line in cluster.logs("p", "cleared").splitlines())
    assert (report["memory.0"], report["cores.0"]) == (str(memory["cleared"] << 20), "20")
    assert (report["cache"], report["cache.first"], report["visible"]) == (REGION, "0", "")
    assert look(cluster, "p", "cleared").limits == [(memory["cleared"], 20)]


@pytest.mark.parametrize("case", ["pods-variables", "images-variables"])
def test_the_drivers_variables_win(cluster: Cluster, memory: dict[str, int], case: str) -> None:
    """Variables of image and pod that would break the numbering, or the limits, come to nothing."""
    env = look(cluster, "p", case).env
    expected = {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{memory[case]}m",
        "CUDA_DEVICE_SM_LIMIT_0": "20",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": REGION,
        "CUDA_REDIRECT": LIBRARY,
        "GPU_CORE_UTILIZATION_POLICY": "default",
    }
    assert expected.items() <= env.items()


def test_two_gpus_without_variables(cluster: Cluster, memory: dict[str, int]) -> None:
    """A process without any variable keeps the limit of each of two GPUs."""
    assert look(cluster, "p", "two").limits == look_cleared(cluster, "p", "two").limits == [(3000, 0), (2000, 0)]


@pytest.mark.parametrize("path", [PRELOAD, LIBRARY, REGION])
@pytest.mark.parametrize("attempt", ["rm -f {}", "mv {} /home", "mv /etc/passwd {}"])
def test_files_that_resist(cluster: Cluster, memory: dict[str, int], path: str, attempt: str) -> None:
    """Root in a container can't delete, move or replace our files."""
    with pytest.raises(KubectlFailed, match="busy"):
        cluster.run_in("p", "images-variables", "sh", "-c", attempt.format(path))
    assert look_cleared(cluster, "p", "images-variables").limits == [(memory["images-variables"], 20)]


@pytest.mark.parametrize("path", [PRELOAD, LIBRARY])
def test_files_that_are_read_only(cluster: Cluster, memory: dict[str, int], path: str) -> None:
    """Root in a container can't write to the library or to what has it loaded."""
    with pytest.raises(KubectlFailed, match="Read-only"):
        cluster.run_in("p", "images-variables", "sh", "-c", f": >{path}")


def test_volumes_are_left_as_they_are(cluster: Cluster, memory: dict[str, int]) -> None:
    """Beside our files the volumes at `/tmp`, `/etc` and `/usr/local/vgpu` are the pod's."""
    for case, path in (("tmp", "/tmp"), ("above", "/etc"), ("above", "/usr/local/vgpu")):
        assert cluster.run_in("p", case, "sh", "-c", f"touch {path}/own && ls {path}").split().count("own") == 1
