"""At a container's start its region becomes pristine again, in place, unless a process still uses it."""

import ctypes
import os
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.hamicore.region import BROKEN_SIZE, LAYOUTS, MAGIC, Layout
from tests import REPOSITORY
from tests.unit.hamicore.hook import (
    ATTRIBUTES,
    CLAIM,
    CONTAINERD,
    CRIO,
    HOLDERS,
    POD,
    READERS,
    Use,
    call,
    content,
    pristine,
    process,
    state,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it changes owners, or mounts")
OTHER = POD[:-1] + "0"


@pytest.fixture(params=["shipped", "in memory", "sanitized"])
def use(request: pytest.FixtureRequest, native: Path, sanitized_hook: Path, tmp_path: Path) -> Iterator[Use]:
    """A region that was used before, on a disk or a tmpfs, and the program as shipped or as it looks for its own faults."""
    program = sanitized_hook if request.param == "sanitized" else native / "hami-region-hook"
    if request.param != "in memory":
        yield Use(tmp_path, program)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Use(Path(folder), program)


# --- renewing ---


def test_a_used_region_is_pristine_again(use: Use) -> None:
    """Byte for byte, in the same file, since that is what the runtime has mounted."""
    inode = use.region.stat().st_ino
    assert use.run().status == 0
    assert use.is_renewed()
    assert use.region.stat().st_ino == inode


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_is_known(use: Use, layout: Layout) -> None:
    """Of all that the driver makes."""
    use.made = pristine(layout)
    assert use.run().status == 0
    assert use.is_renewed()


@pytest.mark.parametrize("size", [0, 3, 2_008_953, 3_000_000, 1 << 40])
def test_any_former_content_goes(use: Use, size: int) -> None:
    """Empty, cut, full of garbage, or a terabyte of nothing; it has all its blocks of a disk, and no more."""
    use.region.write_bytes(os.urandom(min(size, 3_000_000)))
    os.truncate(use.region, size)
    assert use.run().status == 0
    assert use.is_renewed()
    blocks = use.region.stat().st_blocks * 512
    assert blocks < 200_000 if use.in_memory else LAYOUTS["1.2"].size <= blocks < 2 * LAYOUTS["1.2"].size


@as_root
def test_owner_and_mode_come_back(use: Use) -> None:
    """A container's root may have changed them; the next container may run as any user."""
    os.chown(use.region, 1234, 1234)
    use.region.chmod(0o4001)
    assert use.run().status == 0
    assert use.is_renewed()
    assert (use.region.stat().st_uid, use.region.stat().st_gid) == (os.geteuid(), os.getegid())


@as_root
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_container_go(use: Use, name: str) -> None:
    """An access control list keeps a user out though the mode lets everybody in; what else one stored goes with it."""
    os.setxattr(use.region, name, ATTRIBUTES[name])
    assert os.listxattr(use.region) == [name]
    assert use.run().status == 0
    assert use.is_renewed()
    assert os.listxattr(use.region) == []


@as_root
@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_region_that_nobody_may_write_is_named(use: Use, flag: str) -> None:
    """As a container with CAP_LINUX_IMMUTABLE can leave it: it does not start again, and the message names the file."""
    if subprocess.run(["chattr", f"+{flag}", use.region], check=False, timeout=10, stderr=subprocess.PIPE).returncode:
        pytest.skip("this file system has no such flags")
    try:
        ended = use.run()
    finally:
        subprocess.run(["chattr", f"-{flag}", use.region], check=True, timeout=10)
    assert ended.status == 1
    for part in (CLAIM, str(use.region), "Operation not permitted", "delete the pod"):
        assert part in ended.message


# --- a region in use ---


@pytest.mark.parametrize("how", HOLDERS)
def test_a_region_in_use_is_not_touched(use: Use, how: str) -> None:
    """Programs would crash or hang; the start is refused with what to look for, and works after the process has been killed."""
    before = use.region.read_bytes()
    with process(HOLDERS[how], use.region) as running:
        ended = use.run()
        assert ended.status == 1
        for part in (CLAIM, str(use.region), "open for writing", "starts after its end", "fuser"):
            assert part in ended.message
        assert use.region.read_bytes() == before
        running.kill()
        running.wait(10)
        assert use.run().status == 0
    assert use.is_renewed()


@pytest.mark.parametrize("how", READERS)
def test_a_reader_is_no_obstacle(use: Use, how: str) -> None:
    """Somebody who looks at the regions of a node keeps no container from starting; with a writer beside it, it is in use."""
    with process(READERS[how], use.region):
        assert use.run().status == 0
        assert use.is_renewed()
        with process(HOLDERS["mapped for writing"], use.region):
            assert use.run().status == 1
    assert use.is_renewed()


def test_a_lease_of_another_process_is_not_waited_for(use: Use) -> None:
    """Breaking somebody's lease may take 45 seconds; it counts as use."""
    with process(
        "import fcntl; f = os.open(p, os.O_RDONLY); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)", use.region
    ):
        assert "open for writing" in use.run().message
    assert use.run().status == 0


def test_a_run_that_renews_it_is_not_met(use: Use) -> None:
    """Two runs that both found nothing but a reader: the lock lets one of them write, the other one finds it in use."""
    with process("import fcntl; f = os.open(p, os.O_RDONLY); fcntl.flock(f, fcntl.LOCK_EX)", use.region):
        assert "open for writing" in use.run().message
    assert use.run().status == 0


def test_many_at_once_leave_a_whole_region(use: Use) -> None:
    """Runs side by side renew it or find it in use; none leaves it half-written."""
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(lambda _: use.run(), range(24)))
    assert all("open for writing" in one.message for one in ended if one.status)
    assert use.run().status == 0
    assert use.is_renewed()


