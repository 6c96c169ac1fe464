"""What the doctor says of HAMi-core's files, the hook, and the folders' file systems."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.doctor import folders, library
from hami_kubeletplugin.doctor.folders import Mount
from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.doctor.objects import levels, place, worst

CACHE = Path("/usr/local/vgpu/cache")


@pytest.fixture
def image(native: Path) -> Path:
    """What an image ships: a library that versions.json knows, and the hook."""
    return native


@pytest.fixture
def installed(tmp_path: Path, image: Path) -> Path:
    """HAMi-core's directory, as the daemon installs it from that image."""
    shipped = Shipped(image, region_hook=image / "hami-region-hook")
    HostFiles(shipped, tmp_path / "vgpu").install()
    return tmp_path / "vgpu"


def test_a_library_that_is_known(tmp_path: Path, installed: Path, image: Path) -> None:
    """Version, layout and glibc are named; a library without our patches is worth a hint."""
    here = place(tmp_path, hami_core=image, region_hook=image / "hami-region-hook")
    found = list(library.hami_core(here))
    assert levels(found) == [Level.ok, Level.hint, Level.ok]
    assert "version 2.10.0, regions laid out as 1.2, needs glibc 2." in found[0].what
    assert found[2].what == f"the 3 files in {installed} are as they were installed"


def test_a_library_that_nobody_knows(tmp_path: Path, installed: Path, image: Path) -> None:
    """Its regions can't be made: a warning that says what that means."""
    (tmp_path / "image").mkdir()
    shutil.copy(image / "libvgpu.so", tmp_path / "image")
    assert "in no versions.json" in worst(library.hami_core(place(tmp_path))).what
    assert installed.is_dir()


def test_files_that_were_changed(tmp_path: Path, installed: Path) -> None:
    """Content and mode of each are compared with what it was installed as; seen from the host, without the image."""
    here = place(tmp_path)
    (lib,) = installed.glob("lib/libvgpu*")
    lib.chmod(0o700)
    assert "has mode 0700 instead of 0755" in worst(library.hami_core(here)).what
    lib.write_bytes(b"x")
    assert f"{lib} has other content" in worst(library.hami_core(here)).what
    (installed / "ld.so.preload").write_text("/evil.so\n")
    assert "ld.so.preload does not name /usr/local/vgpu/libvgpu.so" in " ".join(e.what for e in library.hami_core(here))
    lib.unlink()
    assert any("not installed" in each.what for each in library.hami_core(here))


def test_the_hook_is_run(tmp_path: Path, installed: Path) -> None:
    """One that runs is well; one that nobody may run is an error with the command that mends it."""
    here = place(tmp_path)
    assert levels(library.region_hook(here)) == [Level.ok]
    (hook,) = installed.glob("lib/hami-region-hook*")
    hook.chmod(0o644)
    found = worst(library.region_hook(here))
    assert (found.level, found.mend.partition(";")[0]) == (Level.error, f"chmod 755 {hook}")
    hook.unlink()
    assert levels(library.region_hook(here)) == [Level.hint]


def test_only_the_newest_hook_is_run(tmp_path: Path, installed: Path) -> None:
    """Those of former versions stay, and may not know today's options."""
    old = installed / f"lib/hami-region-hook.{hashlib.sha256(b'old').hexdigest()[:16]}"
    old.write_text("#!/bin/false\n")
    os.utime(old, (1, 1))
    assert levels(library.region_hook(place(tmp_path))) == [Level.ok]


def mounts(*each: Mount) -> Iterator[Mount]:
    """Those of a node."""
    return iter([Mount("/", "ext4", frozenset({"rw"}), shared=True), *each])


