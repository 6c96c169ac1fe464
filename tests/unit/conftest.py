"""What is built from C for several floors' tests."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def native() -> Path:
    """The folder with hami-region-hook, the stand-in libvgpu.so and its versions.json, built where their sources are newer."""
    subprocess.run([REPOSITORY / "hack/native"], check=True, timeout=120)
    return REPOSITORY / "tests/build"
