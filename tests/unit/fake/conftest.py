"""A fake API server that is up, and a client that sends whatever the tests say."""

from collections.abc import AsyncIterator

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.client import Client
from hami_kubeletplugin.kube.config import Access


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server without objects."""
    async with ApiServer() as api:
        yield api


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """A client of it."""
    async with Client(Access(server.url)) as kube:
        yield kube
