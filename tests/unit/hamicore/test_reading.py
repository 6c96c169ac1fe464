"""What a region says is read as C has written it, and whatever a container makes of the file harms nobody."""

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.hamicore.differences import differences, limits
from hami_kubeletplugin.hamicore.reading import Content, Counted, read_region, total
from hami_kubeletplugin.hamicore.region import LAYOUTS, Layout, region

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
GIVEN = {A: Limit(4000, 30), B: Limit(1000)}


def file(path: Path, layout: str = "1.2", policy: Policy | None = None, given: dict[str, Limit] = GIVEN) -> Path:
    """A region as the daemon makes it."""
    made = region(LAYOUTS[layout], given, policy or Policy())
    with path.open("wb") as out:
        out.truncate(made.size)
        for offset, data in made.parts:
            out.seek(offset)
            out.write(data)
    return path


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """What any process of the container may do."""
    with path.open("r+b") as out:
        out.seek(offset)
        out.write(data)


def read(path: Path, pids: set[int] | None = None, layout: Layout | None = None) -> Content:
    """It is there."""
    content = read_region(path, layout=layout, gpus=2, pids=pids)
    assert content is not None
    return content


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_what_processes_use_is_read_as_c_writes_it(c_program: Path, tmp_path: Path, layout: str) -> None:
    """Limits, the last kernel, and of each process that lives its memory by kind and its share of the compute; any slot."""
    uses = {0: (7, 0, 1, 2, 30, 11), 3: (8, 1, 100, 200, 300, 22), 1023: (9, 0, 10, 20, 30, 33), 5: (6, 0, 1, 1, 1, 1)}
    words = [str(word) for slot, numbers in uses.items() for word in (slot, *numbers)]
    gpus = [A, str(4000 * MIB), "30", B, str(1000 * MIB), "100"]
    arguments = [str(c_program), layout, "1", "1", *gpus, "use", "1700000000", *words]
    (tmp_path / "r").write_bytes(subprocess.run(arguments, check=True, timeout=30, stdout=subprocess.PIPE).stdout)
    content = read(tmp_path / "r", {7, 8, 9, 77}, LAYOUTS[layout])
    assert (content.layout.name, content.gpus, content.uuids) == (layout, 2, (A, B))
    assert limits(content, GIVEN) == tuple(GIVEN.values())
    assert content.last_kernel == (None if layout == "0" else 1_700_000_000)
    zero = Counted(0, 0, 0, 0, 0)
    assert dict(content.processes) == {
        7: (Counted(33, 1, 2, 30, 11), zero),
        8: (zero, Counted(600, 100, 200, 300, 22)),
        9: (Counted(60, 10, 20, 30, 33), zero),
    }
    assert total(content.processes, 0, 80) == Counted(80, 11, 22, 60, 44), "no more than there is"
    assert len(read(tmp_path / "r", None, LAYOUTS[layout]).processes) == 4, "where processes can't be seen, all count"


def test_the_layout_follows_from_size_and_version_where_it_is_not_told(tmp_path: Path) -> None:
    """But what is known of the library counts more: the version in the file is the container's to write."""
    for layout in ("0", "1.1", "1.2"):
        assert read(file(tmp_path / layout, layout)).layout.name == layout
    overwrite(tmp_path / "1.2", 8, b"\x01")
    assert read(tmp_path / "1.2").layout.name == "1.1"
    assert read(tmp_path / "1.2", layout=LAYOUTS["1.2"]).layout.name == "1.2"
    assert read(tmp_path / "1.2", layout=LAYOUTS["0"]).layout.name == "1.1", "a layout of another size can't be it"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from(list(LAYOUTS)),
    writes=st.lists(
        st.tuples(
            st.one_of(
                st.integers(0, 2_008_952),
                st.integers(0, 1850),
                st.integers(1848, 1848 + 3 * 1960),
                st.sampled_from([48, 56, 1600, 1728, 1_197_880, 2_008_896, 2_008_912]),
            ),
            st.one_of(st.binary(min_size=1, max_size=64), st.just(b"\xff" * 16), st.just(b"\x00" * 64)),
        ),
        max_size=12,
    ),
    size=st.one_of(st.none(), st.integers(0, 2_100_000)),
    pids=st.one_of(st.none(), st.sets(st.integers(1, 1 << 31), max_size=3)),
)
def test_whatever_stands_there_is_bounded(
    tmp_path: Path, layout: str, writes: list[tuple[int, bytes]], size: int | None, pids: set[int] | None
) -> None:
    """Any bytes, in a file of any length: it is no region, or what is told of it is what a GPU can have."""
    path = file(tmp_path / "r", layout)
    for offset, data in writes:
        overwrite(path, offset, data)
    if size is not None:
        os.truncate(path, size)
    try:
        content = read(path, pids)
    except StorageError:
        return
    assert -1 <= content.gpus <= 16
    assert all(text.isprintable() and text.isascii() and len(text) <= 96 for text in content.uuids)
    assert len(content.processes) <= (1024 if pids is None else len(pids))
    used = total(content.processes, 0, 40 << 30)
    assert all(0 <= number <= 40 << 30 for number in used)
    assert 0 <= used.busy <= 100
    assert all(0 <= limit.memory_mib <= 1 << 30 and 0 <= limit.cores <= 100 for limit in limits(content, GIVEN))
    assert all(len(words) < 300 and words.isprintable() for words in differences(content, GIVEN, Policy()))


