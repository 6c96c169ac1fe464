"""Region files are there whole, serve any uid, and a region in use is left alone."""

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.region import LAYOUTS, Layout, Region, region
from hami_kubeletplugin.hamicore.regions import create_regions
from tests.unit.hamicore.hook import ATTRIBUTES

UID = "8bbc3a62-4ae4-4f66-bd43-b1a6f5a4c1d2"
ONE = region(LAYOUTS["1.2"], {"GPU-a": Limit(1000, 10)})
OTHER = region(LAYOUTS["1.2"], {"GPU-a": Limit(2000, 10)})


def holds(path: Path, made: Region) -> bool:
    """Whether a file is this region, byte for byte."""
    expected = bytearray(made.size)
    for offset, part in made.parts:
        expected[offset : offset + len(part)] = part
    return path.read_bytes() == expected


def create(tmp_path: Path, made: Region = ONE) -> Path:
    """The region of one use."""
    folder = ClaimDir(tmp_path, UID)
    create_regions(folder, {"use-0": made})
    return folder.region("use-0")


def test_the_file_holds_the_region(tmp_path: Path) -> None:
    """It can be written by any uid that has it mounted, it has all its blocks, and no other user of the node finds it."""
    before = os.umask(0o077)
    try:
        target = create(tmp_path)
    finally:
        os.umask(before)
    assert target.name == "use-0.region"
    assert holds(target, ONE)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (target, target.parent)] == [0o666, 0o700]
    assert target.stat().st_blocks * 512 >= ONE.size  # a full disk must not meet a process that uses its region
    assert os.listdir(target.parent) == [target.name]


def test_a_region_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """Also when its content is to change: only a start's hook renews it."""
    target = create(tmp_path)
    target.write_bytes(b"in use")
    inode = target.stat().st_ino
    assert create(tmp_path, OTHER) == target
    assert (target.read_bytes(), target.stat().st_ino) == (b"in use", inode)


def test_a_full_disk_is_said_before_a_container_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a region with holes a process would learn it by SIGBUS. Nothing half-made stays."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"use-0\.region: can't be written: No space left.*free"):
        create(tmp_path)
    assert os.listdir(tmp_path / "cache" / UID) == []


def test_a_repeat_writes_nothing(tmp_path: Path) -> None:
    """Inode and times stay."""
    before = create(tmp_path).stat()
    after = create(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@given(
    st.sampled_from(list(LAYOUTS.values())),
    st.dictionaries(
        st.text("abc-123", min_size=1, max_size=60),
        st.builds(Limit, st.integers(1, 2**40), st.integers(0, 100)),
        min_size=1,
        max_size=16,
    ),
)
def test_pieces_are_the_region_without_its_zeros(layout: Layout, limits: dict[str, Limit]) -> None:
    """What the hook gets on its command line makes the same bytes, and is short."""
    made = region(layout, limits)
    whole, pieces = bytearray(made.size), bytearray(made.size)
    for target, parts in ((whole, made.parts), (pieces, made.pieces)):
        for offset, part in parts:
            target[offset : offset + len(part)] = part
    assert pieces == whole
    assert sum(len(part) for _, part in made.pieces) < 400 + len(limits) * 80


@pytest.mark.parametrize("damage", ["missing", "mode", "link", "empty directory", "fifo"])
def test_a_target_that_no_container_can_use_is_made_good(tmp_path: Path, damage: str) -> None:
    """The mode on the same inode, since a container may have it; what is no file is replaced and never followed."""
    target = create(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    inode = target.stat().st_ino
    if damage == "mode":
        target.chmod(0o600)
    else:
        target.unlink()
    if damage == "link":
        target.symlink_to(elsewhere)
    elif damage == "empty directory":
        target.mkdir()
    elif damage == "fifo":
        os.mkfifo(target)
    create(tmp_path)
    assert target.lstat().st_mode == stat.S_IFREG | 0o666
    assert holds(target, ONE)
    assert (target.stat().st_ino == inode) >= (damage == "mode")
    assert elsewhere.read_text() == "not ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it sets capabilities of a file")
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_container_go(tmp_path: Path, name: str) -> None:
    """As at each start: a list keeps users out whatever the mode says. The content, which a container may be using, stays."""
    target = create(tmp_path)
    target.write_bytes(b"in use")
    os.setxattr(target, name, ATTRIBUTES[name])
    create(tmp_path)
    assert os.listxattr(target) == []
    assert (target.read_bytes(), target.lstat().st_mode) == (b"in use", stat.S_IFREG | 0o666)


def test_something_in_the_way_is_named(tmp_path: Path) -> None:
    """A directory with content under our name is not ours to delete; nothing half-written stays."""
    target = create(tmp_path)
    target.unlink()
    (target / "mine").mkdir(parents=True)
    with pytest.raises(StorageError, match=rf"{target}: can't be used: .*not empty; .*remove that"):
        create(tmp_path)
    assert not [name for name in os.listdir(target.parent) if name.endswith(".tmp")]
