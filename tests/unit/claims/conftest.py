"""A node in a temporary directory, a stand-in library, and quick hypothesis settings."""

import subprocess
from pathlib import Path

import pytest
from claims_node import Api, Node
from hypothesis import HealthCheck, settings

settings.register_profile(
    "claims", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small shared object where the image would ship libvgpu.so."""
    folder = tmp_path_factory.mktemp("claims-library")
    (folder / "v.c").write_text("int hami_stand_in(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libvgpu.so", "v.c"], cwd=folder, check=True, timeout=60)
    return folder / "libvgpu.so"


@pytest.fixture
def api() -> Api:
    """An empty API."""
    return Api()


@pytest.fixture
def node(tmp_path: Path, library: Path, api: Api) -> Node:
    """A node with nothing prepared."""
    return Node(tmp_path / "node", library, api)
