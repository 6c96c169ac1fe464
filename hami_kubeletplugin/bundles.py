"""A support bundle as a file: a new one, whole or not at all, that only its owner can read. All doctors' bundles are such."""

import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from hami_kubeletplugin.api.errors import StorageError


def write(path: Path, parts: Mapping[str, bytes]) -> None:
    """Write a new archive, in it a folder of its name with these files.

    Args:
        path: Of the archive; nothing may be there, a link neither.
        parts: What is in each file, by name, folders with slashes.

    Raises:
        StorageError: It is there already, or can't be written; nothing is left then.
    """
    folder = path.name.partition(".")[0] or "support"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in parts.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(packed.getvalue())
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"--support-bundle {path} can't be written: {error.strerror}; name a new file") from error
