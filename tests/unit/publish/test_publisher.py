"""publish.publisher: the loop, against an API server over HTTP. Waits are steered by the tests."""

from collections.abc import AsyncIterator

import pytest
from publish_fakes import World, gpu, running, until
from structlog.testing import capture_logs

from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.publish import publisher as module
from hami_kubeletplugin.standin.api_server import ApiServer

TWO = Inventory((gpu(0), gpu(1)))
MANY = Inventory(tuple(gpu(n) for n in range(130)))


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


async def test_first_publish(world: World) -> None:
    """Two GPUs are one write, without any wait before it; the node owns the slice; the health stream hears of both."""
    assert world.devices == ["hami-gpu-0", "hami-gpu-1"]
    assert world.server.writes == 1
    assert world.time.slept == []
    assert world.slices[0]["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert world.publisher.published() == (("n1", "hami-gpu-0"), ("n1", "hami-gpu-1"))
    assert world.publisher.published_at is not None


async def test_nothing_happens_before_the_first_offer(server: ApiServer) -> None:
    """Until discovery has answered, the slices of an earlier run are not touched; the server is not even asked."""
    async with running(server) as world:
        await world.quiet()
        assert server.requests.total() == 0
        assert not world.publisher.first_published.is_set()


async def test_unchanged_costs_nothing(world: World) -> None:
    """The same GPUs offered again, or found by another daemon's start, cost no write."""
    world.publisher.offer(Inventory((gpu(0), gpu(1))))
    await world.quiet()
    assert world.server.writes == 1
    async with running(world.server) as successor:
        successor.publisher.offer(TWO)
        await until(successor.publisher.first_published.is_set)
        await successor.quiet()
        assert world.server.writes == 1


async def test_change_costs_one_write(world: World) -> None:
    """A GPU more is one write at once, of the slice that it is in, and the generation stays."""
    world.publisher.offer(Inventory((*TWO.gpus, gpu(2))))
    await until(lambda: len(world.devices) == 3)
    await world.quiet()
    assert (world.server.writes, world.time.slept) == (2, [])
    assert world.slices[0]["spec"]["pool"]["generation"] == 1


async def test_many_gpus_are_split(server: ApiServer) -> None:
    """130 GPUs are two slices of one generation, and a change of one is one more write."""
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(world.publisher.first_published.is_set)
        assert [len(s["spec"]["devices"]) for s in world.slices] == [128, 2]
        assert {(s["spec"]["pool"]["generation"], s["spec"]["pool"]["resourceSliceCount"]) for s in world.slices} == {
            (1, 2)
        }
        world.publisher.offer(Inventory((*MANY.gpus[:-1], gpu(129, numa_node=7))))
        await until(lambda: server.writes == 3)
        await world.quiet()
        assert (server.writes, server.requests["update", "resourceslices"]) == (3, 1)


async def test_no_gpus_and_no_driver(world: World) -> None:
    """A node without GPUs has an empty pool; one without a driver has none, and the health stream is empty too."""
    world.publisher.offer(Inventory())
    await until(lambda: world.devices == [])
    assert len(world.slices) == 1
    world.publisher.offer(None)
    await until(lambda: world.slices == [])
    await world.quiet()
    assert world.publisher.published() == ()


async def test_slices_stay_at_shutdown(server: ApiServer) -> None:
    """A daemon that stops leaves its slices, so that an update of it takes nothing away."""
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
    assert [d["name"] for d in server.all("resourceslices")[0]["spec"]["devices"]] == ["hami-gpu-0", "hami-gpu-1"]


async def test_kubelets_wipe_is_repaired_in_one_go(server: ApiServer) -> None:
    """All slices deleted at once, as by a kubelet that starts: after one second they are back, each written once."""
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(lambda: server.requests["watch", "resourceslices"])
        await until(lambda: server.writes == 2)
        world.time.hold()
        for item in world.slices:
            server.remove("resourceslices", item["metadata"]["name"])
        await until(lambda: world.time.slept == [1.0])
        await world.quiet()
        assert server.writes == 2
        world.time.release()
        await until(lambda: len(world.devices) == 130)
        await world.quiet()
        assert (server.writes, world.time.slept) == (4, [1.0])


async def test_foreign_edit_is_undone(world: World) -> None:
    """An edit by somebody else is undone after a second, with one write and a warning."""
    right = world.slices[0]["spec"]
    edited = world.slices[0]
    edited["spec"]["devices"].pop()
    with capture_logs() as logs:
        world.server.put("resourceslices", edited)
        await until(lambda: world.slices[0]["spec"] == right)
        await world.quiet()
    assert (world.server.writes, world.time.slept) == (2, [1.0])
    assert [entry["log_level"] for entry in logs if "restored" in entry["event"]] == ["warning"]


async def test_slices_of_others_are_left_alone(world: World) -> None:
    """Slices of another driver, or of our driver on another node, are neither changed nor deleted."""
    for name, driver, node in (("a", "other.io", "n1"), ("b", "gpu.hami.io", "n2")):
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
        world.server.put("resourceslices", {"metadata": {"name": name}, "spec": spec})
    world.publisher.offer(None)
    await until(lambda: world.publisher.published() == ())
    await world.quiet()
    assert [item["metadata"]["name"] for item in world.slices] == ["a", "b"]


async def test_fight_with_another_writer_is_bounded(world: World) -> None:
    """Somebody who undoes each of our repairs makes us slower and slower, down to one write a minute, not busier."""
    for _ in range(10):
        writes = world.server.writes
        edited = world.slices[0]
        edited["spec"]["devices"].pop()
        world.server.put("resourceslices", edited)
        await until(lambda writes=writes: world.server.writes > writes and len(world.devices) == 2)
        await world.quiet()
    assert world.time.slept == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert world.server.writes == 11
    world.time.now += module.REPAIR_QUIET + 1
    world.server.remove("resourceslices", world.slices[0]["metadata"]["name"])
    await until(lambda: len(world.devices) == 2)
    assert world.time.slept[-1] == 1


async def test_offer_does_not_wait_for_a_repair(world: World) -> None:
    """News from the hardware are written at once, also while a repair is being held back."""
    world.time.hold()
    edited = world.slices[0]
    edited["spec"]["devices"].pop()
    world.server.put("resourceslices", edited)
    await until(lambda: world.time.slept)
    world.publisher.offer(Inventory((gpu(5),)))
    await until(lambda: world.devices == ["hami-gpu-5"])


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
    first, longest = module.ERROR_WAIT
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
    """A server that asks for 20 seconds gets them."""
    server.fail(429, times=1, headers={"Retry-After": "20"})
    async with running(server) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        assert world.time.slept == [20]


@pytest.mark.parametrize("verb", ["get", "list", "watch", "create"])
async def test_failures_at_each_step(server: ApiServer, verb: str) -> None:
    """Whichever request fails, a later attempt makes it right, without duplicates."""
    server.fail(500, verb=verb, times=2)
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(lambda: len(world.devices) == 130 and server.requests["watch", "resourceslices"])
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


async def test_watch_that_ends_goes_on(world: World) -> None:
    """A watch that the server ends is continued where it was: no list, no write, and changes are still seen."""
    for count in (2, 3):
        world.server.drop_watches()
        await until(lambda count=count: world.server.requests["watch", "resourceslices"] >= count)
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
            assert world.publisher.published() == ()
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
        await until(lambda: server.requests["watch", "resourceslices"] and len(world.devices) == 130)
        world.publisher.offer(Inventory((*MANY.gpus[:-1], gpu(129, numa_node=7))))
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
