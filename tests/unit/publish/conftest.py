"""A server that knows our node, and a publisher on it."""

from collections.abc import AsyncIterator

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from tests.unit.publish.fakes import TWO, World, running
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server that knows our node."""
    async with ApiServer() as api:
        api.put("nodes", {"metadata": {"name": "n1", "uid": "node-uid"}})
        yield api


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    """A publisher that has published two GPUs."""
    async with running(server) as it:
        it.publisher.offer(TWO)
        await until(it.publisher.first_published.is_set)
        await until(lambda: server.requests["watch", "resourceslices"])
        yield it
