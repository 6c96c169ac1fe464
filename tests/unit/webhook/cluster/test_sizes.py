"""webhook.sizes: which GPUs the cluster has, from ResourceSlices."""

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.resource_api import SLICES_PAGE
from hami_kubeletplugin.webhook.cluster.sizes import PublishedSizes
from hami_kubeletplugin.webhook.conversion.fleet import Kind
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.cluster.fake_cluster import cluster, in_background
from tests.waiting import until

A100 = GpuSize("NVIDIA A100-SXM4-40GB", 40960)
T4 = GpuSize("Tesla T4", 15360)


def device(size: GpuSize, *, share: str = "1k", shared: bool = True, uuid: str = "GPU-0") -> dict[str, Any]:
    """A GPU as the node daemon publishes it."""
    memory: dict[str, Any] = {"value": f"{size.memory_mib}Mi"}
    shares: dict[str, Any] = {"value": "10k", "requestPolicy": {"default": share, "validValues": [share, "10k"]}}
    return {
        "name": "hami-gpu-0",
        "attributes": {"productName": {"string": size.model}, "uuid": {"string": uuid}},
        "capacity": {"memory": memory, "cores": {"value": "100"}, "shares": shares if shared else {"value": "10k"}},
        **({"allowMultipleAllocations": True} if shared else {}),
    }


