"""Driver edits from `nvidia-ctk cdi generate`, of the NVIDIA Container Toolkit: tried with 1.20.2.

A run takes from milliseconds to seconds, so its result is kept until the driver or the toolkit change. What is kept was
complete when it was read and is checked again, by `stat`, before each use: a node whose device nodes are late after a boot, or
whose driver was replaced, gets a new run or an error, never half a driver.
"""

import asyncio
import os
import re
import shutil
import signal
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.toolkit_spec import ToolkitSpec, decode
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_STDOUT_LIMIT: Final = 8 * 1024 * 1024
"""Bytes; a node with 16 GPUs prints about 40 KiB."""
_STDERR_LIMIT: Final = 64 * 1024
_TOLD: Final = 600
"""Characters of the toolkit's own words in an error."""

_KILL_TIMEOUT: Final = 5.0
"""Seconds to wait for a killed toolkit."""

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


class _Failed(HardwareError):
    """The toolkit ran and said no."""


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
        self._run: asyncio.Task[_Result] | None = None
        self._waiting = 0
        self._one_by_one = asyncio.Lock()

    async def edits(self, uuids: Collection[str]) -> DriverEdits:
        """The edits for these GPUs; see `DriverEditsSource`. Calls at the same time share one run.

        Raises:
            HardwareError: No toolkit, it failed or took too long, or what it found lacks something.
        """
        result = self._result
        if result is None or not await asyncio.to_thread(self._serves, result, uuids):
            try:
                result = await self._kept(await self._shared_run(), uuids)
            except _Failed:
                result = await self._run_for(uuids)
        spec = result.spec.moved(str(self._root), str(self._host_root))
        return DriverEdits(common=spec.common, per_gpu={uuid: spec.per_gpu[uuid] for uuid in uuids})

    async def _shared_run(self) -> _Result:
        """One run over all GPUs for everyone who asks meanwhile; it is stopped when the last of them has gone."""
        run = self._run
        if run is None:
            run = self._run = asyncio.create_task(self._generate([]))
        self._waiting += 1
        try:
            return await asyncio.shield(run)
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._run = None
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)

    async def _run_for(self, uuids: Collection[str]) -> _Result:
        """One broken GPU makes the toolkit fail for all of them; those asked for may be fine."""
        async with self._one_by_one:
            result = self._result
            if result is None or not await asyncio.to_thread(self._serves, result, uuids):
                result = await self._kept((await self._generate(sorted(uuids))).with_gpus_of(result), uuids)
            return result

    async def _kept(self, result: _Result, uuids: Collection[str]) -> _Result:
        """The result, for later calls too, if it is complete for these GPUs."""
        lacking = await asyncio.to_thread(self._lacking, result, uuids)
        if lacking:
            raise HardwareError(
                f"the driver below {self._root} is not complete: {', '.join(lacking)} is missing. "
                "Check --driver-root and that the driver is loaded (nvidia-smi; nvidia-modprobe -u -c 0 makes device nodes)"
            )
        self._result = result
        return result

    async def _generate(self, uuids: Collection[str]) -> _Result:
        toolkit = await asyncio.to_thread(shutil.which, self._toolkit)
        if toolkit is None:
            raise HardwareError(
                f"nvidia-ctk is not at {self._toolkit!r}"
                + ("" if "/" in self._toolkit else f" in PATH ({os.environ.get('PATH', '')})")
                + ". Install the NVIDIA Container Toolkit or name it with --nvidia-ctk, or use --driver-edits=runtime or none"
            )
        origin = await asyncio.to_thread(self._origin)
        # Where the driver comes as a container its nodes may be on the host only.
        dev_root = self._root if await asyncio.to_thread((self._root / "dev/nvidiactl").exists) else Path("/")
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
        spec = decode(await _output(toolkit, arguments, self._timeout))
        prints = await asyncio.to_thread(_prints, _files(spec))
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


async def _output(toolkit: str, arguments: list[str], timeout: float) -> bytes:  # noqa: ASYNC109 - the message names it
    """Run the toolkit and return what it printed. It never outlives this call, nor does what it started."""
    process = await _started(toolkit, arguments)
    stdout, stderr = cast(asyncio.StreamReader, process.stdout), cast(asyncio.StreamReader, process.stderr)
    try:
        async with asyncio.timeout(timeout):
            printed, complained, _ = await asyncio.gather(
                _read(stdout, _STDOUT_LIMIT), _read(stderr, _STDERR_LIMIT), process.wait()
            )
    except TimeoutError:
        await _kill(process)
        raise HardwareError(
            f"nvidia-ctk did not finish within {timeout:g} s: does the driver hang? Look at nvidia-smi and the kernel's log"
        ) from None
    except BaseException:
        await _kill(process)
        raise
    if process.returncode != 0:
        raise _Failed(
            f"nvidia-ctk failed with status {process.returncode}: {_told(complained)}. Is the driver loaded (nvidia-smi)?"
        )
    if len(printed) == _STDOUT_LIMIT:
        raise HardwareError(f"nvidia-ctk printed more than {_STDOUT_LIMIT} bytes: {toolkit} is no nvidia-ctk")
    return printed


async def _started(toolkit: str, arguments: list[str]) -> asyncio.subprocess.Process:
    # Its options come from us alone, not from variables that happen to be there.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVIDIA_")}
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            toolkit,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _kill(await starting)  # asyncio itself would end the process, but not its children
        raise
    except OSError as error:
        raise HardwareError(
            f"{toolkit} can't be run: {error}. Install one for this machine or name it with --nvidia-ctk"
        ) from error


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End the process and those that it started, and close our ends of its pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):  # a process in uninterruptible sleep; it ends with the call into the driver
        async with asyncio.timeout(_KILL_TIMEOUT):
            await process.communicate()


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Read all and keep the first `limit` bytes, so that the writer is never stuck and we never grow."""
    kept = bytearray()
    while chunk := await stream.read(65536):
        kept += chunk[: limit - len(kept)]
    return bytes(kept)


def _told(stderr: bytes) -> str:
    """The toolkit's own reason: the messages of its error lines, or its last words."""
    text = stderr.decode(errors="replace").strip()
    errors = re.findall(r'level=(?:error|fatal) msg="((?:[^"\\]|\\.)*)"', text)
    return ("; ".join(errors) or text or "it said nothing")[-_TOLD:]
