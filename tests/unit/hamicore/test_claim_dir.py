"""Cache directories serve any uid and go away whatever containers left in them."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import ClaimError, StorageError
from hami_kubeletplugin.hamicore import directories, mounts
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from tests.unit.hamicore.mounted import can_mount, fill, mounted, touched

UID = "3f2c7d0e-9a64-4c1e-8f0b-0a1b2c3d4e5f"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it changes owners, flags or mounts")


@pytest.fixture(autouse=True, params=[0o077, 0o000], ids=["umask077", "umask000"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever umask the daemon was started with."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_any_uid_can_use_its_cache_where_it_is_mounted(tmp_path: Path) -> None:
    """0777 for the directory, 0700 for the two above, whatever the umask."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    assert path == ClaimDir(tmp_path, UID).cache("main") == tmp_path / "cache" / UID / "main"
    modes = [level.stat().st_mode & 0o7777 for level in (path, path.parent, path.parent.parent)]
    assert modes == [0o777, 0o700, 0o700]


def test_making_it_again_keeps_what_is_in_it(tmp_path: Path) -> None:
    """A container may be running on it: content stays, a mode that the container took away comes back."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "vgpu.cache").write_text("region")
    path.chmod(0o500)
    ClaimDir(tmp_path, UID).make_cache("main")
    assert (path / "vgpu.cache").read_text() == "region"
    assert path.stat().st_mode & 0o7777 == 0o777


def test_something_else_in_its_place_is_named(tmp_path: Path) -> None:
    """A link under the name of a cache directory is never followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    ClaimDir(tmp_path, UID).make_cache("other")
    ClaimDir(tmp_path, UID).cache("main").symlink_to(elsewhere)
    with pytest.raises(StorageError, match=f"{UID}/main can't be made"):
        ClaimDir(tmp_path, UID).make_cache("main")
    assert elsewhere.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "../x", "a\n", "a" * 64, "a.b"])
def test_a_uid_that_could_lead_elsewhere_is_refused(tmp_path: Path, uid: str) -> None:
    """No path is built from it, for making or for removing."""
    (tmp_path / "cache" / "x").mkdir(parents=True)
    with pytest.raises(ClaimError, match="is not a UID"):
        ClaimDir(tmp_path, uid)
    assert (tmp_path / "cache" / "x").exists()


@pytest.mark.parametrize("use", ["", ".", "..", "a/b", ".hidden", "a b", "x" * 128])
def test_a_use_that_could_lead_elsewhere_is_refused(tmp_path: Path, use: str) -> None:
    """The last part is one plain file name."""
    with pytest.raises(ClaimError, match="can't name a cache directory"):
        ClaimDir(tmp_path, UID).make_cache(use)


def test_removing_takes_one_claim_only(tmp_path: Path) -> None:
    """All uses of the claim go, those of others stay; doing it again is fine."""
    gone = [ClaimDir(tmp_path, UID).make_cache(use) for use in ("main", "side")]
    stays = ClaimDir(tmp_path, UID[:-1] + "0").make_cache("main")
    ClaimDir(tmp_path, UID).remove()
    ClaimDir(tmp_path, UID).remove()
    assert not any(path.parent.exists() for path in gone)
    assert stays.exists()


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    """What a container points to on the host survives, for links to files and to directories at any depth."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "data").write_text("precious")
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "a").symlink_to(victim)
    (path / "b").symlink_to(victim / "data")
    (path / "sub").mkdir()
    (path / "sub" / "c").symlink_to(victim)
    os.mkfifo(path / "fifo")
    ClaimDir(tmp_path, UID).remove()
    assert not path.parent.exists()
    assert (victim / "data").read_text() == "precious"


def test_a_tree_deeper_than_any_stack_goes(tmp_path: Path) -> None:
    """3,000 levels: beyond PATH_MAX, Python's recursion limit and the usual limit of descriptors."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    here = os.getcwd()
    try:
        os.chdir(path)
        for _ in range(3_000):
            os.mkdir("d")
            os.close(os.open("f", os.O_CREAT))
            os.chdir("d")
    finally:
        os.chdir(here)
    ClaimDir(tmp_path, UID).remove()
    assert not path.parent.exists()


