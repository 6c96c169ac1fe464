"""Whether small file systems can be mounted for containers is tried out, and a reason says what to change."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.hamicore.mounted import can_mount, mounted


def mount_tmpfs(folder: Path, options: str) -> None:
    """A small file system with these options."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", folder], check=True, timeout=10)


@can_mount
def test_where_no_program_may_lie(tmp_path: Path) -> None:
    """On a file system that is mounted noexec nothing is installed and no claim prepared; remounted it is, without a restart."""
    host = HostFiles(Shipped(tmp_path / "missing"), tmp_path / "vgpu" / "deep")
    (tmp_path / "vgpu").mkdir()
    with mounted(tmp_path / "vgpu"):
        mount_tmpfs(tmp_path / "vgpu", "noexec")
        with pytest.raises(StorageError, match=r"mounted noexec.*remount,exec.*--hami-dir"):
            host.check()
        subprocess.run(["mount", "-o", "remount,exec", tmp_path / "vgpu"], check=True, timeout=10)
        host.check_mount()


@can_mount
@pytest.mark.parametrize("name", ["plain", "with space", "a\\040b"])
def test_a_shared_mount_reaches_the_runtime(tmp_path: Path, name: str) -> None:
    """As systemd and `mountPropagation: Bidirectional` make them; a private one does not. The try leaves nothing."""
    folder = tmp_path / name
    folder.mkdir()
    subprocess.run(["mount", "--bind", folder, folder], check=True, timeout=10)
    try:
        subprocess.run(["mount", "--make-private", folder], check=True, timeout=10)
        assert "Bidirectional" in (mounts.lacking(folder) or "")
        subprocess.run(["mount", "--make-shared", folder], check=True, timeout=10)
        assert mounts.lacking(folder) is None
        assert os.listdir(folder) == []
    finally:
        subprocess.run(["umount", folder], check=True, timeout=10)


def test_a_daemon_that_may_not_mount_says_so(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it goes on with the disk, and says what that means; if memory is demanded, no claim is prepared."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(mounts, "mount", refuse)
    assert "CAP_SYS_ADMIN" in (mounts.lacking(tmp_path) or "")
    shipped = Shipped(library)
    assert not HostFiles(shipped, tmp_path / "hami", "auto").install().in_memory
    with pytest.raises(StorageError, match=r"--claim-files=memory: nothing can be mounted below .*CAP_SYS_ADMIN"):
        HostFiles(shipped, tmp_path / "hami", "memory").install()
