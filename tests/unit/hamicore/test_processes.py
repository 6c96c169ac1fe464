"""Which processes are in whose containers, as `/proc` shows it, and what that may cost."""

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.hamicore import processes
from hami_kubeletplugin.hamicore.loaded import Answers, count, our_mappings
from hami_kubeletplugin.hamicore.processes import PROC, Look, Process, Source, UseKey, claims, look, places, source
from tests.unit.proc_tree import DAEMON, HAMI, ProcTree, is_root

UID = "0b5c1a52-7d6c-4a43-9d3e-2f0f2f4f1a11"
USE = UseKey(UID, "use-0")
CACHE = Source(b"8:1", b"/usr/local/vgpu/cache")
NONE: dict[bytes, bytes] = {}


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    """Nothing but the daemon runs."""
    return ProcTree(tmp_path / "proc")


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (b"1 0 8:1 / / rw - ext4 d rw", Source(b"8:1", b"/opt/my vgpu/cache")),
        (b"1 0 8:1 /@root / rw - btrfs d rw", Source(b"8:1", b"/@root/opt/my vgpu/cache")),
        (b"1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 /x /opt/my\\040vgpu rw - ext4 d rw", Source(b"8:2", b"/x/cache")),
        (b"1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /opt/my\\040vgpu/cache rw - ext4 d rw", Source(b"8:2", b"")),
        (b"2 1 8:2 / /opt rw - ext4 d rw\n1 0 8:1 / / rw - ext4 d rw", Source(b"8:2", b"/my vgpu/cache")),
        (b"1 0 8:1 / /opt rw - ext4 d rw\n2 1 8:2 / /opt rw - ext4 d rw", Source(b"8:2", b"/my vgpu/cache")),
        (b"1 0 8:1 / /opt/my rw - ext4 d rw", None),
        (b"torn", None),
    ],
)
def test_where_a_directory_really_is(mounts: bytes, found: Source | None) -> None:
    """The innermost mount that it is below decides, the last one of several at one point, whatever is escaped in its path."""
    assert source(mounts, "/opt/my vgpu/cache") == found


@pytest.mark.parametrize(
    ("root", "found"),
    [
        (f"{HAMI}/cache/{UID}/use-0.region", {USE}),
        (f"{HAMI}/cache/{UID}/use-0.region//deleted", {USE}),
        (f"{HAMI}/cache/{UID}/use-12", {UseKey(UID, "use-12")}),
        (f"{HAMI}/cache/{UID}/use-0.other", set()),
        (f"{HAMI}/cache/{UID}", set()),
        (f"{HAMI}", set()),
        ("/", set()),
        (f"/var/lib/kubelet/pods/x/volumes/y/cache/{UID}/use-0.region", set()),
        (f"{HAMI}/cache/a/cache/{UID}/use-0.region", set()),
    ],
)
def test_whose_files_are_mounted(root: str, found: set[UseKey]) -> None:
    """Region file or cache directory of a use; what only looks like one, in a volume or on another disk, is none."""
    assert places(f"60 40 8:1 {root} /tmp/cudevshr.cache rw - ext4 d rw\n".encode(), CACHE, NONE) == found
    assert places(f"60 40 8:2 {root} /tmp/cudevshr.cache rw - ext4 d rw\n".encode(), CACHE, NONE) == set()
    assert places(f"60 40 8:1 / {HAMI}/cache/{UID}/use-0.region rw - ext4 d rw\n".encode(), CACHE, NONE) == set()


@pytest.mark.parametrize(
    ("device", "root", "found"),
    [
        ("0:77", "/use-0.region", {USE}),
        ("0:77", "/use-0.region//deleted", {USE}),
        ("0:77", "/use-12", {UseKey(UID, "use-12")}),
        ("0:77", "/", set()),
        ("0:77", f"/{UID}/use-0.region", set()),
        ("0:78", "/use-0.region", set()),
        ("8:1", f"{HAMI}/cache/other/use-0", {UseKey("other", "use-0")}),
    ],
)
def test_whose_files_are_mounted_when_claims_are_in_memory(device: str, root: str, found: set[UseKey]) -> None:
    """A claim is known by the device of its file system; what is on the disk from before is found as well."""
    own = claims(
        b"1 0 8:1 / / rw - ext4 d rw\n"
        + f"2 1 0:77 / {HAMI}/cache/{UID} rw shared:9 - tmpfs hami-dra rw\n".encode()
        + f"3 1 0:78 / {HAMI}/cache/{UID}/deeper rw - tmpfs t rw\n4 1 0:79 / /x/cache/{UID} rw - tmpfs t rw\n".encode(),
        f"{HAMI}/cache",
    )
    assert places(f"60 40 {device} {root} /tmp/cudevshr.cache rw - tmpfs t rw\n".encode(), CACHE, own) == found


