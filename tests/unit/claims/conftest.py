"""A node in a temporary directory, a stand-in library, and logs that cost nothing."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from claims_node import Api, Json, Node, simple


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """No pretty tracebacks: drawing one takes longer than a hundred prepares."""
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    yield
    structlog.configure(**before)


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


@pytest.fixture
def one(node: Node) -> Json:
    """A claim whose objects are there."""
    obj, its_pod = simple(0)
    node.api.put(obj, its_pod)
    return obj
