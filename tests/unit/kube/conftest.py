"""A server that has one claim, and a client of it."""

from collections.abc import AsyncIterator

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.kube.fakes import CLAIM


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server that has one claim."""
    async with ApiServer(api_versions=("v1", "v1beta2", "v1beta1")) as api:
        api.put("resourceclaims", CLAIM)
        yield api


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    """A client of it."""
    async with KubeClient(Access(server.url)) as kube:
        yield kube
