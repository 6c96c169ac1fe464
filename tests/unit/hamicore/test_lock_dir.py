"""The lock directory of old libraries can be used by the next container, whatever the one before did to it."""

import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import lock_dir, mounts
from hami_kubeletplugin.hamicore.versions import Release
from tests.unit.hamicore.hook import ATTRIBUTES
from tests.unit.hamicore.mounted import can_mount, fill, mounted, touched


def mode(path: Path) -> int:
    """Its permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_lock_that_somebody_holds_stays(tmp_path: Path) -> None:
    """Removing it would let two processes in; a mode that a container took away comes back."""
    path = tmp_path / "lock"
    lock_dir.make(path, in_memory=False)
    (path / "lock").touch()
    path.chmod(0o700)
    lock_dir.make(path, in_memory=False)
    assert os.listdir(path) == ["lock"]
    assert mode(path) == 0o1777


@pytest.mark.parametrize("age", [3600, -3600], ids=["killed an hour ago", "from the future"])
def test_a_lock_that_nobody_can_hold_any_more_goes(tmp_path: Path, age: int) -> None:
    """Libraries hold it for some seconds. Another user could not remove it."""
    path = tmp_path / "lock"
    lock_dir.make(path, in_memory=False)
    (path / "lock").touch()
    os.utime(path / "lock", (time.time() - age,) * 2)
    lock_dir.tidy(path)
    assert os.listdir(path) == []


def test_a_lock_that_is_made_during_the_look_stays(tmp_path: Path) -> None:
    """Its time is later than the one that the look began with: it is somebody's, not one from the future."""
    path = tmp_path / "lock"
    lock_dir.make(path, in_memory=False)
    (path / "lock").touch()
    os.utime(path / "lock", (time.time() + 5,) * 2)
    lock_dir.tidy(path)
    assert os.listdir(path) == ["lock"]


def test_a_lock_that_is_given_back_during_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder removes it between two steps of ours: that fails no prepare."""
    path = tmp_path / "lock"
    lock_dir.make(path, in_memory=False)
    scandir = os.scandir

    @contextmanager
    def given_back(handle: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        (path / "lock").touch()
        with scandir(handle) as entries:
            listed = list(entries)
        (path / "lock").unlink()
        yield iter(listed)

    monkeypatch.setattr(os, "scandir", given_back)
    lock_dir.make(path, in_memory=False)
    assert os.listdir(path) == []


def test_claims_that_come_together_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a boot many prepares find it missing; with a mount each, their containers would not lock the same directory."""
    made: list[Path] = []

    def is_mounted(path: Path) -> bool:
        found = path in made
        time.sleep(0.01)  # another thread's turn
        return found

    monkeypatch.setattr(mounts, "is_mounted", is_mounted)
    monkeypatch.setattr(mounts, "mount", lambda path, **_: made.append(path))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: lock_dir.make(tmp_path / "lock", in_memory=True), range(8)))
    assert made == [tmp_path / "lock"]


@pytest.mark.parametrize("name", ["system.posix_acl_access", "system.posix_acl_default", "user.note"])
def test_attributes_of_a_container_go(tmp_path: Path, name: str) -> None:
    """An access control list would keep one user out, whose containers would wait for ever, though the mode lets everybody in."""
    path = tmp_path / "lock"
    lock_dir.make(path, in_memory=False)
    os.setxattr(path, name, ATTRIBUTES[name.replace("default", "access")])
    assert os.listxattr(path) == [name]
    lock_dir.tidy(path)
    assert os.listxattr(path) == []
    assert mode(path) == 0o1777


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(["file", "setuid", "link", "tree", "fifo", "lock folder"]), max_size=6))
def test_nothing_else_stays(tmp_path_factory: pytest.TempPathFactory, left: list[str]) -> None:
    """Whatever a container puts there: it is removed, and what a link points to is not."""
    path, elsewhere = (tmp_path_factory.mktemp("x") / name for name in ("lock", "elsewhere"))
    elsewhere.write_text("not ours")
    lock_dir.make(path, in_memory=False)
    for number, kind in enumerate(left):
        target = path / f"{number}"
        if kind == "link":
            target.symlink_to(elsewhere)
        elif kind == "tree":
            (target / "a/b/c").mkdir(parents=True)
        elif kind == "fifo":
            os.mkfifo(target)
        elif kind == "lock folder":
            (path / "lock" / "inside").mkdir(parents=True, exist_ok=True)
        else:
            target.touch(0o4755 if kind == "setuid" else 0o644)
    lock_dir.make(path, in_memory=False)
    assert os.listdir(path) == []
    assert elsewhere.read_text() == "not ours"


def test_something_else_in_its_place_is_named(tmp_path: Path) -> None:
    """A link is not followed; the message says where to look."""
    (tmp_path / "lock").symlink_to(tmp_path)
    with pytest.raises(StorageError, match=rf"lock directory {tmp_path}/lock can't be put in order: .*remove it"):
        lock_dir.make(tmp_path / "lock", in_memory=False)


@can_mount
def test_in_memory_it_has_an_end(tmp_path: Path) -> None:
    """A container that writes into it and makes files in it costs the node 64 KiB; the next tidying takes them."""
    path = tmp_path / "lock"
    with mounted(path):
        lock_dir.make(path, in_memory=True)
        lock_dir.make(path, in_memory=True)  # once only
        assert fill(path / "big", 1024**2) == 64 * 1024
        made = [number for number in range(200) if touched(path / f"{number}")]
        assert 0 < len(made) < 64
        lock_dir.tidy(path)
        assert os.listdir(path) == []


@pytest.mark.parametrize(
    ("version", "locks"),
    [("2.4.0", True), ("2.8.0", True), ("2.8.2", False), ("2.10.0", False), ("3.0", False), (None, True)],
)
def test_who_needs_it(version: str | None, locks: bool) -> None:
    """Releases up to 2.8.0; and what nobody knows, since without it those wait for ever."""
    assert Release("0" * 64, version, None).locks_node is locks
