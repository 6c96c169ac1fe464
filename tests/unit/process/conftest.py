"""An API server and a daemon for each test."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu
from tests.unit.process.daemon import NODE, Process


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A daemon that is killed leaves its mounts, and later runs of pytest could not remove their folders."""
    yield
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    ours = [path for path in mounted if path.startswith(f"{tmp_path_factory.getbasetemp()}/")]
    if ours:
        subprocess.run(["umount", "--lazy", *ours], check=True, timeout=30)


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