def test_all_processes_of_a_container_are_found(proc: ProcTree) -> None:
    """Also one that changed its root and so shows no mount, and one in a mount name space that was made inside; oldest first."""
    proc.add(20, "mnt:[20]", root=str(proc.root), started=90, name="in (chroot) x")
    proc.container(30, UID, namespace="mnt:[20]")
    proc.container(31, UID, namespace="mnt:[31]")
    proc.container(40, UID, "use-1")
    proc.add(50, "mnt:[50]")
    found = look(HAMI, proc.root)
    assert found.others
    assert [process.pid for process in found.processes[USE]] == [30, 31, 20]
    assert found.processes[UseKey(UID, "use-1")] == (Process(40, 40, "sh"),)
    assert found.processes[USE][2].name == "in (chroot) x"
    assert len(found.processes) == 2


def test_without_the_nodes_pid_name_space_there_are_no_others(proc: ProcTree) -> None:
    """All that `/proc` shows is in our own container; that is told apart from a node on which nothing runs."""
    proc.container(DAEMON + 1, UID, namespace="mnt:[1]")
    assert look(HAMI, proc.root) == Look(False, {})
    proc.add(1, "mnt:[4026531841]", name="systemd")
    assert look(HAMI, proc.root) == Look(True, {})


def test_what_vanishes_meanwhile_is_left_out(proc: ProcTree) -> None:
    """A process of which only a part can still be read is no process, and no error."""
    for number, name in enumerate(("ns/mnt", "root", "stat", "mountinfo"), 10):
        proc.container(number, UID, namespace="mnt:[10]")
        (proc.root / str(number) / name).unlink()
    (proc.root / "99").mkdir()
    proc.container(20, UID, namespace="mnt:[10]")
    (proc.root / "20/stat").write_text("20 (sh")
    assert [process.pid for process in look(HAMI, proc.root).processes[USE]] == [13]


POD = "3f2c7d0e-9a64-4c1e-8f0b-0a1b2c3d4e5f"
OTHER_POD = f"{POD[:-1]}0"
CGROUP = "/kubepods/burstable/pod{}/" + "c" * 64
MANY = "".join(f"{100 + i} 40 0:8 / /m/{i} rw - tmpfs tmpfs rw\n" for i in range(10_000))
OURS = f"60 40 8:1 {HAMI}/cache/{UID}/use-0.region /tmp/cudevshr.cache rw - ext4 /dev/sda1 rw\n"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each read of a file of procfs: its name, and how many bytes it gave."""
    done: list[tuple[str, int]] = []

    def counted(path: str | Path, limit: int) -> bytes:
        with open(path, "rb") as file:
            content = file.read(limit)
        done.append((Path(path).name, len(content)))
        return content

    monkeypatch.setattr(processes, "_read", counted)
    return done


def mounts_read(read: list[tuple[str, int]]) -> tuple[int, int]:
    """How many mountinfos, and how many bytes of them, but the daemon's own."""
    sizes = [size for name, size in read if name == "mountinfo"][1:]
    return len(sizes), sum(sizes)


def test_mounts_of_a_container_after_ours_cost_nothing(proc: ProcTree, read: list[tuple[str, int]]) -> None:
    """It can make any number, but not before ours; so it is found by the first ones, as are others beside it."""
    proc.add(20, "mnt:[20]", OURS + MANY * 10, cgroup=CGROUP.format(POD))
    proc.container(30, UID, "use-1")
    found = look(HAMI, proc.root)
    assert sorted(found.processes) == [USE, UseKey(UID, "use-1")]
    assert found.crowded == frozenset()
    assert mounts_read(read)[1] < len(MANY)


