"""The image's nvidia-cdi-hook lies on the host as HAMi-core's files do: whole, by its content, and put back."""

import shutil
import stat
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.toolkit_hook import ToolkitHook


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Some program of this machine."""
    return Path(shutil.copy("/bin/true", tmp_path / "nvidia-cdi-hook"))


def test_it_is_installed_when_it_is_asked_for(shipped: Path, tmp_path: Path) -> None:
    """A node with the toolkit never asks, and gets nothing."""
    hook = ToolkitHook(shipped, tmp_path / "vgpu")
    assert not (tmp_path / "vgpu").exists()
    path = Path(hook.path())
    assert path.parent == tmp_path / "vgpu/lib"
    assert path.read_bytes() == shipped.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    before = path.stat()
    assert (hook.path(), path.stat()) == (str(path), before)
    assert (ToolkitHook(shipped, tmp_path / "vgpu").path(), path.stat()) == (str(path), before)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_it_is_put_back(shipped: Path, tmp_path: Path, damage: str) -> None:
    """As a new file: a container that starts now runs the whole old one or the whole new one."""
    hook = ToolkitHook(shipped, tmp_path / "vgpu")
    path = Path(hook.path())
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"")
    assert hook.path() == str(path)
    assert path.read_bytes() == shipped.read_bytes()


def test_an_update_leaves_the_old_one(shipped: Path, tmp_path: Path) -> None:
    """Specs of prepared claims name it."""
    old = Path(ToolkitHook(shipped, tmp_path / "vgpu").path())
    shipped.write_bytes(shipped.read_bytes() + b"newer")
    new = Path(ToolkitHook(shipped, tmp_path / "vgpu").path())
    assert new != old
    assert old.exists()


@pytest.mark.parametrize("content", [None, b"", b"#!/bin/sh"])
def test_what_can_not_run_is_refused(shipped: Path, tmp_path: Path, content: bytes | None) -> None:
    """An image without it, or with something else, says so and what to do."""
    shipped.unlink()
    if content is not None:
        shipped.write_bytes(content)
    with pytest.raises(StorageError, match="install the NVIDIA Container Toolkit on the node"):
        ToolkitHook(shipped, tmp_path / "vgpu").path()


def test_a_folder_that_can_not_be_written_is_named(shipped: Path, tmp_path: Path) -> None:
    """Here a file is in its way."""
    (tmp_path / "vgpu").write_text("")
    with pytest.raises(StorageError, match=f"can't be installed below {tmp_path}/vgpu/lib"):
        ToolkitHook(shipped, tmp_path / "vgpu").path()
