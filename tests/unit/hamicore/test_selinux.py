"""With SELinux, what containers have mounted is theirs to use; without, nothing is labelled.

No SELinux runs here: labels are set and read as on a node that has it, since kernels without it store them; what its policy
then allows is not seen.
"""

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hami_kubeletplugin import selinux
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore import lock_dir, mounts
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.region import LAYOUTS, region
from hami_kubeletplugin.hamicore.regions import create_regions
from hami_kubeletplugin.hamicore.shipped import Shipped

ATTRIBUTE = "security.selinux"
UID = "3f2c7d0e-9a64-4c1e-8f0b-0a1b2c3d4e5f"
FILESYSTEMS = "nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"


def _possible() -> bool:
    with TemporaryDirectory() as folder:
        try:
            os.setxattr(folder, ATTRIBUTE, b"x")
        except OSError:
            return False
    return True


can_label = pytest.mark.skipif(not _possible(), reason="needs root, and a file system with labels")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with SELinux."""
    monkeypatch.setattr(selinux, "label", lambda: selinux.CONTAINERS)


def found(path: Path) -> str | None:
    """A label, as programs for SELinux read it: with a zero byte at its end."""
    if ATTRIBUTE not in os.listxattr(path, follow_symlinks=False):
        return None
    value = os.getxattr(path, ATTRIBUTE, follow_symlinks=False)
    assert value.endswith(b"\0")
    return value[:-1].decode()


@pytest.mark.parametrize(
    ("filesystems", "own", "expected"),
    [
        (FILESYSTEMS, "system_u:system_r:spc_t:s0\0", True),
        (FILESYSTEMS, "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\n", True),
        (FILESYSTEMS, "kernel\0", False),  # no policy loaded
        (FILESYSTEMS, "cri-containerd.apparmor.d (enforce)\n", False),
        ("nodev\tsysfs\n\text4\n", "system_u:system_r:spc_t:s0\0", False),
        ("", "", False),
    ],
)
def test_whether_it_is_on(filesystems: str, own: str, expected: bool) -> None:
    """By the kernel's list of file systems and by the form of a process' label, both of which a container sees."""
    assert selinux.is_on(filesystems, own) is expected


def test_this_machine_is_asked() -> None:
    """Whatever it has, the answer is one."""
    assert selinux.label() in {None, selinux.CONTAINERS}


@can_label
def test_without_it_nothing_is_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stay as they are."""
    monkeypatch.setattr(selinux, "label", lambda: None)
    selinux.relabel(tmp_path)
    assert found(tmp_path) is None


@can_label
@pytest.mark.usefixtures("on")
def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """What a link in a container's directory names is not ours to label."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    selinux.relabel(link)
    assert (found(link), found(target)) == (selinux.CONTAINERS, None)


@can_label
@pytest.mark.usefixtures("on")
def test_a_label_that_is_right_is_not_set_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that was mounted with it allows nobody to set one, and has it already."""
    selinux.relabel(tmp_path)
    monkeypatch.setattr(os, "setxattr", lambda *_, **__: pytest.fail("set again"))
    selinux.relabel(tmp_path)


@can_label
@pytest.mark.usefixtures("on")
def test_what_containers_have_on_the_disk_is_theirs(tmp_path: Path, library: Path) -> None:
    """Library, preload file, directories that libraries write regions and locks into; hooks are the node's own to run."""
    installed = HostFiles(Shipped(library), tmp_path, "disk").install()
    cache = ClaimDir(tmp_path, UID).make_cache("main")
    lock_dir.make(tmp_path / "lock", in_memory=False)
    folder = ClaimDir(tmp_path, UID)
    one = region(LAYOUTS["1.2"], {"GPU-a": Limit(1000, 10)})
    create_regions(folder, {"use-0": one})
    for path in (
        installed.library,
        installed.preload,
        cache,
        cache.parent,
        tmp_path / "cache",
        tmp_path / "lock",
        folder.region("use-0"),
    ):
        assert found(path) == selinux.CONTAINERS, path
    assert found(tmp_path) is None
    assert found(tmp_path / "lib") is None


@can_label
@pytest.mark.usefixtures("on")
def test_what_an_earlier_version_left_is_labelled(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an update the next claims find the library and a region as they need them."""
    files = HostFiles(Shipped(library), tmp_path, "disk")
    one = {"use-0": region(LAYOUTS["1.2"], {"GPU-a": Limit(1000, 10)})}
    folder = ClaimDir(tmp_path, UID)
    with monkeypatch.context() as before:
        before.setattr(selinux, "label", lambda: None)
        installed = files.install()
        create_regions(folder, one)
    assert found(installed.library) is None
    files.install()
    create_regions(folder, one)
    assert found(installed.library) == found(folder.region("use-0")) == selinux.CONTAINERS


@pytest.mark.usefixtures("on")
def test_a_label_that_cant_be_set_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preload file that it can't read is none to a container: it would start without limits. The claim says why instead."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(
        StorageError, match=r"its SELinux label is .+, by which no container could use it, .*is container-selinux"
    ):
        ClaimDir(tmp_path, UID).make_cache("main")


def test_small_file_systems_have_one_label_for_all() -> None:
    """Also for what a container makes there, which would have its categories; without SELinux kernels know no such option."""
    plain = "size=4096,nr_inodes=2,mode=700"
    assert mounts._options(size=4096, inodes=2, mode=0o700, label=None) == plain
    assert (
        mounts._options(size=4096, inodes=2, mode=0o700, label=selinux.CONTAINERS)
        == f"{plain},context=system_u:object_r:container_file_t:s0"
    )