def test_what_is_no_regular_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root in a container may make any device, and some do something when they are opened: a watchdog reboots the node."""
    os.mkfifo(tmp_path / "fifo")
    open_, opened = os.open, list[bool]()

    def opens(path: Any, flags: int, *more: Any, **others: Any) -> int:
        handle = open_(path, flags, *more, **others)
        if not flags & os.O_PATH:
            opened.append(stat.S_ISREG(os.fstat(handle).st_mode))
        return handle

    monkeypatch.setattr(os, "open", opens)
    with pytest.raises(StorageError, match="is no regular file"):
        read(tmp_path / "fifo")
    read(file(tmp_path / "region"))
    assert opened == [True]


def test_only_a_regular_file_is_a_region(tmp_path: Path) -> None:
    """Nothing is followed, waited for or opened for more than reading: a container may put anything in its directory."""
    file(tmp_path / "region")
    (tmp_path / "link").symlink_to("region")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    for name in ("link", "fifo", "folder", "empty"):
        with pytest.raises(StorageError, match=name):
            read(tmp_path / name)
    assert read_region(tmp_path / "none", layout=None, gpus=2, pids=None) is None


@pytest.mark.parametrize("layout", ["1.2", "1.1-seqlock"])
def test_a_slot_that_is_being_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Numbers of one process fit together; one that writes all the while is read some times, not for ever."""
    path = file(tmp_path / "r", layout)
    slot, used, sequence = 1856, {"1.2": 8, "1.1-seqlock": 16}[layout], {"1.2": 1936, "1.1-seqlock": 8}[layout]
    overwrite(path, slot, (7).to_bytes(4, "little"))
    overwrite(path, slot + used + 32, (5000).to_bytes(8, "little"))
    overwrite(path, slot + sequence, (5).to_bytes(8, "little"))
    overwrite(path, 2_008_896, (1).to_bytes(4, "little"))
    reads: list[int] = []
    finished = 0
    real = os.pread

    def pread(handle: int, length: int, offset: int) -> bytes:
        if offset >= slot and offset < 2_008_896:
            reads.append(length)
            if len(reads) == finished:
                overwrite(path, slot + used + 32, (7000).to_bytes(8, "little"))
                overwrite(path, slot + sequence, (6).to_bytes(8, "little"))
        return real(handle, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    told: dict[str, Any] = {"layout": LAYOUTS[layout], "pids": {7}}
    assert read(path, **told).processes[0][1][0].total == 5000
    assert len(reads) < 12
    reads, finished = [], 2
    assert read(path, **told).processes[0][1][0].total == 7000


def test_few_bytes_are_read_of_a_region_that_few_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots make 2 MB, of which a scrape of a hundred containers should not read all."""
    path, real = file(tmp_path / "r"), os.pread
    lengths: list[int] = []

    def pread(handle: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return real(handle, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    read(path)
    assert sum(lengths) < 8192


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (1600, (40_000 * MIB).to_bytes(8, "little"), f"memory limit of {A} is 40000 MiB instead of 4000 MiB"),
        (1600, (4000 * MIB + 1).to_bytes(8, "little"), f"memory limit of {A} is 4001 MiB instead of 4000 MiB"),
        (1608, bytes(8), f"memory limit of {B} is none instead of 1000 MiB"),
        (1600, b"\xff" * 8, f"memory limit of {A} is 1073741824 MiB instead"),
        (1728, (100).to_bytes(8, "little"), f"core limit of {A} is none instead of 30 %"),
        (1728, bytes(8), f"core limit of {A} is none instead of 30 %"),
        (1728, (60).to_bytes(8, "little"), f"core limit of {A} is 60 % instead of 30 %"),
        (1736, (50).to_bytes(8, "little"), f"core limit of {B} is 50 % instead of none"),
        (2_008_900, bytes(4), "core limits are switched off"),
        (56, (1).to_bytes(8, "little"), "it sees 1 GPUs instead of 2"),
        (56, (9).to_bytes(8, "little"), "it sees 9 GPUs instead of 2, as with some that no claim of ours gave it"),
        (56, b"\xff" * 8, "it sees an impossible number of GPUs instead of 2"),
        (64, b"GPU-c", "GPU 0 is GPU-c"),
    ],
)
def test_each_change_of_a_limit_is_told(tmp_path: Path, offset: int, data: bytes, words: str) -> None:
    """In the words of who gave it."""
    path = file(tmp_path / "r")
    overwrite(path, offset, data)
    (told,) = differences(read(path), GIVEN, Policy())
    assert words in told


@given(
    cores=st.integers(0, 250),
    memory=st.integers(1, 1 << 22),
    policy=st.sampled_from([None, "default", "force", "disable"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_pristine_region_differs_in_nothing(tmp_path: Path, cores: int, memory: int, policy: Any) -> None:
    """Whatever the limits, and though 100 percent and no limit are written alike."""
    given = {A: Limit(memory, cores)}
    content = read(file(tmp_path / "r", policy=Policy(policy), given=given))
    assert differences(content, given, Policy(policy)) == ()
    assert limits(content, given) == (Limit(memory, cores),)