# --- files that are not what they should be ---


def put(path: Path, what: str) -> None:
    """Something else under a file's name."""
    shutil.copy(path, path.with_suffix(".moved"))
    path.unlink()
    if what == "link":
        path.symlink_to(path.with_suffix(".moved"))
    elif what == "FIFO":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()


@pytest.mark.parametrize("what", ["link", "FIFO", "folder", "nothing"])
def test_something_else_is_refused_at_once(use: Use, what: str) -> None:
    """A link is not followed and a FIFO not waited for; the message names claim, file, and what to do."""
    path = use.region
    put(path, what)
    ended = use.run()
    assert ended.status == 1
    assert f"claim {CLAIM}: region {path}: " in ended.message
    assert "delete the pod" in ended.message
    if what == "link":
        assert path.is_symlink()
        assert path.with_suffix(".moved").stat().st_size == 40_004


PIECE = f"0:{MAGIC.to_bytes(4, 'little').hex()}"


@pytest.mark.parametrize(
    ("size", "pieces", "reason"),
    [
        ("2008952", [PIECE], "2008952 bytes is not the size of a region"),
        (str(BROKEN_SIZE + 1), [PIECE], "is not the size of a region"),
        ("99999999999999999999999", [PIECE], "is not the size of a region"),
        ("2008953x", [PIECE], "is not the size of a region"),
        ("-1", [PIECE], "is not the size of a region"),
        ("2008953", [], "does not begin as an initialised region"),
        ("2008953", ["0:4ef72f00"], "does not begin as an initialised region"),
        ("2008953", ["4:4ef72f01"], "does not begin as an initialised region"),
        ("2008953", [PIECE, "2008952:0102"], "can't use 2008952:0102 here"),
        ("2008953", [PIECE, "99999999999999999999:01"], "can't use 99999999999999999999:01 here"),
        ("1197897", [PIECE, "1197897:01"], "can't use 1197897:01 here"),
        ("2008953", [PIECE, "8:0"], "can't use 8:0 here"),
        ("2008953", [PIECE, "8:0G"], "can't use 8:0G here"),
        ("2008953", [PIECE, ":00"], "can't use :00 here"),
        ("2008953", [PIECE, "8"], "can't use 8 here"),
        ("2008953", [PIECE, "-8:00"], "can't use -8:00 here"),
    ],
)
def test_content_that_no_region_has_is_refused(use: Use, size: str, pieces: list[str], reason: str) -> None:
    """Programs would hang on what it makes, or run without limits; the region stays as it is."""
    before = use.region.read_bytes()
    words = [str(use.program), "--region", str(use.region), "--size", size, "--claim", CLAIM]
    ended = call([*words, *(word for piece in pieces for word in ("--content", piece))], state())
    assert ended.status == 1
    assert reason in ended.message
    assert use.region.read_bytes() == before


