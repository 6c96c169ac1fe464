"""A node whose NVML and sysfs are the tests' own: the real bindings above a library built from `tests/native`.

It can be changed while a session is open, in this process or another one.
"""

import fcntl
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.gpu.sessions import Sessions
from tests import REPOSITORY
from tests.waiting import until

TESTS = REPOSITORY / "tests"

XID, GPU_UNAVAILABLE, RECOVERY_ACTION, MIG_CHANGE = 0x8, 0x4000, 0x8000, 0x100
"""Event types of nvml.h."""


def fake_nvml_library() -> Path:
    """The fake libnvidia-ml.so.1, built if its sources are newer."""
    sources, library = sorted((TESTS / "native").glob("fake_nvml*")), TESTS / "build/libnvidia-ml.so.1"
    if not library.exists() or library.stat().st_mtime <= max(source.stat().st_mtime for source in sources):
        library.parent.mkdir(exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")  # Renamed at the end: test runs beside this one see it whole.
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-soname,libnvidia-ml.so.1"]
        code = [source for source in sources if source.suffix == ".c"]
        subprocess.run(["gcc", *flags, "-o", fresh, *code], check=True, timeout=60)
        fresh.rename(library)
    return library


class FakeNode:
    """What NVML and sysfs say on this node; see fake_nvml.c for the lines.

    Attributes:
        environment: Makes a process see this node.
        options: Make the daemon see it.
    """

    def __init__(self, folder: Path, library: Path | None = None) -> None:
        self.library = library or fake_nvml_library()
        self.sysfs = folder / "sys"
        self.file = folder / "node"
        self.trace = folder / "trace"
        self.environment = {"FAKE_NVML_NODE": str(self.file), "FAKE_NVML_TRACE": str(self.trace)}
        self.options = ("--nvml-library", str(self.library), "--sysfs", str(self.sysfs))
        self._events = 0
        self.write()

    def write(self, *lines: str, driver: str = "550.54.15", cuda: int = 12040) -> None:
        """Describe the node from now on; sessions that are open see it at their next call."""
        fresh = self.file.with_suffix(".fresh")
        fresh.write_text("\n".join([f"driver {driver}", f"cuda {cuda}", *lines]) + "\n")
        fresh.rename(self.file)

    def happen(self, uuid: str, kind: int, data: int = 0) -> None:
        """Have an event: event sets that are there by now give it out, once."""
        self._events += 1
        with self.file.with_suffix(".events").open("a") as events:
            events.write(f"{self._events} {uuid} {kind:x} {data}\n")

    def can_be_unloaded(self) -> bool:
        """Whether no process has NVML open, so that the kernel's module could be unloaded, or a GPU be reset."""
        with self.file.with_suffix(".module").open("a") as module:
            try:
                fcntl.flock(module, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def add_to_sysfs(self, bus_id: str, root: str, numa: int | str = -1, between: str = "0000:00:01.0/") -> None:
        """A PCI device, linked as the kernel does it."""
        place = f"devices/{root}/{between}{bus_id}"
        (self.sysfs / place).mkdir(parents=True)
        (self.sysfs / place / "numa_node").write_text(f"{numa}\n")
        links = self.sysfs / "bus/pci/devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / bus_id).symlink_to(f"../../../{place}")

    def sessions(self, time_limit: float = 20.0) -> Sessions:
        """NVML for the parts of this process."""
        return Sessions(self.library, time_limit=time_limit)

    def source(self, time_limit: float = 20.0) -> NvmlSource:
        """What the daemon would use on this node."""
        return NvmlSource(self.sessions(time_limit), self.sysfs)

    def library_is_loaded(self) -> bool:
        """Whether this process has the fake library mapped."""
        return str(self.library) in Path("/proc/self/maps").read_text()

    async def until_called(self, call: str) -> None:
        """Wait until NVML is in this call."""
        await until(lambda: call in (called for _, called in self.calls()[-1:]))

    def calls(self) -> list[tuple[str, str]]:
        """Thread and function of each NVML call so far."""
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        return [(thread, call) for thread, call in map(str.split, lines)]


def lines_of_gpu(minor: int, *more: str, without: Iterable[str] = ()) -> str:
    """The lines of one A100 whose numbers come from its minor, less `without`, and with more lines."""
    facts = {
        "uuid": f"GPU-00000000-0000-0000-0000-{minor:012d}",
        "name": "NVIDIA A100-SXM4-40GB",
        "minor": str(minor),
        "brand": "14",
        "arch": "7",
        "cc": "8 0",
        "memory": "42949672960",
        "bus": f"00000000:{16 + minor:02X}:00.0",
    }
    return "\n".join(["gpu", *(f"{fact} {value}" for fact, value in facts.items() if fact not in set(without)), *more])
