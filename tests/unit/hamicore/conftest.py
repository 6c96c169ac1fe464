"""A small real shared object that stands for the image's libvgpu.so."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a shared object made by the machine's compiler."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "v.c").write_text(
        'const char version[] = "stand-in"; static char zeros[1 << 16]; char *room(void) { return zeros; }\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libvgpu.so", "v.c"], cwd=folder, check=True, timeout=60)
    return (folder / "libvgpu.so").read_bytes()


@pytest.fixture
def library(tmp_path: Path, built_library: bytes) -> Path:
    """It, where an image would ship it."""
    path = tmp_path / "image" / "libvgpu.so"
    path.parent.mkdir()
    path.write_bytes(built_library)
    return path
