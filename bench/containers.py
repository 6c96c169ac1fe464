"""`python -m bench.containers FOLDER REGION...`: processes that stand in containers, each with one region mounted.

As a runtime makes them: a mount name space of its own, in which the host's mounts are gone. They are forks, so that a hundred
cost little memory, and end with the first one.
"""

import ctypes
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Final

_NEW_MOUNTS: Final = 0x20000
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 0x1000, 0x4000, 0x40000, 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_DIE_WITH_PARENT: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Fork them, say so, and wait for the end."""
    folder, *regions = sys.argv[1:]
    for region in regions:
        if os.fork() == 0:
            _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            _enter(Path(folder), region)
            signal.pause()
    signal.pause()


def _enter(root: Path, region: str) -> None:
    """Into a container of its own, for good."""
    _must(_libc.unshare(_NEW_MOUNTS))
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("none", str(root), "tmpfs", 0)
    (root / "old").mkdir()
    (root / "cudevshr.cache").touch()
    _mount(region, str(root / "cudevshr.cache"), None, _BIND)
    os.chdir(root)
    _must(_libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"old"))
    _must(_libc.umount2(b"old", _DETACH))


def _mount(what: str, at: str, kind: str | None, flags: int) -> None:
    _must(_libc.mount(what.encode(), at.encode(), kind.encode() if kind else None, flags, None))


def _must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
