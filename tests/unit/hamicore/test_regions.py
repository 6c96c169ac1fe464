"""Region files are there whole, serve any uid, and a region in use is left alone."""

import os
import stat
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.region import LAYOUTS, Region, region
from hami_kubeletplugin.hamicore.regions import create_regions, remove_templates

UID = "8bbc3a62-4ae4-4f66-bd43-b1a6f5a4c1d2"
ONE = region(LAYOUTS["1.2"], {"GPU-a": Limit(1000, 10)})
OTHER = region(LAYOUTS["1.2"], {"GPU-a": Limit(2000, 10)})


def holds(path: Path, made: Region) -> bool:
    """Whether a file is this region, byte for byte."""
    expected = bytearray(made.size)
    for offset, part in made.parts:
        expected[offset : offset + len(part)] = part
    return path.read_bytes() == expected


def create(tmp_path: Path, made: Region = ONE) -> tuple[Path, Path]:
    """Target and template of one use."""
    folder = ClaimDir(tmp_path, UID)
    create_regions(folder, {"use-0": made})
    return folder.region("use-0"), folder.template("use-0", made.digest)


def test_both_files_hold_the_region(tmp_path: Path) -> None:
    """The target can be written by any uid, the template by root alone; other containers' files can't be found."""
    before = os.umask(0o077)
    try:
        target, template = create(tmp_path)
    finally:
        os.umask(before)
    assert (target.name, template.name) == ("use-0.region", f"use-0.{ONE.digest}.template")
    assert holds(target, ONE)
    assert holds(template, ONE)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (target, template, target.parent)] == [0o666, 0o644, 0o711]
    assert all(path.stat().st_blocks * 512 <= 32768 for path in (target, template))  # sparse: 2 MB are not written
    assert sorted(os.listdir(target.parent)) == sorted([target.name, template.name])


def test_a_region_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """Also when its content is to change: only a start's hook renews it, from the new template."""
    target, template = create(tmp_path)
    target.write_bytes(b"in use")
    inode = target.stat().st_ino
    new_target, new_template = create(tmp_path, OTHER)
    assert (new_target.read_bytes(), new_target.stat().st_ino) == (b"in use", inode)
    assert holds(new_template, OTHER)
    assert holds(template, ONE), "a container may be about to start with it"


def test_a_repeat_writes_nothing(tmp_path: Path) -> None:
    """Inodes and times stay."""
    target, template = create(tmp_path)
    before = target.stat(), template.stat()
    create(tmp_path)
    assert [(s.st_ino, s.st_mtime_ns) for s in (target.stat(), template.stat())] == [
        (s.st_ino, s.st_mtime_ns) for s in before
    ]


@pytest.mark.parametrize("damage", ["missing", "cut", "zeros", "other", "mode", "link", "empty directory"])
def test_a_damaged_template_is_made_anew(tmp_path: Path, damage: str) -> None:
    """As a power cut or hands may leave it: by a new file, never by writing to the old one."""
    target, template = create(tmp_path)
    if damage == "cut":
        os.truncate(template, 100)
    elif damage == "zeros":
        template.write_bytes(bytes(ONE.size))
    elif damage == "other":
        template.write_bytes(ClaimDir(tmp_path, UID).region("use-0").read_bytes()[:-40] + b"\xff" * 40)
    elif damage == "mode":
        template.chmod(0o666)
    else:
        template.unlink()
    if damage == "link":
        template.symlink_to(target)
    elif damage == "empty directory":
        template.mkdir()
    create(tmp_path)
    assert not template.is_symlink()
    assert holds(template, ONE)
    assert stat.S_IMODE(template.stat().st_mode) == 0o644
    assert holds(target, ONE)


@pytest.mark.parametrize("damage", ["missing", "mode", "link", "empty directory", "fifo"])
def test_a_target_that_no_container_can_use_is_made_good(tmp_path: Path, damage: str) -> None:
    """The mode on the same inode, since a container may have it; what is no file is replaced and never followed."""
    target, _ = create(tmp_path)
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


def test_something_in_the_way_is_named(tmp_path: Path) -> None:
    """A directory with content under our name is not ours to delete; nothing half-written stays."""
    target, _ = create(tmp_path)
    target.unlink()
    (target / "mine").mkdir(parents=True)
    with pytest.raises(StorageError, match=rf"{target}: can't be written: .*not empty"):
        create(tmp_path)
    assert not [name for name in os.listdir(target.parent) if name.endswith(".tmp")]


def test_old_templates_go_and_nothing_else(tmp_path: Path) -> None:
    """What the new spec names stays, and so do regions, of other uses too."""
    target, old = create(tmp_path)
    _, new = create(tmp_path, OTHER)
    (target.parent / "use-1.region").write_text("of another use")
    (target.parent / "use-0.region.tmp").write_text("half")
    remove_templates(ClaimDir(tmp_path, UID), [new])
    assert sorted(os.listdir(target.parent)) == sorted([target.name, new.name, "use-1.region"])
    assert not old.exists()
    remove_templates(ClaimDir(tmp_path, "another-claim"), [])