@given(st.lists(st.tuples(st.integers(4, 2_008_900), st.binary(max_size=50)), max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_pieces_come_to_their_place(use: Use, pieces: list[tuple[int, bytes]]) -> None:
    """Overlapping ones included; between them there is nothing."""
    expected = bytearray(2_008_953)
    expected[:4] = MAGIC.to_bytes(4, "little")
    for at, data in pieces:
        expected[at : at + len(data)] = data
    words = [str(use.program), "--region", str(use.region), "--size", "2008953", "--claim", CLAIM, "--content", PIECE]
    ended = call([*words, *(word for at, data in pieces for word in ("--content", f"{at}:{data.hex()}"))], state())
    assert (ended.status, ended.message) == (0, "")
    assert use.region.read_bytes() == bytes(expected)


@as_root
def test_memory_that_the_claim_filled_is_named(use: Use, tmp_path: Path) -> None:
    """The start fails and says it; the region does not count as initialised, and with some room the next start works.

    Only the claim's containers have a part of a tmpfs: nobody should look for room on the node's disk.
    """
    script = f"""
        mount -t tmpfs -o size=256k none {tmp_path}/small || exit 9
        touch {tmp_path}/small/region
        head -c 1M /dev/zero >{tmp_path}/small/rest 2>/dev/null
        truncate -s -4K {tmp_path}/small/rest # room for its begin only
        "$@" <{tmp_path}/state && exit 3
        cmp -s -n 4 {tmp_path}/small/region {tmp_path}/pristine && exit 4
        rm {tmp_path}/small/rest
        "$@" <{tmp_path}/state && cmp {tmp_path}/small/region {tmp_path}/pristine
    """
    (tmp_path / "small").mkdir()
    (tmp_path / "state").write_bytes(state())
    (tmp_path / "pristine").write_bytes(content(use.made))
    use.region = tmp_path / "small" / "region"
    command = ["unshare", "--mount", "bash", "-c", script, "hook", *use.arguments()]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert f"{use.region} can't be written: No space left on device; other containers of the claim" in ended.stderr
    assert "disk" not in ended.stderr


def test_a_limit_of_the_runtime_is_named(use: Use) -> None:
    """One on the size of files, which the hook inherits: the kernel's signal for that doesn't end it without a word."""
    ended = use.run(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert ended.status == 1
    assert f"{use.region} can't be written: File too large" in ended.message


def no_leases() -> None:
    """From now on fcntl(F_SETLEASE) fails in this process as on a file system that has no leases, by a seccomp filter."""
    number, set_lease, error = {"x86_64": 72, "aarch64": 25}[os.uname().machine], 1024, 0x00050000 | 22
    program = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in [
            (0x20, 0, 0, 0),  # load the call's number
            (0x15, 0, 3, number),  # another call: allow
            (0x20, 0, 0, 24),  # load its second argument
            (0x15, 0, 1, set_lease),
            (0x06, 0, 0, error),
            (0x06, 0, 0, 0x7FFF0000),
        ]
    )
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program)
    pointer = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(pointer)), 0, 0) == 0


