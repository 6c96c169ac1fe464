"""kube.client and kube.resource_api: watches, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import (
    ApiExpired,
    ApiForbidden,
    ApiUnavailable,
)
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube import client as kube_client
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.kube.fakes import new_slice


async def test_watch_shows_only_what_is_selected(server: ApiServer, client: KubeClient) -> None:
    """A watch shows changes of this driver and node from its start on, in order, and bookmarks."""
    other = new_slice()
    other["metadata"] = {"name": "other"}
    other["spec"]["nodeName"] = "n2"
    since = (await client.list_slices("gpu.hami.io", "n1")).resource_version
    server.put("resourceslices", other)
    created = await client.create_slice(new_slice())
    await client.delete_slice(created)
    server.store.bookmark()
    async with aclosing(client.watch_slices("gpu.hami.io", "n1", since)) as events:
        seen = [await anext(events) for _ in range(3)]
    assert [event.type for event in seen] == ["ADDED", "DELETED", "BOOKMARK"]
    assert int(seen[2].object["metadata"]["resourceVersion"]) > int(since)


@given(st.lists(st.sampled_from([b"", b"a", b"bc", b"\n", b"d\n", b"\ne", b"f\ng\nh"])))
async def test_watch_takes_events_of_any_size(reads: list[bytes]) -> None:
    """Events come out whole, however many network reads they were spread over, and however many were in one."""

    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            for read in reads:
                yield read

    lines = [line async for line in kube_client._lines(Content())]  # type: ignore[arg-type]
    assert lines == b"".join(reads).split(b"\n")[:-1]


async def test_watch_takes_a_full_slice(client: KubeClient) -> None:
    """A slice with 128 devices, longer than any line buffer, is an event as well."""
    await client.create_slice(new_slice(devices=128))
    async with aclosing(client.watch_slices("gpu.hami.io", "n1", "1")) as events:
        assert len((await anext(events)).object["spec"]["devices"]) == 128


async def test_watch_from_a_forgotten_version(server: ApiServer, client: KubeClient) -> None:
    """A watch whose start the server no longer knows is ApiExpired, whether it says so as an event or as a status."""
    since = (await client.list_slices("gpu.hami.io", "n1")).resource_version
    server.store.compact()
    with pytest.raises(ApiExpired, match="too old resource version"):
        await anext(client.watch_slices("gpu.hami.io", "n1", since))
    server.fail(410, verb="watch")
    with pytest.raises(ApiExpired):
        await anext(client.watch_slices("gpu.hami.io", "n1", since))


async def test_watch_that_is_cut_just_ends(server: ApiServer, client: KubeClient) -> None:
    """A connection lost in the middle of a watch ends it without an error: the caller goes on from its last version."""
    await client.create_slice(new_slice())
    async with asyncio.timeout(5), aclosing(client.watch_slices("gpu.hami.io", "n1", "1")) as events:
        await anext(events)
        server.drop_watches()
        assert [event async for event in events] == []


async def test_watch_that_goes_silent_ends(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends nothing any more, not even bookmarks, is not waited for without end."""
    monkeypatch.setattr(kube_client, "_WATCH_SILENCE", 0.1)
    async with asyncio.timeout(5), aclosing(client.watch_slices("gpu.hami.io", "n1", "1")) as events:
        assert [event async for event in events] == []


async def test_watch_that_cannot_start(server: ApiServer, client: KubeClient) -> None:
    """A watch that is refused, or that nobody answers, is an error from its first event."""
    server.fail(403, verb="watch")
    with pytest.raises(ApiForbidden, match="allow verb watch"):
        await anext(client.watch_slices("gpu.hami.io", "n1", "1"))
    await server.down()
    with pytest.raises(ApiUnavailable, match="watch resourceslices"):
        await anext(client.watch_slices("gpu.hami.io", "n1", "1"))
