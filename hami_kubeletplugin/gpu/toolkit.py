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
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.toolkit_run import ToolkitRefused, ToolkitRuns
from hami_kubeletplugin.gpu.toolkit_spec import ToolkitSpec, decode
from hami_kubeletplugin.hanging import PATIENCE, MayHang
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_Print = tuple[int, ...]
_Prints = dict[str, _Print | None]
"""By path; None for what isn't there."""


class _Origin(NamedTuple):
    """Who made a result: path and print of nvidia-ctk, empty if there is none, what the driver says of its version, the hook."""

    toolkit: str
    print: _Print | None
    driver: str
    hook: str


_FAILURE_SHARED: Final = 1.0
"""Seconds: a run that took longer to fail is not made again for as long as it took. After an update all claims want one."""


@dataclass(frozen=True, slots=True)
class _Result:
    """What one or more runs found, and what tells that it is out of date.

    Attributes:
        origin: Toolkit and driver version, as they were before the run.
        spec: The edits, with paths as the toolkit sees them.
        prints: The files behind the edits, as they were when they were needed first.
    """

    origin: _Origin
    spec: ToolkitSpec
    prints: _Prints = field(default_factory=dict)

    def with_gpus_of(self, older: "_Result | None") -> "_Result":
        """With the GPUs that this run was not asked for."""
        if older is None or older.origin != self.origin or older.spec.common != self.spec.common:
            return self
        return _Result(self.origin, ToolkitSpec(self.spec.common, {**older.spec.per_gpu, **self.spec.per_gpu}))


class ToolkitDriverEdits:
    """`--driver-edits=toolkit`.

    Args:
        toolkit: The `nvidia-ctk` to run: a path, or a name to look for in PATH.
        hook: Says the path of `nvidia-cdi-hook` on the host, where the container runtime runs it; see `cdi_hook.hook_for`.
        driver_root: Where the daemon sees the root of the driver installation.
        host_driver_root: Where that root is on the host, if somewhere else.
        timeout: Seconds that one run may take.
        driver_version: The kernel module's version; changes when the driver is replaced.
        patience: Seconds until a file that does not answer is said to hang.
    """

    def __init__(
        self,
        *,
        toolkit: str,
        hook: Callable[[], str],
        driver_root: Path,
        host_driver_root: Path | None = None,
        timeout: float = 20.0,
        driver_version: Path = Path("/proc/driver/nvidia/version"),
        patience: float = PATIENCE,
    ) -> None:
        self._toolkit, self._hook, self._timeout = toolkit, hook, timeout
        self._root, self._host_root = driver_root, host_driver_root or driver_root
        self._driver_version = driver_version
        self._result: _Result | None = None
        self._process = ToolkitRuns()
        self._files = MayHang("the driver's file", HardwareError, patience=patience)
        self._lock = threading.Lock()
        self._ended = 0
        self._last: _Result | HardwareError | None = None
        self._again = float("-inf")

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

    def stamp(self) -> object:
        """The toolkit, the driver, and the files that every container has of it; see `DriverEditsSource`."""
        result = self._result
        return self._origin(), self._prints(_files(result.spec, ()) if result else ())

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
            if self._ended == known and time.monotonic() > self._again:
                began = time.monotonic()
                try:
                    self._last = self._generate([])
                except HardwareError as error:
                    self._last = error
                    if (took := time.monotonic() - began) > _FAILURE_SHARED:
                        self._again = began + 2 * took
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
        origin = self._origin()
        if not origin.toolkit:
            raise HardwareError(
                f"nvidia-ctk is not at {self._toolkit!r}"
                + ("" if "/" in self._toolkit else f" in PATH ({os.environ.get('PATH', '')})")
                + ". Install the NVIDIA Container Toolkit or name it with --nvidia-ctk, or use --driver-edits=runtime or none"
            )
        # Where the driver comes as a container its nodes may be on the host only.
        control = str(self._root / "dev/nvidiactl")
        dev_root = self._root if self._prints([control])[control] else Path("/")
        arguments = [
            "cdi",
            "generate",
            "--format=json",
            "--mode=nvml",
            "--device-name-strategy=uuid",
            f"--driver-root={self._root}",
            f"--dev-root={dev_root}",
            f"--nvidia-cdi-hook-path={origin.hook}",
            *(f"--device-id={uuid}" for uuid in uuids),
        ]
        spec = decode(self._process.output(origin.toolkit, arguments, self._timeout))
        log.info(
            "nvidia-ctk described the driver",
            gpus=sum(name.startswith("GPU-") for name in spec.per_gpu),
            driver_root=str(self._root),
        )
        return _Result(origin, spec)

    def _serves(self, result: _Result, uuids: Collection[str]) -> bool:
        return not self._lacking(result, uuids)

    def _lacking(self, result: _Result, uuids: Collection[str]) -> list[str]:
        """What keeps a result from serving these GPUs now, in words; empty if it does."""
        now = self._prints(_files(result.spec, uuids))
        lacking = result.spec.missing(uuids, [path for path, found in now.items() if found])
        # What is looked at for the first time is what it shall be from now on.
        changed = any(result.prints.setdefault(path, found) != found for path, found in now.items())
        if not lacking and (changed or result.origin != self._origin()):
            lacking = ["a driver that is not just being replaced"]
        return lacking

    def _origin(self) -> _Origin:
        def look(name: str) -> str:
            return (shutil.which(name) or "") if name == self._toolkit else _text(name)

        version = str(self._driver_version)
        found = self._files.each(look, [self._toolkit, version])
        toolkit = found[self._toolkit]
        return _Origin(toolkit, self._prints([toolkit])[toolkit], found[version], self._hook() if toolkit else "")

    def _prints(self, paths: Iterable[str]) -> _Prints:
        return self._files.each(_print, paths)


def _files(spec: ToolkitSpec, uuids: Collection[str]) -> Iterator[str]:
    """The files behind some GPUs' edits; also the links that name the driver's version of a library: an update moves them.

    Not those of other GPUs: they may be gone, or hang, and are none of a claim's business.
    """
    for path in spec.paths(uuids):
        yield path
        library, dot_so, _ = path.rpartition(".so.")
        if dot_so:
            yield f"{library}.so.1"


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _print(path: str) -> _Print | None:
    """What tells a changed file. Nodes, sockets and directories only need to be there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    regular = stat.S_ISREG(found.st_mode)
    return (found.st_ino, found.st_size, found.st_mtime_ns) if regular else (stat.S_IFMT(found.st_mode),)