def test_a_great_many_files_go_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call takes so many and says that there are more; only some names are held at a time, in a tree as well."""
    monkeypatch.setattr(directories, "STEP", 10)
    monkeypatch.setattr(directories, "MOST", 100)
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "sub" / "deep").mkdir(parents=True)
    for number in range(120):
        (path / f"{number}").touch()
        (path / "sub" / f"{number}").touch()
        (path / "sub" / "deep" / f"{number}").touch()
    monkeypatch.delattr(os, "listdir")  # it would hold all names of a directory
    calls = 0
    while path.parent.exists():
        calls += 1
        assert calls < 10
        with suppress(StorageError):
            ClaimDir(tmp_path, UID).remove()
    assert calls > 3


def test_a_live_writer_does_not_hold_a_call_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that makes files as fast as they are removed: the call ends, and says that it is tried again."""
    monkeypatch.setattr(directories, "MOST", 100)
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "first").touch()
    unlink, names = os.unlink, itertools.count()

    def and_two_more(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        for _ in range(2):
            (path / f"more-{next(names)}").touch()

    monkeypatch.setattr(os, "unlink", and_two_more)
    with pytest.raises(StorageError, match=r"more than .* files; they are removed in steps, so it is tried again"):
        ClaimDir(tmp_path, UID).remove()
    monkeypatch.setattr(os, "unlink", unlink)
    while path.parent.exists():
        with suppress(StorageError):
            ClaimDir(tmp_path, UID).remove()


@can_mount
def test_in_memory_a_claim_has_an_end(tmp_path: Path) -> None:
    """What a container writes into a file or makes of files is bounded; nothing there can be a program."""
    folder = ClaimDir(tmp_path, UID, in_memory=True)
    with mounted(folder.path):
        path = folder.make_cache("main")
        assert 0 < fill(path / "big", 1024**3) <= 8 * 1024**2
        (path / "big").unlink()
        (path / "program").write_bytes(Path("/bin/true").read_bytes())
        (path / "program").chmod(0o4755)
        with pytest.raises(PermissionError):
            subprocess.run([path / "program"], check=False, timeout=10)
        assert sum(touched(path / f"{number}") for number in range(2_000)) < 1024


@can_mount
def test_in_memory_all_of_a_claim_goes_at_once(tmp_path: Path) -> None:
    """Whoever still has a file open keeps that; no other claim is touched; nothing stays mounted."""
    folder, other = ClaimDir(tmp_path, UID, in_memory=True), ClaimDir(tmp_path, UID[:-1] + "0", in_memory=True)
    with mounted(folder.path, other.path):
        stays = other.make_cache("main")
        path = folder.make_cache("main")
        for number in range(500):
            (path / f"{number}").touch()
        with (path / "0").open("w") as held:
            folder.remove()
            held.write("still there")
        assert os.listdir(tmp_path / "cache") == [other.uid]
        assert stays.exists()


@can_mount
def test_what_is_on_the_disk_already_stays_there(tmp_path: Path) -> None:
    """A container of before the update may be using it. It goes with its claim."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "vgpu.cache").write_text("region")
    folder = ClaimDir(tmp_path, UID, in_memory=True)
    with mounted(folder.path):
        folder.make_cache("main")
        folder.make_cache("side")
        assert (path / "vgpu.cache").read_text() == "region"
        folder.remove()
        assert not folder.path.exists()


@can_mount
def test_a_daemon_that_died_or_a_node_that_rebooted_is_no_matter(tmp_path: Path) -> None:
    """An empty directory that waits for its tmpfs gets it, and one that has it gets no second one."""
    folder = ClaimDir(tmp_path, UID, in_memory=True)
    folder.path.mkdir(parents=True)
    with mounted(folder.path):
        for _ in range(2):
            folder.make()
            assert mounts.is_mounted(folder.path)
        subprocess.run(["umount", folder.path], check=True, timeout=10)
        assert not mounts.is_mounted(folder.path)


@as_root
def test_files_of_other_users_go(tmp_path: Path) -> None:
    """Owner and mode of what a container left don't matter."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "closed").mkdir(mode=0o000)
    (path / "closed" / "region").write_text("x")
    os.chown(path / "closed", 65534, 65534)
    ClaimDir(tmp_path, UID).remove()
    assert not path.parent.exists()


@as_root
def test_what_resists_is_named_and_the_rest_goes(tmp_path: Path) -> None:
    """A mount in the tree can't be removed: the error says which and how to find it; the next try succeeds."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    (path / "busy").mkdir()
    for name in ("before", "zafter"):
        (path / name).write_text("x")
    other = ClaimDir(tmp_path, UID).make_cache("other")
    subprocess.run(["mount", "-t", "tmpfs", "none", path / "busy"], check=True, timeout=10)
    try:
        with pytest.raises(StorageError, match=f"{UID}/main .*busy.*findmnt"):
            ClaimDir(tmp_path, UID).remove()
        assert [entry.name for entry in path.iterdir()] == ["busy"]
        assert not other.exists()
    finally:
        subprocess.run(["umount", path / "busy"], check=True, timeout=10)
    ClaimDir(tmp_path, UID).remove()
    assert not path.parent.exists()


def test_an_immutable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPERM for one file leaves exactly that file, and it is in the message."""
    path = ClaimDir(tmp_path, UID).make_cache("main")
    for name in ("a", "flagged", "z"):
        (path / name).write_text("x")
    unlink = os.unlink

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        if name == "flagged":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageError, match=r"Operation not permitted: flagged.*lsattr"):
        ClaimDir(tmp_path, UID).remove()
    assert [entry.name for entry in path.iterdir()] == ["flagged"]


@can_mount
def test_a_second_view_of_the_mount_is_named(tmp_path: Path) -> None:
    """What the daemon has of the host's root can hold a claim's mount; the message says how to mount that volume."""
    root, view = tmp_path / "root", tmp_path / "view"
    root.mkdir()
    view.mkdir()
    folder = ClaimDir(root, UID, in_memory=True)
    folder.make()
    subprocess.run(["mount", "--rbind", root, view], check=True, timeout=10)
    subprocess.run(["mount", "--make-rprivate", view], check=True, timeout=10)
    try:
        with pytest.raises(StorageError, match=f"{folder.path} can't be removed: .*HostToContainer"):
            folder.remove()
        assert not mounts.is_mounted(folder.path)
    finally:
        subprocess.run(["umount", "--recursive", view], check=True, timeout=10)
    folder.remove()
    assert not folder.path.exists()
