"""publish.publisher: API servers that are away, old, strict or lossy. Over HTTP; waits are steered by the tests."""

from functools import partial

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.kube.retry import ERROR_WAIT
from hami_kubeletplugin.publish import publisher as module
from tests.unit.publish.fakes import MANY, TWO, World, gpu, running
from tests.waiting import until


async def test_server_that_is_away_costs_only_the_wait(world: World) -> None:
    """While the API server is away there is one attempt per growing wait, and one warning; then all is as it was."""
    right = world.slices[0]["spec"]
    with capture_logs() as logs:
        await world.server.down()
        await until(lambda: len(world.time.slept) > 13)
        world.server.remove("resourceslices", world.slices[0]["metadata"]["name"])
        await world.server.up()
        await until(lambda: world.slices and world.slices[0]["spec"] == right)
        await world.quiet()
    first, longest = ERROR_WAIT
    waits = [wait for wait in world.time.slept if wait != 1][:12]  # 1 s is the least between two watches
    assert first / 2 <= waits[0] <= first
    assert all(longest / 2 <= wait <= longest for wait in waits[8:])
    assert [entry["log_level"] for entry in logs if "can't be published" in entry["event"]] == ["warning"]
    assert [entry["event"] for entry in logs if "again" in entry["event"]][
        -1
    ] == "ResourceSlices can be published again"
    assert world.server.writes == 2


async def test_gpu_found_while_the_server_is_away(world: World) -> None:
    """What changes while the API server is away is published when it is back."""
    await world.server.down()
    await until(lambda: world.time.slept)
    world.publisher.offer(Inventory((gpu(7),)))
    await world.server.up()
    await until(lambda: world.devices == ["hami-gpu-7"])


async def test_retry_after_is_kept(server: ApiServer) -> None:
    """A server that asks for 20 seconds gets them, and a bit that is everybody's own on top."""
    server.fail(429, times=1, headers={"Retry-After": "20"})
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        assert 20.4 <= world.time.slept[0] <= 20.8


async def test_retry_after_has_a_limit(server: ApiServer) -> None:
    """A server, or a proxy before it, that asks for a day gets two minutes: GPUs that nobody can use are worse."""
    server.fail(429, times=1, headers={"Retry-After": "86400"})
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        assert 120.4 <= world.time.slept[0] <= 120.8


@pytest.mark.parametrize("verb", ["get", "list", "watch", "create"])
async def test_failures_at_each_step(server: ApiServer, verb: str) -> None:
    """Whichever request fails, a later attempt makes it right, without duplicates."""
    server.fail(500, verb=verb, times=2)
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(lambda: len(world.devices) == 66 and server.requests["watch", "resourceslices"])
        await world.quiet()
        assert len(world.slices) == 2


async def test_missing_node_is_waited_for(server: ApiServer) -> None:
    """Without its Node object nothing is published and the warning names the node; when it appears, all is."""
    server.remove("nodes", "n1")
    with capture_logs() as logs:
        async with running(server) as world:
            world.publisher.offer(TWO)
            await until(lambda: len(world.time.slept) > 2)
            assert world.slices == []
            server.put("nodes", {"metadata": {"name": "n1"}})
            await until(lambda: len(world.devices) == 2)
    errors = [entry["error"] for entry in logs if "error" in entry]
    assert len(errors) == 1
    assert "node n1 does not exist" in errors[0]
    assert "--node-name" in errors[0]


async def test_replaced_node_takes_its_slices_along(world: World) -> None:
    """When the Node object was replaced and its slices were collected, the new ones belong to the new node."""
    world.server.put("nodes", {"metadata": {"name": "n1", "uid": "second"}})
    world.server.remove("resourceslices", world.slices[0]["metadata"]["name"])
    await until(lambda: world.slices)
    assert world.slices[0]["metadata"]["ownerReferences"][0]["uid"] == "second"


async def test_forbidden_says_what_to_allow(server: ApiServer) -> None:
    """Missing RBAC rights are one warning with the verb and the resource, and work once they are given."""
    server.fail(403, verb="create")
    with capture_logs() as logs:
        async with running(server) as world:
            world.publisher.offer(TWO)
            await until(lambda: len(world.time.slept) > 3)
            server.mend()
            await until(lambda: len(world.devices) == 2)
    errors = [entry["error"] for entry in logs if "error" in entry]
    assert len(errors) == 1
    assert "allow verb create on resourceslices.resource.k8s.io in the ClusterRole" in errors[0]


async def test_watch_that_is_refused(server: ApiServer) -> None:
    """Who may list and create but not watch publishes all the same, and mends by listing; it is said once, and tried again."""
    server.fail(403, verb="watch", resource="resourceslices")
    with capture_logs() as logs:
        async with running(server) as world:
            world.publisher.offer(TWO)
            await until(world.publisher.first_published.is_set)
            world.publisher.offer(Inventory((*TWO.gpus, gpu(2))))
            await until(lambda: len(world.devices) == 3)
            server.remove("resourceslices", world.slices[0]["metadata"]["name"])
            await until(lambda: len(world.devices) == 3)
            await until(lambda: len(world.time.slept) > 12)
            server.mend()
            before = server.requests["watch", "resourceslices"]
            await until(lambda: server.requests["watch", "resourceslices"] > before)
            await world.quiet()
            server.put("nodes", {"metadata": {"name": "another"}})
            server.store.bookmark()
            await until(lambda: [each for each in logs if "watched again" in each["event"]])
    refused = [entry for entry in logs if "may not be watched" in entry["event"]]
    assert len(refused) == 1
    assert "allow verb watch on resourceslices.resource.k8s.io" in refused[0]["error"]
    assert max(world.time.slept) > 4 * ERROR_WAIT[0], "the waits grow"


