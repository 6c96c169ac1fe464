"""A folder of its own for what is tried out, that goes with it. Blocks."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import StorageError

_PREFIX: Final = ".doctor-"


@contextlib.contextmanager
def folder_below(hami_dir: Path) -> Iterator[Path]:
    """A folder of its own, which goes; and those that killed ones left, whose lock nobody holds, go first.

    Raises:
        StorageError: It can't be made.
    """
    try:
        for left in hami_dir.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), _locked(left):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=hami_dir))
    except OSError as error:
        raise StorageError(f"nothing can be made in {hami_dir} to try it with: {error.strerror}") from error
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
