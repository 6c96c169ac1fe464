"""What is built from C for several floors' tests."""

import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY


@pytest.fixture(scope="session")
def native() -> Path:
    """The folder with hami-region-hook, the fake libvgpu.so and its versions.json, built where their sources are newer."""
    subprocess.run([REPOSITORY / "hack/native"], check=True, timeout=120)
    return REPOSITORY / "tests/build"
