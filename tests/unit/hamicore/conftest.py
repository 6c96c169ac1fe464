"""A small real shared object that stands for the image's libvgpu.so, and test builds of the hook."""

import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY

NATIVE = REPOSITORY / "native"


@pytest.fixture(scope="session")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiler's idea of each layout of a region."""
    program = tmp_path_factory.mktemp("region") / "region_layouts"
    flags = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")
    subprocess.run(["gcc", *flags, "-o", program, REPOSITORY / "tests/native/region_layouts.c"], check=True, timeout=60)
    return program


@pytest.fixture(scope="session")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a shared object made by the machine's compiler."""
    folder = tmp_path_factory.mktemp("library")
    # The sizes of regions, which the code of a real one has, too.
    (folder / "v.c").write_text(
        'const char version[] = "fake"; static char zeros[1 << 16]; char *room(void) { return zeros; }\n'
        "const unsigned regions[] = {2008952, 1197896};\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libvgpu.so", "v.c"], cwd=folder, check=True, timeout=60)
    return (folder / "libvgpu.so").read_bytes()


@pytest.fixture(scope="session")
def built_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a static program, as the hook is one."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "p.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-static", "-O2", "-o", "p", "p.c"], cwd=folder, check=True, timeout=60)
    return (folder / "p").read_bytes()


@pytest.fixture
def hook(tmp_path: Path, built_program: bytes) -> Path:
    """It, where an image would ship the program that renews regions."""
    path = tmp_path / "hami-region-hook"
    path.write_bytes(built_program)
    return path


@pytest.fixture
def library(tmp_path: Path, built_library: bytes) -> Path:
    """It, where an image would ship it."""
    path = tmp_path / "image" / "libvgpu.so"
    path.parent.mkdir()
    path.write_bytes(built_library)
    return path


def build_hook(folder: Path, *flags: str) -> Path:
    """The hook with other flags than the image's build has."""
    program = folder / "hami-region-hook"
    options = ("-std=c11", "-Wall", "-Wextra", "-Werror", *flags)
    command = ["gcc", *options, "-o", str(program), *map(str, NATIVE.glob("*.c"))]
    subprocess.run(command, check=True, timeout=120)
    return program


@pytest.fixture(scope="session")
def sanitized_hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that ends with a report when it does what C does not define."""
    flags = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return build_hook(tmp_path_factory.mktemp("sanitized"), *flags)


@pytest.fixture(scope="session")
def impatient_hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that gives up after a second."""
    return build_hook(tmp_path_factory.mktemp("impatient"), "-DSECONDS=1")
