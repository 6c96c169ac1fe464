"""The image's own `nvidia-cdi-hook` on the host, where the container runtime runs it: for nodes without the toolkit. Blocks."""

import hashlib
import threading
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import elf
from hami_kubeletplugin.hamicore.directories import directory
from hami_kubeletplugin.hamicore.host import place
from hami_kubeletplugin.hanging import MayHang
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_PATIENCE: Final = 10.0
"""Seconds until the file is said to hang: some megabytes have to come onto the disk."""
_ADVICE: Final = "install the NVIDIA Container Toolkit on the node and name its hook with --nvidia-cdi-hook"


class ToolkitHook:
    """Keeps it as the image has it, from the first time on that somebody asks for it. Thread-safe.

    Args:
        shipped: Where the image has it.
        hami_dir: Where HAMi-core's files are on the host; the same path for the container runtime.
        counts: Told when it was put back.
    """

    def __init__(self, shipped: Path, hami_dir: Path, counts: Counts = UNCOUNTED) -> None:
        self._shipped, self._folder, self._counts = shipped, hami_dir / "lib", counts
        self._files = MayHang("the toolkit's hook", StorageError, patience=_PATIENCE)
        self._lock = threading.Lock()
        self._state: tuple[Path, files.Fingerprint] | None = None

    def path(self) -> str:
        """Where it is on the host; put there, or back, if it has to be.

        Costs one `stat` when nothing happened to it. It is called by its content, so that an update leaves what prepared
        claims name.

        Raises:
            StorageError: The image has none that can run here, or the host's directory can't be written.
        """
        name = str(self._folder)
        return self._files.each(lambda _: self._kept(), [name])[name]

    def planned(self) -> str:
        """Where it is on the host, or will be: for those who only look.

        Raises:
            StorageError: The image has none that can run here.
        """
        return str(self._read()[0])

    def _kept(self) -> str:
        with self._lock:
            before, self._state = self._state, None
            if before is not None and files.fingerprint(before[0]) == before[1]:
                self._state = before
                return str(before[0])
            path, found = self._installed()
            if before is not None:
                log.warning("the toolkit's hook was changed: installed it again", path=str(path))
                self._counts.repaired("library")
            else:
                log.info("nodes without the toolkit get the image's nvidia-cdi-hook", path=str(path))
            self._state = path, found
            return str(path)

    def _read(self) -> tuple[Path, bytes]:
        try:
            content = self._shipped.read_bytes()
        except OSError as error:
            raise StorageError(
                f"there is no nvidia-cdi-hook at {self._shipped}: {error.strerror}; {_ADVICE}"
            ) from error
        if reason := elf.defect(content, kind="program"):
            raise StorageError(f"{self._shipped} can't be used: {reason}; {_ADVICE}")
        return self._folder / f"nvidia-cdi-hook.{hashlib.sha256(content).hexdigest()[:16]}", content

    def _installed(self) -> tuple[Path, files.Fingerprint]:
        path, content = self._read()
        try:
            directory(self._folder, 0o755)
            place(path, content, 0o755)
        except OSError as error:
            raise StorageError(
                f"nvidia-cdi-hook can't be installed below {self._folder}: {error}. "
                "Make that directory writable for the daemon and free space on it"
            ) from error
        found = files.fingerprint(path)
        if found is None:
            raise StorageError(f"{path} vanishes at once; find out who removes it")
        return path, found
