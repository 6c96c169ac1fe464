"""HAMi-core's files reach the host whole, stay as installed, and come back when someone touches them."""

import errno
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin import files as host_files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.region import LAYOUTS
from hami_kubeletplugin.hamicore.shipped import Shipped


@pytest.fixture
def hami_dir(tmp_path: Path) -> Path:
    """Not there yet, as on a fresh node."""
    return tmp_path / "node" / "vgpu"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A strict umask, as hardened nodes have it."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def leftovers(hami_dir: Path) -> list[Path]:
    """Temporary files below the directory."""
    return [path for path in hami_dir.rglob("*") if "tmp" in path.name]


def test_a_fresh_node_gets_everything(library: Path, hami_dir: Path) -> None:
    """Library named by its content and loadable by any uid, preload file with the container's path."""
    installed = HostFiles(Shipped(library), hami_dir).install()
    digest = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
    assert installed.library == hami_dir / "lib" / f"libvgpu.so.{digest}"
    assert installed.library.read_bytes() == library.read_bytes()
    assert installed.preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert [mode(path) for path in (installed.library, installed.preload)] == [0o755, 0o644]
    assert mode(installed.library.parent) == 0o755
    assert leftovers(hami_dir) == []


def test_a_second_start_touches_nothing(library: Path, hami_dir: Path) -> None:
    """The file that containers have mapped keeps its inode, times and content."""
    first = HostFiles(Shipped(library), hami_dir).install()
    before = first.library.stat(), first.preload.stat()
    assert HostFiles(Shipped(library), hami_dir).install() == first
    assert (first.library.stat(), first.preload.stat()) == before


def test_a_new_version_leaves_the_old_one(library: Path, hami_dir: Path) -> None:
    """An update installs beside the library that running containers use."""
    old = HostFiles(Shipped(library), hami_dir).install().library
    content = old.read_bytes()
    library.write_bytes(content + b"\0newer")
    new = HostFiles(Shipped(library), hami_dir).install().library
    assert new != old
    assert old.read_bytes() == content


@pytest.mark.parametrize("damage", ["missing", "cut", "same size", "mode", "symlink", "empty directory"])
def test_a_touched_library_is_replaced_by_a_new_inode(library: Path, hami_dir: Path, damage: str) -> None:
    """Prepare notices and puts the image's library back; who has the damaged file open keeps seeing that one."""
    files = HostFiles(Shipped(library), hami_dir)
    path = files.install().library
    good = path.read_bytes()
    with path.open("rb") as mapped:
        if damage == "cut":
            os.truncate(path, 100)
        elif damage == "same size":
            path.write_bytes(b"\0" * len(good))
        elif damage == "mode":
            path.chmod(0o700)
        else:
            path.unlink()
        if damage == "symlink":
            path.symlink_to("/etc/passwd")
        elif damage == "empty directory":
            path.mkdir()
        seen = mapped.read()
        assert files.check().library == path
        assert os.fstat(mapped.fileno()).st_ino != path.stat().st_ino
        mapped.seek(0)
        assert mapped.read() == seen
    assert (path.read_bytes(), mode(path)) == (good, 0o755)
    assert not path.is_symlink()


@pytest.mark.parametrize("damage", ["missing", "content", "mode", "directory"])
def test_a_touched_preload_file_is_put_back(library: Path, hami_dir: Path, damage: str) -> None:
    """An emptied preload file would mean no limits: it never lasts past the next prepare."""
    files = HostFiles(Shipped(library), hami_dir)
    path = files.install().preload
    if damage == "content":
        path.write_text("")
    elif damage == "mode":
        path.chmod(0o600)
    else:
        path.unlink()
    if damage == "directory":
        path.mkdir()
    assert files.check().preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert mode(path) == 0o644


