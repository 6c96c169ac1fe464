"""Driver edits from `nvidia-ctk cdi generate`, of the NVIDIA Container Toolkit: tried with 1.20.2.

A run takes from milliseconds to seconds, so its result is kept until the driver or the toolkit change. What is kept was
complete when it was read and is checked again, by `stat`, before each use: a node whose device nodes are late after a boot, or
whose driver was replaced, gets a new run or an error, never half a driver.
"""

import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.toolkit_run import ToolkitRefused, ToolkitRuns
from hami_kubeletplugin.gpu.toolkit_spec import ToolkitSpec, decode
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_Print = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """What one or more runs found, and what tells that it is out of date.

    Attributes:
        origin: Toolkit and driver version, as they were before the run.
        spec: The edits, with paths as the toolkit sees them.
        prints: The files behind the edits, as they were after the run.
    """

    origin: tuple[object, ...]
    spec: ToolkitSpec
    prints: dict[str, _Print]

    def with_gpus_of(self, older: "_Result | None") -> "_Result":
        """With the GPUs that this run was not asked for."""
        if older is None or older.origin != self.origin or older.spec.common != self.spec.common:
            return self
        spec = ToolkitSpec(self.spec.common, {**older.spec.per_gpu, **self.spec.per_gpu})
        return _Result(self.origin, spec, {**older.prints, **self.prints})


class ToolkitDriverEdits:
    """`--driver-edits=toolkit`.

    Args:
        toolkit: The `nvidia-ctk` to run: a path, or a name to look for in PATH.
        hook: Path of `nvidia-cdi-hook` on the host; the container runtime runs it.
        driver_root: Where the daemon sees the root of the driver installation.
        host_driver_root: Where that root is on the host, if somewhere else.
        timeout: Seconds that one run may take.
        driver_version: The kernel module's version; changes when the driver is replaced.
    """

    def __init__(
        self,
        *,
        toolkit: str,
        hook: str,
        driver_root: Path,
        host_driver_root: Path | None = None,
        timeout: float = 20.0,
        driver_version: Path = Path("/proc/driver/nvidia/version"),
    ) -> None:
        self._toolkit, self._hook, self._timeout = toolkit, hook, timeout
        self._root, self._host_root = driver_root, host_driver_root or driver_root
        self._driver_version = driver_version
        self._result: _Result | None = None
        self._process = ToolkitRuns()
        self._lock = threading.Lock()
        self._ended = 0
        self._last: _Result | HardwareError | None = None

    def edits(self, uuids: Collection[str], *, deadline: float) -> DriverEdits:
        """The edits for these GPUs; see `DriverEditsSource`. Calls at the same time share one run, and its failure.

        Raises:
            HardwareError: No toolkit, it failed or took too long, or what it found lacks something.
        """
        result = self._result
        if result is None or not self._serves(result, uuids):
            result = self._made(uuids, self._ended, deadline)
        spec = result.spec.moved(str(self._root), str(self._host_root))
        return DriverEdits(common=spec.common, per_gpu={uuid: spec.per_gpu[uuid] for uuid in uuids})

    def close(self) -> None:
        """End the run that goes on; those who wait for it get an error."""
        self._process.stop()

    def _made(self, uuids: Collection[str], known: int, deadline: float) -> _Result:
        """A result that serves these GPUs, from one run over all of them, or if that fails from one for these alone.

        Args:
            uuids: The GPUs.
            known: The number of runs that had ended when the caller came: one that ended later is the caller's too.
            deadline: By the monotonic clock.
        """
        if not self._lock.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise HardwareError("nvidia-ctk still runs for other claims; does the driver hang? Look at nvidia-smi")
        try:
            if self._result is not None and self._serves(self._result, uuids):
                return self._result
            if self._ended == known:
                try:
                    self._last = self._generate([])
                except HardwareError as error:
                    self._last = error
                self._ended += 1
            if isinstance(self._last, _Result):
                return self._kept(self._last, uuids)
            if self._last is not None and not isinstance(self._last, ToolkitRefused):
                raise self._last.with_traceback(None)  # one error for many threads: it must not grow
            # One broken GPU makes the toolkit fail for all of them; those asked for may be fine.
            return self._kept(self._generate(sorted(uuids)).with_gpus_of(self._result), uuids)
        finally:
            self._lock.release()

    def _kept(self, result: _Result, uuids: Collection[str]) -> _Result:
        """The result, for later calls too, if it is complete for these GPUs."""
        lacking = self._lacking(result, uuids)
        if lacking:
            raise HardwareError(
                f"the driver below {self._root} is not complete: {', '.join(lacking)} is missing. "
                "Check --driver-root and that the driver is loaded (nvidia-smi; nvidia-modprobe -u -c 0 makes device nodes)"
            )
        self._result = result
        return result

    def _generate(self, uuids: Collection[str]) -> _Result:
        toolkit = shutil.which(self._toolkit)
        if toolkit is None:
            raise HardwareError(
                f"nvidia-ctk is not at {self._toolkit!r}"
                + ("" if "/" in self._toolkit else f" in PATH ({os.environ.get('PATH', '')})")
                + ". Install the NVIDIA Container Toolkit or name it with --nvidia-ctk, or use --driver-edits=runtime or none"
            )
        origin = self._origin()
        # Where the driver comes as a container its nodes may be on the host only.
        dev_root = self._root if (self._root / "dev/nvidiactl").exists() else Path("/")
        arguments = [
            "cdi",
            "generate",
            "--format=json",
            "--mode=nvml",
            "--device-name-strategy=uuid",
            f"--driver-root={self._root}",
            f"--dev-root={dev_root}",
            f"--nvidia-cdi-hook-path={self._hook}",
            *(f"--device-id={uuid}" for uuid in uuids),
        ]
        spec = decode(self._process.output(toolkit, arguments, self._timeout))
        prints = _prints(_files(spec))
        log.info(
            "nvidia-ctk described the driver",
            gpus=sum(name.startswith("GPU-") for name in spec.per_gpu),
            driver_root=str(self._root),
        )
        return _Result(origin, spec, prints)

    def _serves(self, result: _Result, uuids: Collection[str]) -> bool:
        return not self._lacking(result, uuids)

    def _lacking(self, result: _Result, uuids: Collection[str]) -> list[str]:
        """What keeps a result from serving these GPUs now, in words; empty if it does."""
        now = _prints(_files(result.spec))
        lacking = result.spec.missing(uuids, now)
        if not lacking and (now != result.prints or result.origin != self._origin()):
            lacking = ["a driver that is not just being replaced"]
        return lacking

    def _origin(self) -> tuple[object, ...]:
        toolkit = shutil.which(self._toolkit)
        try:
            version = self._driver_version.read_text()
        except OSError:
            version = ""
        return toolkit, version, *(_prints([toolkit]).values() if toolkit else ())


def _files(spec: ToolkitSpec) -> Iterator[str]:
    """The files behind the edits; also the links that name the driver's version of a library, since an update moves them."""
    for path in spec.paths():
        yield path
        library, dot_so, _ = path.rpartition(".so.")
        if dot_so:
            yield f"{library}.so.1"


def _prints(paths: Iterable[str]) -> dict[str, _Print]:
    """What tells a changed file, for those paths that exist. Nodes, sockets and directories only need to be there."""
    prints: dict[str, _Print] = {}
    for path in paths:
        with suppress(OSError):
            found = os.stat(path)
            regular = stat.S_ISREG(found.st_mode)
            prints[path] = (
                (found.st_ino, found.st_size, found.st_mtime_ns) if regular else (stat.S_IFMT(found.st_mode),)
            )
    return prints
