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
from tests.unit.hamicore.mounted import can_mount


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
