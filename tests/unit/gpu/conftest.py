"""A node whose NVML and sysfs are the tests' own, and nvidia-ctk above it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpu.driver_files import DRIVER, Driver, need
from tests.unit.gpu.fake_node import FakeNode, fake_nvml_library, lines_of_gpu


@pytest.fixture(scope="session")
def fake_nvml() -> Path:
    """The fake libnvidia-ml.so.1."""
    return fake_nvml_library()


@pytest.fixture
def node(tmp_path: Path, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node with the driver and no GPU."""
    fake = FakeNode(tmp_path, fake_nvml)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


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
