"""One NVML session over NVIDIA's bindings (`pynvml` of the package nvidia-ml-py; contract: nvml.h).

A session loads the library, opens NVML, and at its end closes and unloads both, as NVIDIA's own drivers do. So between two
looks this process holds nothing that keeps the kernel module busy, and after a driver upgrade the next session loads the
new library; one that stayed loaded would fail with a version mismatch until the process ends.

Here alone NVML's return codes get a meaning: "not supported" is unknown, a driver that is not there (yet) is
`DriverMissing`, everything else is `NvmlCallFailed` with the call, the code and the device.
"""

import _ctypes
import contextlib
import ctypes
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from hami_kubeletplugin.api.errors import DriverMissing, NvmlCallFailed

LIBRARY: Final = "libnvidia-ml.so.1"
THIS_NODE: Final = "this node"

# nvmlReturn_t of nvml.h. Not taken from the bindings, which are imported only while a session opens.
ERROR_INVALID_ARGUMENT: Final = 2
ERROR_NOT_SUPPORTED: Final = 3
ERROR_NOT_FOUND: Final = 6
ERROR_DRIVER_NOT_LOADED: Final = 9
ERROR_TIMEOUT: Final = 10
ERROR_LIBRARY_NOT_FOUND: Final = 12
ERROR_FUNCTION_NOT_FOUND: Final = 13
ERROR_GPU_IS_LOST: Final = 15
ERROR_RESET_REQUIRED: Final = 16
ERROR_LIB_RM_VERSION_MISMATCH: Final = 18
ERROR_GPU_NOT_FOUND: Final = 28
ERROR_UNKNOWN: Final = 999

_UNKNOWN: Final = frozenset({ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND})
_DRIVER_MISSING: Final = {
    ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded (or /dev/nvidiactl is not visible to this process); "
    "load it with `modprobe nvidia`, or look at `dmesg`",
    ERROR_LIBRARY_NOT_FOUND: "a library of the NVIDIA driver is missing; install the driver completely",
    ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA library and the loaded kernel driver have different versions, as after an "
    "upgrade; reload the kernel driver or reboot the node",
}
_INIT_FLAG_NO_GPUS: Final = 1
"""A node that has the driver and no GPU is an empty node, not a failure."""

# Words as NVIDIA's own DRA driver publishes them, so that selectors written for it go on matching.
BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

_bindings_in_use = threading.Lock()  # The loaded library is a global of `pynvml`: one session per process at a time.
_TURN: Final = 15.0
"""Seconds to wait for that session's end: longer than one takes that doesn't hang."""

_LIBRARY_DIRS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64")


def library_below(driver_root: Path) -> Path | None:
    """The NVML library of a driver that is installed below another root, e.g. by a driver container; None if not there."""
    if driver_root == Path("/"):
        return None
    candidates = (_followed(driver_root / directory / LIBRARY, driver_root) for directory in _LIBRARY_DIRS)
    return next((path for path in candidates if path.exists()), None)


def _followed(path: Path, root: Path) -> Path:
    """Where a symbolic link leads to within another root: Debian's driver packages link through /etc/alternatives."""
    for _ in range(40):  # as the kernel does
        if not path.is_symlink():
            break
        target = path.readlink()
        path = root / target.relative_to("/") if target.is_absolute() else path.parent / target
    return path


class Nvml:
    """An NVML session: a context manager, used by one thread.

    Attributes:
        calling: The call that runs now or ran last; another thread may read it to say what hangs.
        called: All so far.
        registered: UUIDs of the GPUs whose events `event_set` gives out, by the address of their handles.
    """

    def __init__(self, library: Path | None = None) -> None:
        """Prepare a session with this library, or with the one that the dynamic linker finds."""
        self._name = str(library or LIBRARY)
        self._bindings: Any = None
        self._loaded: ctypes.CDLL | None = None
        self._event_set: Any = None
        self.registered: dict[int, str] = {}
        self.calling = f"loading {self._name}"
        self.called: set[str] = set()

    def __enter__(self) -> Self:
        """Load the library and open NVML.

        Raises:
            DriverMissing: The library or the kernel driver is not there, or they do not fit together.
            NvmlCallFailed: NVML could not be opened for another reason, such as a session that stays open.
        """
        if not _bindings_in_use.acquire(timeout=_TURN):
            reason = f"another session of this process has been open for {_TURN:g} s and more"
            raise NvmlCallFailed(self.calling, ERROR_TIMEOUT, reason, THIS_NODE)
        try:
            self._load()
            self.require("nvmlInitWithFlags", _INIT_FLAG_NO_GPUS)
        except BaseException:
            self._unload()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close NVML and unload the library; a failure to close changes nothing for what was read."""
        try:
            with contextlib.suppress(NvmlCallFailed, DriverMissing):
                if self._event_set is not None:
                    self.require("nvmlEventSetFree", self._event_set)
            with contextlib.suppress(NvmlCallFailed, DriverMissing):
                self.require("nvmlShutdown")
        finally:
            self._unload()

    def require(self, call: str, *arguments: Any, where: str = THIS_NODE) -> Any:
        """The result of a call of the bindings.

        Args:
            call: Its name, e.g. `nvmlDeviceGetUUID`.
            arguments: Its arguments.
            where: The device, for the message.

        Raises:
            DriverMissing: The driver is not there.
            NvmlCallFailed: Any other failure, "not supported" included.
        """
        self.calling = call
        self.called.add(call)
        try:
            return getattr(self._bindings, call)(*arguments)
        except self._bindings.NVMLError as error:
            if error.value in _DRIVER_MISSING:
                raise DriverMissing(f"{call}: {_DRIVER_MISSING[error.value]}") from error
            raise NvmlCallFailed(call, error.value, str(error), where) from error
        except (
            self._bindings.NVMLLibraryMismatchError
        ) as error:  # the bindings' word for it, of calls with several versions
            raise NvmlCallFailed(call, ERROR_FUNCTION_NOT_FOUND, "this driver doesn't have it", where) from error
        except UnicodeDecodeError as error:
            raise NvmlCallFailed(
                call, ERROR_UNKNOWN, f"it answered with bytes that are no text: {error}", where
            ) from error

    def query(self, call: str, *arguments: Any, where: str = THIS_NODE) -> Any | None:
        """As `require`, for what not every GPU or driver can answer: None if this one can't."""
        try:
            return self.require(call, *arguments, where=where)
        except NvmlCallFailed as error:
            if error.code in _UNKNOWN:
                return None
            raise

    @property
    def event_set(self) -> Any:
        """The session's event set, which lives as long as it.

        Raises:
            NvmlCallFailed: There can't be one.
        """
        if self._event_set is None:
            self._event_set = self.require("nvmlEventSetCreate")
        return self._event_set

    def _load(self) -> None:
        import pynvml  # noqa: PLC0415 - costs 4 MiB and is not needed with simulated hardware

        self._bindings = pynvml
        try:
            self._loaded = ctypes.CDLL(self._name)
        except OSError as error:
            raise DriverMissing(
                f"can't load the NVIDIA library {self._name}: {error}; install the NVIDIA driver on this node, "
                "or say where it is with --driver-root or --nvml-library"
            ) from error
        # The bindings load a library by its bare name unless this global holds one already.
        pynvml.nvmlLib = self._loaded

    def _unload(self) -> None:
        try:
            if self._bindings is not None:
                self._bindings.nvmlLib = None
                self._bindings._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it points into the library
            if self._loaded is not None:
                _ctypes.dlclose(self._loaded._handle)  # noqa: SLF001 - ctypes has no public way to unload
                self._loaded = None
        finally:
            _bindings_in_use.release()
