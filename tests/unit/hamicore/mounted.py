"""Tests that mount file systems leave none."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hami_kubeletplugin.hamicore import mounts


def _possible() -> bool:
    if os.geteuid() != 0:
        return False
    with TemporaryDirectory() as folder, mounted(Path(folder) / "x"):
        (Path(folder) / "x").mkdir()
        try:
            mounts.mount(Path(folder) / "x", size=4096, inodes=2, mode=0o700)
        except PermissionError:
            return False
    return True


@contextmanager
def mounted(*paths: Path) -> Iterator[None]:
    """What is mounted there meanwhile is taken away."""
    try:
        yield
    finally:
        for path in paths:
            mounts.unmount(path)


def touched(path: Path) -> bool:
    """Make an empty file, if there is room; says whether there was."""
    try:
        path.touch()
    except OSError:
        return False
    return True


def fill(path: Path, size: int) -> int:
    """Write a file of that many bytes, as far as there is room; returns how many were written."""
    done = 0
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while done < size:
            done += file.write(b"x" * min(size - done, 65536))
    return done


can_mount = pytest.mark.skipif(not _possible(), reason="needs root with CAP_SYS_ADMIN: it mounts file systems")
