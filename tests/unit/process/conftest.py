"""An API server and a daemon for each test."""

from collections.abc import AsyncIterator

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu
from tests.unit.process.daemon import NODE, Process


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """An API server that knows the node."""
    async with ApiServer() as server:
        server.put("nodes", {"metadata": {"name": NODE}})
        yield server


@pytest.fixture
async def process(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    """A daemon that is killed at the end, if it still runs."""
    process = Process(tmp_path_factory.mktemp("d"), api.url)
    yield process
    await process.kill()


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> FakeNode:
    """A node with NVML, two GPUs and no claims; `process.start(on=node)`."""
    fake = FakeNode(tmp_path_factory.mktemp("n"))
    fake.write(lines_of_gpu(0), lines_of_gpu(1))
    return fake
