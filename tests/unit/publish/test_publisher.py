"""publish.publisher: what it publishes, and how it repairs it. Over HTTP; waits are steered by the tests."""

from functools import partial

from structlog.testing import capture_logs

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.publish import publisher as module
from tests.unit.publish.fakes import MANY, TWO, World, gpu, running
from tests.waiting import until


async def test_first_publish(world: World) -> None:
    """Two GPUs are one write, without any wait before it; the node owns the slice; the health stream hears of both."""
    assert world.devices == ["hami-gpu-0", "hami-gpu-1"]
    assert world.server.writes == 1
    assert world.time.slept == []
    assert world.slices[0]["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert world.told == {"hami-gpu-0": "Healthy", "hami-gpu-1": "Healthy"}
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
    """66 GPUs are two slices of one generation, and a change of one is one more write."""
    async with running(server) as world:
        world.publisher.offer(MANY)
        await until(world.publisher.first_published.is_set)
        assert [len(s["spec"]["devices"]) for s in world.slices] == [64, 2]
        assert {(s["spec"]["pool"]["generation"], s["spec"]["pool"]["resourceSliceCount"]) for s in world.slices} == {
            (1, 2)
        }
        world.publisher.offer(Inventory((*MANY.gpus[:-1], gpu(65, numa_node=7))))
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
    assert world.told == {}


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
        await until(lambda: len(world.devices) == 66)
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
    await until(lambda: world.told == {})
    await world.quiet()
    assert [item["metadata"]["name"] for item in world.slices] == ["a", "b"]


async def test_fight_with_another_writer_is_bounded(world: World) -> None:
    """Somebody who undoes each of our repairs makes us slower and slower, down to one write a minute, not busier."""

    def repaired(writes: int) -> bool:
        return world.server.writes > writes and len(world.devices) == 2

    for _ in range(10):
        writes = world.server.writes
        edited = world.slices[0]
        edited["spec"]["devices"].pop()
        world.server.put("resourceslices", edited)
        await until(partial(repaired, writes))
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
