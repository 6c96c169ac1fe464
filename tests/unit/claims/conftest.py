"""A node in a temporary directory, a fake library, and logs that cost nothing."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.claims.node import Api, Node
from tests.unit.claims.objects import Json, simple


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
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image would ship: small fakes of library and hook, and what tells the library's version."""
    folder = tmp_path_factory.mktemp("claims-image")
    (folder / "v.c").write_text("const unsigned hami_stand_in = 2008952;  // the size of its region\n")
    (folder / "h.c").write_text("int main(void) { return 0; }\n")
    for arguments in (("-shared", "-fPIC", "-o", "libvgpu.so", "v.c"), ("-o", "hami-region-hook", "h.c")):
        subprocess.run(["gcc", *arguments], cwd=folder, check=True, timeout=60)
    digest = hashlib.sha256((folder / "libvgpu.so").read_bytes()).hexdigest()
    (folder / "versions.json").write_text(json.dumps([{"sha256": digest, "version": "2.10.0"}]))
    return folder


@pytest.fixture(params=["regions", "variables"])
def shipped(request: pytest.FixtureRequest, image: Path) -> Shipped:
    """A library whose regions we can make, or the same without the program that renews them."""
    return Shipped(image, region_hook=image / "hami-region-hook" if request.param == "regions" else None)


@pytest.fixture
def regions(shipped: Shipped) -> bool:
    """Whether regions are made by us."""
    return shipped.region_hook is not None


@pytest.fixture
def api() -> Api:
    """An empty API."""
    return Api()


@pytest.fixture
def node(tmp_path: Path, shipped: Shipped, api: Api) -> Node:
    """A node with nothing prepared."""
    return Node(tmp_path / "node", shipped, api)


@pytest.fixture
def one(node: Node) -> Json:
    """A claim whose objects are there."""
    obj, its_pod = simple(0)
    node.api.put(obj, its_pod)
    return obj
