"""A file system that never answers, as one of a dead NFS server or a stuck driver: a real one (FUSE) that nobody serves."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_DETACH = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def dead_mount(folder: Path) -> Iterator[None]:
    """Whoever looks into this directory hangs until the block ends. If it was made for that it is gone then."""
    folder.mkdir(parents=True, exist_ok=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
        if _LIBC.mount(b"fuse", os.fsencode(folder), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "can't be mounted")
        try:
            yield
        finally:
            os.close(server)  # all who hang get an error
            server = -1
            _LIBC.umount2(os.fsencode(folder), _DETACH)
            with contextlib.suppress(OSError):
                folder.rmdir()
    finally:
        if server >= 0:
            os.close(server)


def _possible() -> bool:
    folder = Path("/tmp") / f"dead-mount-{os.getpid()}"
    try:
        with dead_mount(folder):
            return True
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return False


can_mount_dead = pytest.mark.skipif(not _possible(), reason="needs root and /dev/fuse: it mounts a file system")
