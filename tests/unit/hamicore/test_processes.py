"""Whether processes of containers have HAMi-core, as `/proc` shows it."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.hamicore.processes import (
    PROC,
    Look,
    Process,
    Source,
    UseKey,
    claims,
    has_loaded,
    look,
    places,
    source,
)
from tests.unit.proc_tree import DAEMON, HAMI, LIBRARY_MAPS, OTHER_MAPS, ProcTree, is_root

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


@pytest.mark.parametrize(
    ("maps", "loaded"),
    [
        (LIBRARY_MAPS, True),
        (LIBRARY_MAPS.rstrip("\n").removesuffix("7ffd-7ffe rw-p 0 00:00 0 [stack]").rstrip(), True),
        (OTHER_MAPS * 20_000 + LIBRARY_MAPS + OTHER_MAPS * 20_000, True),
        ("7f10-7f20 r-xp 0 08:01 42 /usr/local/vgpu/lib/libvgpu.so.0123456789abcdef (deleted)\n", True),
        ("7f00 " + "x" * (256 * 1024 - 30) + "\n7f10 /usr/local/vgpu/libvgpu.so\n", True),  # across the end of a piece
        (OTHER_MAPS * 20_000, False),
        ("7f10-7f20 r-xp 0 08:01 42 /data/libvgpu.so/libother.so\n", False),
        ("", None),
    ],
)
def test_whether_a_process_has_the_library(proc: ProcTree, maps: str, loaded: bool | None) -> None:
    """By the file's name, wherever it is in however long a list; one without any mapping is ending, or no program at all."""
    proc.add(20, "mnt:[20]", maps=maps)
    assert has_loaded(Process(20, 20, "sh"), proc.root) is loaded


def test_nothing_is_known_of_a_process_that_has_ended(proc: ProcTree) -> None:
    """No answer is another answer than no."""
    assert has_loaded(Process(20, 20, "sh"), proc.root) is None


@pytest.fixture
def real(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Two programs in a mount name space of their own with a region in it: the second one, its child, has a libvgpu.so."""
    if not is_root():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs root, to make a mount name space")
    region = tmp_path / "vgpu/cache" / UID / "use-0.region"
    region.parent.mkdir(parents=True)
    region.touch()
    (tmp_path / "target").touch()
    (tmp_path / "v.c").write_text("int hami_stand_in(void) { return 1; }\n")
    (tmp_path / "s.c").write_text("#include <unistd.h>\nint main(void) { pause(); return 0; }\n")
    for arguments in (("-shared", "-fPIC", "-o", "libvgpu.so", "v.c"), ("-o", "waits", "s.c")):
        subprocess.run(["gcc", *arguments], cwd=tmp_path, check=True, timeout=60)
    script = f"mount --bind {region} target && {{ LD_PRELOAD=$PWD/libvgpu.so ./waits & exec ./waits; }}"
    started = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], cwd=tmp_path, start_new_session=True)
    yield started
    os.killpg(started.pid, 9)
    started.wait(timeout=10)


def test_the_kernels_own_proc(tmp_path: Path, real: "subprocess.Popen[bytes]") -> None:
    """Real processes in a real mount name space are found by their mount, and the one that was started with the library too."""
    deadline = time.monotonic() + 20
    found: list[tuple[str, bool | None]] = []
    while time.monotonic() < deadline and sorted(found) != [("waits", False), ("waits", True)]:
        processes = look(tmp_path / "vgpu", PROC).processes.get(USE, ())
        found = [(process.name, has_loaded(process)) for process in processes]
        time.sleep(0.02)
    assert sorted(found) == [("waits", False), ("waits", True)]
    assert processes[0].pid == real.pid
    assert look(tmp_path, PROC).processes == {}
