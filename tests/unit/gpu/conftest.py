"""A node whose NVML and sysfs are the tests' own: the real bindings above a library built from `tests/native`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.gpu.discover import NvmlSource
from tests import REPOSITORY
from tests.unit.gpu.driver_files import DRIVER, Driver, need
from tests.waiting import until

TESTS = REPOSITORY / "tests"


@pytest.fixture(scope="session")
def fake_nvml() -> Path:
    """The fake libnvidia-ml.so.1, built if its source is newer."""
    source, library = TESTS / "native/fake_nvml.c", TESTS / "build/libnvidia-ml.so.1"
    if not library.exists() or library.stat().st_mtime <= source.stat().st_mtime:
        library.parent.mkdir(exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")  # Renamed at the end: test runs beside this one see it whole.
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run(["gcc", *flags, "-o", fresh, source], check=True, timeout=60)
        fresh.rename(library)
    return library


class FakeNode:
    """What NVML and sysfs say on this node; see fake_nvml.c for the lines."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.library = library
        self.sysfs = folder / "sys"
        self.file = folder / "node"
        self.trace = folder / "trace"
        self.write()

    def write(self, *lines: str, driver: str = "550.54.15", cuda: int = 12040) -> None:
        """Describe the node from now on."""
        self.file.write_text("\n".join([f"driver {driver}", f"cuda {cuda}", *lines]) + "\n")

    def add_to_sysfs(self, bus_id: str, root: str, numa: int | str = -1, between: str = "0000:00:01.0/") -> None:
        """A PCI device, linked as the kernel does it."""
        place = f"devices/{root}/{between}{bus_id}"
        (self.sysfs / place).mkdir(parents=True)
        (self.sysfs / place / "numa_node").write_text(f"{numa}\n")
        links = self.sysfs / "bus/pci/devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / bus_id).symlink_to(f"../../../{place}")

    def source(self, time_limit: float = 20.0) -> NvmlSource:
        """What the daemon would use on this node."""
        return NvmlSource(self.library, self.sysfs, time_limit)

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


@pytest.fixture
def node(tmp_path: Path, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node with the driver and no GPU."""
    fake = FakeNode(tmp_path, fake_nvml)
    monkeypatch.setenv("FAKE_NVML_NODE", str(fake.file))
    monkeypatch.setenv("FAKE_NVML_TRACE", str(fake.trace))
    return fake


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


@pytest.fixture
def gpu_lines() -> Callable[..., str]:
    """Makes the lines of one GPU."""
    return lines_of_gpu


TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit/cmd"
TOOLKIT_VERSION = "v1.20.2"


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of nvidia-ctk and nvidia-cdi-hook, built from their Go module when they are not there yet."""
    need(os.geteuid() == 0, "root, to make device nodes")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hami-dra-tools"
    folder = cache / f"nvidia-container-toolkit-{TOOLKIT_VERSION}"
    if not folder.exists():
        need(shutil.which("go") and shutil.which("gcc"), "Go and gcc, to build nvidia-ctk")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as building:
            programs = [f"{TOOLKIT}/{name}@{TOOLKIT_VERSION}" for name in ("nvidia-ctk", "nvidia-cdi-hook")]
            environment = os.environ | {"GOBIN": f"{building}/bin", "CGO_ENABLED": "1"}
            subprocess.run(["go", "install", "-ldflags=-s -w", *programs], env=environment, check=True, timeout=580)
            Path(building, "bin").rename(folder)
    return folder


@pytest.fixture
def driver(tools: Path, tmp_path: Path, fake_nvml: Path, node: Any, gpu_lines: Callable[..., str]) -> Driver:
    """A node with three GPUs."""
    node.write(*(gpu_lines(minor) for minor in range(3)), driver=DRIVER)
    return Driver(tmp_path / "driver", fake_nvml, tools)