def test_what_containers_leave_is_roots_alone(library: Path, hami_dir: Path) -> None:
    """No other user of the node reaches it; folders of an earlier version, which let everybody through, are mended."""
    (hami_dir / "cache").mkdir(parents=True, mode=0o711)
    hami_dir.chmod(0o755)
    HostFiles(Shipped(library), hami_dir).install()
    assert [mode(path) for path in (hami_dir, hami_dir / "cache")] == [0o700, 0o700]


def test_a_check_of_untouched_files_is_cheap(library: Path, hami_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prepare pays a look at each file, and never reads one."""
    files = HostFiles(Shipped(library), hami_dir)
    installed = files.install()
    library.unlink()  # reading it would fail
    looks: list[Path] = []
    seen: list[str] = []
    fingerprint = host_files.fingerprint

    def counted(path: Path) -> host_files.Fingerprint | None:
        looks.append(path)
        return fingerprint(path)

    monkeypatch.setattr(host_files, "fingerprint", counted)
    for name in ("read_bytes", "read_text", "open"):
        monkeypatch.setattr(Path, name, lambda path, *_: seen.append(str(path)))
    for _ in range(3):
        files.check()
    assert looks == [installed.library, installed.preload] * 3
    assert not seen


@pytest.mark.parametrize(("source", "reason"), [(None, "No such file"), (b"", "no ELF"), (b"half", "cut short")])
def test_a_bad_image_refuses_until_it_is_good(library: Path, hami_dir: Path, source: bytes | None, reason: str) -> None:
    """Install and every prepare say what is wrong with the image's library; once it is right, prepare works by itself."""
    good = library.read_bytes()
    if source is None:
        library.unlink()
    else:
        library.write_bytes(good[: len(good) // 2] if source else source)
    files = HostFiles(Shipped(library), hami_dir)
    for call in (files.install, files.check):
        with pytest.raises(StorageError, match=f"{library}.*{reason}.*--hami-core"):
            call()
    library.write_bytes(good)
    assert files.check().library.read_bytes() == good


def test_a_lost_library_with_a_bad_image_is_refused(library: Path, hami_dir: Path) -> None:
    """With nothing to repair it from, prepare refuses instead of starting a container without limits."""
    files = HostFiles(Shipped(library), hami_dir)
    files.install().library.unlink()
    library.unlink()
    with pytest.raises(StorageError, match="No such file"):
        files.check()


def test_a_full_disk_is_named_and_leaves_nothing(
    library: Path, hami_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing write is a StorageError with the reason; no temporary or half file stays, and the next prepare works."""
    files = HostFiles(Shipped(library), hami_dir)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"No space left.*free some space"):
            files.install()
    assert [path for path in hami_dir.rglob("*") if path.is_file()] == []
    assert files.check().library.exists()


def test_something_in_the_way_is_named(library: Path, hami_dir: Path) -> None:
    """A directory with content under our name is not ours to delete: the error names it."""
    (hami_dir / "ld.so.preload" / "mine").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"not empty.*ld\.so\.preload"):
        HostFiles(Shipped(library), hami_dir).install()


def test_leftovers_of_a_killed_daemon_go(library: Path, hami_dir: Path) -> None:
    """Temporary files of an installation that was killed don't pile up."""
    files = HostFiles(Shipped(library), hami_dir)
    folder = files.install().library.parent
    (folder / "abc.tmp").write_text("half")
    (hami_dir / "abc.tmp").write_text("half")
    files.install()
    assert leftovers(hami_dir) == []


def test_many_threads_may_check_at_once(library: Path, hami_dir: Path) -> None:
    """Prepares run side by side; all get a whole library while it is being put back."""
    files = HostFiles(Shipped(library), hami_dir)
    path = files.install().library
    good, bad = path.read_bytes(), []
    barrier = threading.Barrier(8)

    def prepare() -> None:
        barrier.wait(10)
        if files.check().library.read_bytes() != good:
            bad.append(1)

    for _ in range(20):
        path.unlink()
        threads = [threading.Thread(target=prepare) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert not bad


def known(library: Path, version: str = "2.10.0") -> Path:
    """Have a versions.json that knows the library."""
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    library.with_name("versions.json").write_text(json.dumps([{"sha256": digest, "version": version}]))
    return library


def test_a_known_library_comes_with_the_hook_that_renews_regions(library: Path, hook: Path, hami_dir: Path) -> None:
    """Named by its content and executable; the layout is the release's."""
    installed = HostFiles(Shipped(known(library), region_hook=hook), hami_dir).install()
    assert installed.version == "2.10.0"
    assert installed.renewal is not None
    assert installed.renewal.layout is LAYOUTS["1.2"]
    digest = hashlib.sha256(hook.read_bytes()).hexdigest()[:16]
    assert installed.renewal.hook == hami_dir / "lib" / f"hami-region-hook.{digest}"
    assert installed.renewal.hook.read_bytes() == hook.read_bytes()
    assert mode(installed.renewal.hook) == 0o755


def test_a_touched_hook_is_put_back_and_an_old_one_stays(library: Path, hook: Path, hami_dir: Path) -> None:
    """Without it no container would start; CDI specs that were made with a former one still name that."""
    files = HostFiles(Shipped(known(library), region_hook=hook), hami_dir)
    first = files.install().renewal
    assert first
    harms: list[Callable[[], None]] = [
        first.hook.unlink,
        lambda: os.truncate(first.hook, 10),
        lambda: first.hook.chmod(0o644),
    ]
    for harm in harms:
        harm()
        assert files.check().renewal == first
        assert (first.hook.read_bytes(), mode(first.hook)) == (hook.read_bytes(), 0o755)
    hook.write_bytes(hook.read_bytes() + b"newer")
    second = HostFiles(Shipped(library, region_hook=hook), hami_dir).install().renewal
    assert second
    assert second.hook != first.hook
    assert first.hook.exists()


@pytest.mark.parametrize(
    ("version", "ship_hook", "reason"),
    [
        (None, True, "has no entry in versions.json (SHA-256 "),
        ("9.0.0", True, "nobody knows how this build of HAMi-core 9.0.0 lays regions out"),
        ("2.10.0", False, "can't be read: No such file or directory; check --region-hook"),
    ],
)
def test_without_regions_the_reason_is_said_once(
    library: Path, hook: Path, hami_dir: Path, version: str | None, ship_hook: bool, reason: str
) -> None:
    """The node works, with limits in variables only; a later repair doesn't say it again."""
    if version:
        known(library, version)
    if not ship_hook:
        hook.unlink()
    files = HostFiles(Shipped(library, region_hook=hook), hami_dir)
    with capture_logs() as log:
        assert files.install().renewal is None
        (hami_dir / "ld.so.preload").unlink()
        installed = files.check()
    assert (installed.version, installed.renewal) == (version, None)
    said = [entry["reason"] for entry in log if "limits are in variables only" in entry["event"]]
    assert len(said) == 1
    assert reason in said[0]
    assert not list((hami_dir / "lib").glob("hami-region-hook*"))


def test_several_versions_lie_side_by_side(library: Path, hook: Path, hami_dir: Path) -> None:
    """Another version is another file: whoever runs with the former keeps it."""
    other = library.with_name("libvgpu.so.new")
    other.write_bytes(library.read_bytes() + b"newer")
    entries = [
        {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "version": version}
        for path, version in ((library, "2.8.0"), (other, "2.10.0"))
    ]
    library.with_name("versions.json").write_text(json.dumps(entries))
    found = [
        HostFiles(Shipped(library.parent, version, region_hook=hook), hami_dir).install()
        for version in (None, "2.8.0", None)
    ]
    assert [installed.version for installed in found] == ["2.10.0", "2.8.0", "2.10.0"]
    assert [installed.renewal.layout.name for installed in found if installed.renewal] == ["1.2", "1.1", "1.2"]
    assert len(list((hami_dir / "lib").glob("libvgpu.so.*"))) == 2
    assert found[0] == found[2]