def test_a_file_system_without_leases_is_refused(use: Use) -> None:
    """Nobody could tell whether the region is in use; the message names what is needed."""
    before = use.region.read_bytes()
    ended = use.run(preexec_fn=no_leases)
    assert f"no lease on {use.region}: Invalid argument" in ended.message
    assert "ext4, xfs, btrfs, tmpfs" in ended.message
    assert use.region.read_bytes() == before


# --- whose container it is ---


@pytest.mark.parametrize("name", [CONTAINERD, CRIO])
def test_only_containers_of_its_pods_get_a_claim(use: Use, name: str) -> None:
    """Whatever runtime says it; another pod's container is refused with the pod's UID, and the region stays."""
    before = use.region.read_bytes()
    ended = use.run(OTHER, stdin=state(**{name: POD}))
    assert f"claim {CLAIM} is prepared for another pod than this one with UID {POD}" in ended.message
    assert "ResourceClaimTemplate" in ended.message
    assert use.region.read_bytes() == before
    assert use.run(OTHER, POD, stdin=state(**{name: POD})).status == 0
    assert use.is_renewed()


def test_without_a_pod_on_either_side_any_will_do(use: Use) -> None:
    """Podman names no pod, and a claim need not be bound to one."""
    assert use.run(POD, stdin=state(other="x")).status == 0
    assert use.run(POD).status == 0
    assert use.run(stdin=state(**{CONTAINERD: OTHER})).status == 0


def test_a_forged_annotation_opens_nothing(use: Use) -> None:
    """A pod may add the other runtime's annotation; one that is wrong is enough."""
    for right, wrong in ((CONTAINERD, CRIO), (CRIO, CONTAINERD)):
        assert use.run(POD, stdin=state(**{right: POD, wrong: OTHER})).status == 1


# --- calls that are wrong ---


@pytest.mark.parametrize(
    "change",
    [
        lambda words: words[:1],
        lambda words: words[:-2],
        lambda words: words[:-1],
        lambda words: [*words, "--claim", "x"],
        lambda words: [*words, "--pod"],
        lambda words: [*words, "--pod", ""],
        lambda words: [*words, "--colour", "red"],
        lambda words: [words[0], "", *words[1:]],
        lambda words: [*words, "\n\x1b[2J", "x"],
    ],
)
def test_a_wrong_call_is_refused(use: Use, change: Callable[[list[str]], list[str]]) -> None:
    """Missing, doubled, empty and unknown arguments end in one clean line; nothing is written."""
    before = use.region.read_bytes()
    assert call(change(use.arguments()), state()).status == 1
    assert use.region.read_bytes() == before


def test_a_message_goes_nowhere_but_to_stderr(use: Use) -> None:
    """Without one, what is opened next would have its number."""
    use.region.unlink()
    os.mkfifo(use.region)
    reader = os.open(use.region, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ended = subprocess.run(
            use.arguments(), check=False, timeout=30, input=state(), preexec_fn=lambda: os.closerange(1, 3)
        )
        assert ended.returncode == 1
        assert os.read(reader, 4096) == b""
    finally:
        os.close(reader)


def test_a_runtime_that_never_ends_the_state_is_given_up(use: Use, impatient_hook: Path) -> None:
    """The hook ends by itself and says so, rather than by the runtime's time-out, which says nothing."""
    use.program = impatient_hook
    reader, writer = os.pipe()
    try:
        ended = subprocess.run(use.arguments(), check=False, timeout=30, stdin=reader, stderr=subprocess.PIPE)
    finally:
        os.close(reader)
        os.close(writer)
    assert b"took too long" in ended.stderr
    assert ended.returncode == 1


def test_the_magic_is_the_drivers() -> None:
    """The program's constant and the driver's are one."""
    assert f"#define MAGIC {MAGIC}\n" in (REPOSITORY / "native/hami_region_hook.c").read_text()