async def test_time_of_what_is_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a healthy node, where nothing changes for days, the time at which the slices were known right goes on."""
    monkeypatch.setattr("time.time", lambda: 10.0**12)
    await world.quiet()
    world.server.put("nodes", {"metadata": {"name": "another"}})
    world.server.store.bookmark()
    await until(lambda: world.publisher.published_at == 10.0**12)


async def test_watch_that_ends_goes_on(world: World) -> None:
    """A watch that the server ends is continued where it was: no list, no write, and changes are still seen."""

    def watched(times: int) -> bool:
        return world.server.requests["watch", "resourceslices"] >= times

    for times in (2, 3):
        world.server.drop_watches()
        await until(partial(watched, times))
    assert world.server.requests["list", "resourceslices"] == 1
    assert world.server.writes == 1
    assert all(wait == 1 for wait in world.time.slept)
    world.server.remove("resourceslices", world.slices[0]["metadata"]["name"])
    await until(lambda: len(world.devices) == 2)


async def test_watch_that_is_too_old_lists_again(world: World) -> None:
    """When the server has forgotten where we were, we list again; nothing is written for it."""
    world.server.store.compact()
    world.server.drop_watches()
    await until(lambda: world.server.requests["list", "resourceslices"] == 2)
    await world.quiet()
    assert world.server.writes == 1


async def test_old_kubernetes_is_refused(server: ApiServer) -> None:
    """On 1.34 our slices are withdrawn, others stay, one error says why; after an upgrade all is published."""
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
    spec = {"driver": "other.io", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}}
    server.put("resourceslices", {"metadata": {"name": "other"}, "spec": spec})
    server.version = (1, 34)
    with capture_logs() as logs:
        async with running(server) as world:
            world.publisher.offer(TWO)
            await until(lambda: len(world.time.slept) > 3)
            assert [item["metadata"]["name"] for item in world.slices] == ["other"]
            assert world.told == {}
            assert not world.publisher.first_published.is_set()
            assert all(abs(wait - module.RECHECK) <= 30 for wait in world.time.slept)
            server.version = (1, 35)
            await until(world.publisher.first_published.is_set)
    refusals = [entry for entry in logs if "1.34 is refused" in entry["event"]]
    assert [entry["log_level"] for entry in refusals] == ["error"]
    assert "1.35 or newer" in refusals[0]["event"]


async def test_downgrade_while_running_is_noticed(world: World) -> None:
    """An API server that comes back as 1.34 is refused too, once its watch has ended."""
    world.server.version = (1, 34)
    world.server.drop_watches()
    await until(lambda: world.slices == [])


@pytest.mark.parametrize("api", ["v1", "v1beta2", "v1beta1"])
async def test_every_api_version(server: ApiServer, api: str) -> None:
    """Publishing and repair work on servers with any one version of the API."""
    server.api_versions = (api,)
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(lambda: server.requests["watch", "resourceslices"] and world.devices)
        world.server.remove("resourceslices", world.slices[0]["metadata"]["name"])
        await until(lambda: len(world.devices) == 2)
        await world.quiet()
        assert server.requests["create", "resourceslices"] == 2


async def test_dropped_fields_name_their_gate(server: ApiServer) -> None:
    """A gate that is off is named once, and what the server keeps is then right: changes and repairs cost one write."""
    server.gates_off = frozenset({"DRAConsumableCapacity"})
    with capture_logs() as logs:
        async with running(server) as world:
            world.publisher.offer(TWO)
            await until(lambda: server.requests["watch", "resourceslices"] and world.devices)
            await world.quiet()
            assert (server.writes, len(world.devices)) == (1, 2)
            assert "allowMultipleAllocations" not in world.slices[0]["spec"]["devices"][0]
            world.publisher.offer(Inventory((gpu(0),)))
            await until(lambda: world.devices == ["hami-gpu-0"])
            await world.quiet()
            assert server.writes == 2
            edited = world.slices[0]
            edited["spec"]["devices"][0]["attributes"].pop("uuid")
            server.put("resourceslices", edited)
            await until(lambda: "uuid" in world.slices[0]["spec"]["devices"][0]["attributes"])
            await world.quiet()
            assert server.writes == 3
    told = [entry for entry in logs if "dropped" in entry["event"]]
    assert [entry["log_level"] for entry in told] == ["error"]
    assert "DRAConsumableCapacity" in told[0]["event"]
    assert "allowMultipleAllocations" in told[0]["fields"]


async def test_slices_without_dropped_fields_stay(server: ApiServer) -> None:
    """With a gate off, too, a change in one of two slices is one write of that slice."""
    server.gates_off = frozenset({"DRAConsumableCapacity"})
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(lambda: server.requests["watch", "resourceslices"] and len(world.devices) == 66)
        world.publisher.offer(Inventory((*MANY.gpus[:-1], gpu(65, numa_node=7))))
        await until(lambda: server.requests["update", "resourceslices"])
        await world.quiet()
        assert server.writes == 3


async def test_gate_that_is_turned_on_is_used(server: ApiServer) -> None:
    """After a restart of the API server with the gate on, the devices are published as they should be."""
    server.gates_off = frozenset({"DRAConsumableCapacity"})
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        await server.down()
        server.gates_off = frozenset()
        await server.up()
        await until(lambda: world.slices[0]["spec"]["devices"][0].get("allowMultipleAllocations"))


async def test_conflicts_end_well(server: ApiServer) -> None:
    """A write that somebody else's crossed is tried again from what is there now."""
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        server.fail(409, verb="update", times=2)
        world.publisher.offer(Inventory((gpu(0),)))
        await until(lambda: world.devices == ["hami-gpu-0"])
