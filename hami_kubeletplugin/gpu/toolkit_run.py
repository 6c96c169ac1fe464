"""A run of `nvidia-ctk`: bounded in time and in what it prints, and never outliving the call. Blocking."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from typing import IO, Final

from hami_kubeletplugin.api.errors import HardwareError

_STDOUT_LIMIT: Final = 8 * 1024 * 1024
"""Bytes; a node with 16 GPUs prints about 40 KiB."""
_STDERR_LIMIT: Final = 64 * 1024
_TOLD: Final = 600
"""Characters of the toolkit's own words in an error."""
_KILL_TIMEOUT: Final = 5.0
"""Seconds to wait for a killed toolkit."""


class ToolkitRefused(HardwareError):
    """The toolkit ran and said no."""


class ToolkitRuns:
    """Runs of the toolkit, one at a time, that the end of the daemon ends too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._stuck: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the run that goes on, if any; no other begins."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _kill(self._process)

    def output(self, toolkit: str, arguments: list[str], timeout: float) -> bytes:
        """What the toolkit prints.

        Args:
            toolkit: The program.
            arguments: For it.
            timeout: Seconds that it may take.

        Raises:
            ToolkitRefused: It ended with an error; has its own words.
            HardwareError: It can't be run, takes too long, or is no nvidia-ctk.
        """
        with self._lock:
            if self._stopped:
                raise HardwareError("nvidia-ctk is not run any more: the daemon stops")
            if self._stuck is not None and self._stuck.poll() is None:
                raise HardwareError(
                    f"nvidia-ctk, process {self._stuck.pid}, hangs in the driver and can't be ended, so no other is begun. "
                    "Look at nvidia-smi and the kernel's log"
                )
            process = self._process = _started(toolkit, arguments)
        try:
            printed, complained = _read(process, time.monotonic() + timeout)
        except TimeoutError:
            raise HardwareError(
                f"nvidia-ctk did not finish within {timeout:g} s: does the driver hang? "
                "Look at nvidia-smi and the kernel's log"
            ) from None
        finally:
            _end(process)
            with self._lock:
                self._process = None
                self._stuck = process
        if process.returncode != 0:
            raise ToolkitRefused(
                f"nvidia-ctk failed with status {process.returncode}: {_told(complained)}. "
                "Is the driver loaded (nvidia-smi)?"
            )
        if len(printed) == _STDOUT_LIMIT:
            raise HardwareError(f"nvidia-ctk printed more than {_STDOUT_LIMIT} bytes: {toolkit} is no nvidia-ctk")
        return printed


def _started(toolkit: str, arguments: list[str]) -> "subprocess.Popen[bytes]":
    # Its options come from us alone, not from variables that happen to be there.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVIDIA_")}
    try:
        return subprocess.Popen(  # noqa: S603 - the program that the administrator named
            [toolkit, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise HardwareError(
            f"{toolkit} can't be run: {error}. Install one for this machine or name it with --nvidia-ctk"
        ) from error


def _read(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bytes]:
    """Read all that it prints until its end, and keep the first bytes, so that it is never stuck and we never grow.

    Raises:
        TimeoutError: It goes on.
    """
    kept = (bytearray(), bytearray())
    with selectors.DefaultSelector() as selector:
        for pipe, buffer, limit in (
            (process.stdout, kept[0], _STDOUT_LIMIT),
            (process.stderr, kept[1], _STDERR_LIMIT),
        ):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, (buffer, limit))
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                buffer, limit = key.data
                chunk = os.read(key.fd, 65536)
                buffer += chunk[: limit - len(buffer)]
                if not chunk:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return bytes(kept[0]), bytes(kept[1])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and those that it started, and close our ends of its pipes."""
    _kill(process)  # the group: what it started may go on after it
    if process.poll() is None:
        # One in uninterruptible sleep ends with the call into the driver.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_TIMEOUT)
    pipe: IO[bytes] | None
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _told(stderr: bytes) -> str:
    """The toolkit's own reason: the messages of its error lines, or its last words."""
    text = stderr.decode(errors="replace").strip()
    errors = re.findall(r'level=(?:error|fatal) msg="((?:[^"\\]|\\.)*)"', text)
    return ("; ".join(errors) or text or "it said nothing")[-_TOLD:]