def by_systemd(pod: str) -> str:
    """The path of a container's cgroup with the kubelet's other driver."""
    return f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod.replace('-', '_')}.slice/cri-containerd-c.scope"


CGROUPS: dict[str, Callable[[str], str]] = {
    "cgroupfs": CGROUP.format,
    "systemd": by_systemd,
    "seen from a container": "/../../pod{}/c".format,
}


@pytest.mark.parametrize("cgroup", CGROUPS.values(), ids=CGROUPS)
@pytest.mark.parametrize("kind", ["many mounts", "costly mounts", "many name spaces", "many roots"])
def test_a_pod_that_hides_behind_mounts(
    proc: ProcTree,
    read: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    cgroup: Callable[[str], str],
) -> None:
    """What is looked at has a bound for each pod, and who is beyond it is named; other pods are seen as ever."""
    for number in range(100):
        namespace = f"mnt:[{1000 + (0 if kind == 'many roots' else number)}]"
        root = proc.root / f"root-{number if kind == 'many roots' else 0}"
        root.mkdir(exist_ok=True)
        mounts = MANY + OURS if kind == "many mounts" and number < 20 else ""
        proc.add(1000 + number, namespace, mounts, root=str(root), cgroup=cgroup(POD))
    proc.add(2000, "mnt:[2000]", OURS.replace("use-0", "use-1"), cgroup=cgroup(OTHER_POD))
    proc.add(2001, "mnt:[2001]", MANY)
    if kind == "costly mounts":
        monkeypatch.setattr("time.thread_time", itertools.count().__next__)
    found = look(HAMI, proc.root)
    assert found.crowded == {POD}
    times, size = mounts_read(read)
    assert times <= {"many mounts": 16, "costly mounts": 1}.get(kind, 64) + 3
    assert size <= 5 * 1024 * 1024
    assert list(found.processes) == [UseKey(UID, "use-1")]


@pytest.fixture
def real(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Programs in a mount name space of their own with a region in it: one has the library, one a copy of it, one neither."""
    if not is_root():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs root, to make a mount name space")
    region, library = tmp_path / "vgpu/cache" / UID / "use-0.region", tmp_path / "vgpu/lib/libvgpu.so.0123456789abcdef"
    for path in (region, library, tmp_path / "libvgpu.so", tmp_path / "copy/libvgpu.so", tmp_path / "target"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "v.c").write_text("int hami_stand_in(void) { return 1; }\n")
    (tmp_path / "s.c").write_text("#include <unistd.h>\nint main(void) { pause(); return 0; }\n")
    for arguments in (
        ("-shared", "-fPIC", "-o", library, "v.c"),
        *(("-o", name, "s.c") for name in ("has", "alike", "lacks")),
    ):
        subprocess.run(["gcc", *arguments], cwd=tmp_path, check=True, timeout=60)
    script = f"""
        cp {library} copy/libvgpu.so && mount --bind {region} target && mount --bind {library} libvgpu.so || exit
        LD_PRELOAD=$PWD/libvgpu.so ./has & LD_PRELOAD=$PWD/copy/libvgpu.so ./alike & exec ./lacks
    """
    started = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], cwd=tmp_path, start_new_session=True)
    yield started
    os.killpg(started.pid, 9)
    started.wait(timeout=10)


def test_the_kernels_own_proc(tmp_path: Path, real: "subprocess.Popen[bytes]") -> None:
    """Real processes in a real mount name space are found by their mount, and that with the library by the library's file."""
    deadline = time.monotonic() + 20
    found: dict[str, Answers] = {}
    expected = {"has": Answers(1, 0, True), "alike": Answers(0, 1, True), "lacks": Answers(0, 1, True)}
    while time.monotonic() < deadline and found != expected:
        seen = look(tmp_path / "vgpu", PROC).processes.get(USE, ())
        found = {each.name: count([each], our_mappings(tmp_path / "vgpu")) for each in seen}
        time.sleep(0.02)
    assert found == expected
    assert seen[0].pid == real.pid
    assert look(tmp_path, PROC).processes == {}