def test_the_mount_of_a_folder_is_the_deepest() -> None:
    """A mount beside it that begins alike is none."""
    near = Mount("/usr/local/vgpu", "xfs", frozenset({"rw"}), shared=True)
    beside = Mount("/usr/local/vgpu/cach", "tmpfs", frozenset(), shared=False)
    assert folders.mount_of(mounts(near, beside), str(CACHE)) == near
    assert folders.mount_of(mounts(beside), str(CACHE)) == Mount("/", "ext4", frozenset({"rw"}), shared=True)


@pytest.mark.parametrize("option", ["noexec", "ro"])
def test_mount_options(option: str) -> None:
    """Noexec and read-only keep HAMi-core from working; each with its remount."""
    found = worst(folders.mount_judged(CACHE.parent, Mount("/usr", "ext4", frozenset({option}), shared=True), "auto"))
    assert found.level is Level.error
    assert found.mend == f"mount -o remount,{'exec' if option == 'noexec' else 'rw'} /usr"


def test_mounts_that_are_not_passed_on() -> None:
    """A warning, unless files are to be on the disk anyway; nosuid is a hint."""
    private = Mount("/usr", "ext4", frozenset({"rw", "nosuid"}), shared=False)
    assert levels(folders.mount_judged(CACHE.parent, private, "auto")) == [Level.hint, Level.warning, Level.ok]
    assert levels(folders.mount_judged(CACHE.parent, private, "disk")) == [Level.hint, Level.ok]


def test_leases_are_tried(tmp_path: Path, installed: Path) -> None:
    """On a file that is there, and given back at once: nothing is written."""
    before = (installed / "ld.so.preload").stat()
    found = list(folders.folders(place(tmp_path)))
    assert found[-1].what == f"the file system of {installed} has leases"
    assert (installed / "ld.so.preload").stat() == before
    assert folders.lease_judged(installed, "Invalid argument").level is Level.warning
    assert folders.lease_judged(installed, "").level is Level.hint


def test_space() -> None:
    """Little is a warning, almost nothing an error, by bytes or by inodes; some file systems count no inodes."""
    mib = 1 << 20
    sizes = [(1000 * mib, 10**6), (1000 * mib, None), (20 * mib, 10**6), (mib, 10**6), (1000 * mib, 10)]
    judged = [folders.space_judged("/x (--hami-dir)", *size).level for size in sizes]
    assert judged == [Level.ok, Level.ok, Level.warning, Level.error, Level.error]


def test_selinux() -> None:
    """Only where it is enforced, and a label is not that of what containers may write."""
    good, bad = "system_u:object_r:container_file_t:s0", "system_u:object_r:usr_t:s0"

    def judge(state: str | None, label: str | None) -> Level:
        return next(folders.selinux_judged(state, {CACHE: label}, CACHE.parent)).level

    assert [judge(None, None), judge("0", bad), judge("1", good)] == [Level.ok] * 3
    assert judge("1", bad) is Level.error
    assert "restorecon -R /usr/local/vgpu" in worst(folders.selinux_judged("1", {CACHE: None}, CACHE.parent)).mend


def test_selinux_is_seen_where_its_file_system_is_not(tmp_path: Path) -> None:
    """Containers have no /sys/fs/selinux: whether it is on is seen as the daemon sees it, and enforcing by the host's root."""
    here = place(tmp_path)
    cache = here.settings.hami_dir / "cache"
    cache.mkdir()
    (here.proc / "self/attr").mkdir(parents=True)
    (here.proc / "filesystems").write_text("nodev\tselinuxfs\n")
    (here.proc / "self/attr/current").write_text("system_u:system_r:spc_t:s0\0")
    assert "SELinux is on (whether it is enforcing can't be seen)" in worst(folders.selinux(here)).what
    enforce = tmp_path / "host/sys/fs/selinux/enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text("1")
    assert "SELinux is enforcing, and " in worst(folders.selinux(here)).what
    enforce.write_text("0")
    assert levels(folders.selinux(here)) == [Level.ok]
    (here.proc / "filesystems").write_text("nodev\tproc\n")
    assert next(iter(folders.selinux(here))).what == "SELinux is off"