def slice_(node: str, *devices: dict[str, Any], driver: str = "gpu.hami.io") -> dict[str, Any]:
    """A node's slice."""
    numbered = [one | {"name": f"hami-gpu-{number}"} for number, one in enumerate(devices)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": numbered}
    return {"metadata": {"name": f"slice-{node}", "resourceVersion": "1"}, "spec": spec}


@pytest.fixture
async def followed() -> AsyncIterator[tuple[ApiServer, PublishedSizes]]:
    """A cluster of two nodes with A100s, followed."""
    async with cluster() as (server, client):
        server.put("resourceslices", slice_("n1", device(A100), device(A100)))
        server.put("resourceslices", slice_("n2", device(A100)))
        sizes = PublishedSizes(client, "gpu.hami.io")
        assert not sizes.synced
        async with in_background(sizes.run()):
            await until(lambda: sizes.synced and server.requests["watch", "resourceslices"])
            yield server, sizes


async def test_many_nodes() -> None:
    """Slices of many nodes are asked for in pages, of which nothing but the sizes stays in memory."""
    async with cluster() as (server, client):
        for number in range(SLICES_PAGE):
            server.put("resourceslices", slice_(f"n{number}", device(A100)))
        server.put("resourceslices", slice_("other", device(T4)))
        sizes = PublishedSizes(client, "gpu.hami.io")
        listed = await sizes.listed()
        assert server.requests["list", "resourceslices"] == 2
        assert "attributes" not in repr(listed)
        sizes.replace(listed)
        assert sizes.known() == (A100, T4)


async def test_nodes_come_and_go(followed: tuple[ApiServer, PublishedSizes]) -> None:
    """Equal GPUs of all nodes are one size; a new node's are known soon, and those of the last node of a kind go with it."""
    server, sizes = followed
    assert sizes.known() == (A100,)
    assert sizes.slots() == {1000}
    server.put("resourceslices", slice_("n3", device(T4, share="2500"), device(A100)))
    await until(lambda: sizes.known() == (A100, T4))
    assert sizes.slots() == {1000, 2500}
    server.remove("resourceslices", "slice-n1")
    server.remove("resourceslices", "slice-n2")
    server.put("resourceslices", slice_("n3", device(T4)))
    await until(lambda: sizes.known() == (T4,))
    assert sizes.slots() == {1000}
    server.remove("resourceslices", "slice-n3")
    await until(lambda: sizes.known() == ())


async def test_only_gpus_that_are_ours_to_share(followed: tuple[ApiServer, PublishedSizes]) -> None:
    """Devices of other drivers, and such as can't be shared, say nothing."""
    server, sizes = followed
    server.put("resourceslices", slice_("n3", device(T4), driver="other.io"))
    server.put("resourceslices", slice_("n4", device(T4, shared=False)))
    server.put("resourceslices", slice_("n5", device(GpuSize("L4", 23034))))
    await until(lambda: len(sizes.known()) > 1)
    assert sizes.known() == (GpuSize("L4", 23034), A100)


async def test_nodes_and_gpus_by_name(followed: tuple[ApiServer, PublishedSizes]) -> None:
    """Nodes that are alike are one; a GPU is known by its UUID as long as a slice has it, also when another one takes it over."""
    server, sizes = followed
    two, one = ((Kind(*A100), 2),), ((Kind(*A100), 1),)
    assert {*sizes.nodes} == {two, one}
    server.put("resourceslices", slice_("n3", device(A100, uuid="GPU-3"), device(A100, uuid="GPU-4")))
    await until(lambda: sizes.has("GPU-4"))
    assert {*sizes.nodes} == {two, one}
    more = slice_("n3", device(T4, uuid="GPU-4"))
    more["metadata"]["name"] = "slice-n3-more"
    server.put("resourceslices", more)
    await until(lambda: len(sizes.nodes) == 3)
    assert (*two, (Kind(*T4), 1)) in sizes.nodes, "a node with many devices has several slices"
    server.remove("resourceslices", "slice-n3")
    await until(lambda: not sizes.has("GPU-3"))
    assert sizes.has("GPU-4")
    server.remove("resourceslices", "slice-n3-more")
    await until(lambda: not sizes.has("GPU-4"))
    assert {*sizes.nodes} == {two, one}


async def test_so_many_kinds_of_nodes_that_nothing_is_said() -> None:
    """Each pod is held against all of them, so there is a bound, and beyond it no warning about what none has."""
    sizes = PublishedSizes(None, "gpu.hami.io")  # type: ignore[arg-type]
    for number in range(64):
        sizes.take(Event("ADDED", slice_(f"n{number}", device(GpuSize("x", 1000 + number)))))
    assert len(sizes.nodes) == 64
    sizes.take(Event("ADDED", slice_("n64", device(T4))))
    assert sizes.nodes == frozenset()
    sizes.take(Event("DELETED", slice_("n64", device(T4))))
    assert len(sizes.nodes) == 64


async def test_what_was_known_stays_while_the_server_is_away(followed: tuple[ApiServer, PublishedSizes]) -> None:
    """Without the API server the last state holds."""
    server, sizes = followed
    await server.down()
    assert sizes.known() == (A100,)
    assert sizes.synced


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that is in an object."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in children for path in paths(child, (*at, key)))]


def put(obj: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with something else at a path."""
    if not path:
        return value
    result = copy.deepcopy(obj)
    target = result
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return result


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.none(), max_size=1), st.just({}),
    st.sampled_from(["-1", "0", "1m", "0.5", "1e999", "1e-999", "40961Ki", "9" * 300, [{}], ["x"], {"string": 5}]),
)  # fmt: skip


@given(st.sampled_from(paths(slice_("n", device(A100))["spec"])), JUNK)
async def test_slices_edited_by_hand(path: tuple[Any, ...], junk: Any) -> None:
    """Whatever somebody writes into a slice, the others still count, and no size or slot comes out that can't be."""
    bad = slice_("n", device(A100))
    bad = {"metadata": {"name": "bad"}, "spec": put(bad["spec"], path, junk)}
    sizes = PublishedSizes(None, "gpu.hami.io")  # type: ignore[arg-type]
    sizes.take(Event("ADDED", slice_("n2", device(T4))))
    sizes.take(Event("MODIFIED", bad))
    assert T4 in sizes.known()
    assert 1000 in sizes.slots()
    assert all(type(size.model) is str and size.memory_mib >= 1 for size in sizes.known())
    assert all(slot >= 1 for slot in sizes.slots())
    assert all(count >= 1 and kind.cores >= 0 for node in sizes.nodes for kind, count in node)
    assert sizes.has("GPU-0")
