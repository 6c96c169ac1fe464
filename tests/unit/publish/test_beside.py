"""publish.beside: who else gives out this node's GPUs, over HTTP, with a clock that the tests steer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.conditions import Condition, Conditions, Found, What
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.publish import beside as module
from hami_kubeletplugin.publish.beside import GONE, LOOK, Beside
from tests.unit.publish.fakes import TWO, gpu
from tests.waiting import settled, until

FIRST, SECOND = (each.uuid for each in TWO.gpus)
NODE = "n1"


class Clock:
    """A clock that goes on when somebody says so; who sleeps until then goes on with it."""

    def __init__(self) -> None:
        self.now, self.sleepers = 1000.0, list[tuple[float, asyncio.Event]]()

    def __call__(self) -> float:
        """The time now."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Until the clock is there."""
        woken = asyncio.Event()
        self.sleepers.append((self.now + seconds, woken))
        await woken.wait()

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for due, woken in self.sleepers:
            if due <= self.now:
                woken.set()
        self.sleepers = [(due, woken) for due, woken in self.sleepers if due > self.now]


class Scene:
    """A server with a Node, and one Beside."""

    def __init__(self, server: ApiServer, beside: Beside, board: Conditions, clock: Clock, told: list[Any]) -> None:
        self.server, self.beside, self.board, self.clock, self.told = server, beside, board, clock, told

    @property
    def published(self) -> list[str] | None:
        """UUIDs of what is to be published; None while nothing is known, or when the pool is withdrawn."""
        return [each.uuid for each in self.told[-1].gpus] if self.told and self.told[-1] else None

    def kinds(self, uuid: str) -> list[What]:
        """The conditions of a GPU."""
        return [each.what for each in self.board.of(uuid)]

    async def look(self) -> None:
        """Have the next look at the Node be taken."""
        before = self.server.requests["get", "nodes"]
        await until(lambda: self.clock.sleepers)
        self.clock.tick(LOOK)
        await until(lambda: self.server.requests["get", "nodes"] > before)
        await until(lambda: self.clock.sleepers)
        await settled()


@asynccontextmanager
async def scene(
    server: ApiServer,
    *,
    withhold: bool = True,
    name: str = "gpu.hami.io",
    real: bool = False,
    earlier: Mapping[str, Found] | None = None,
) -> AsyncIterator[Scene]:
    """One that runs, with two GPUs; what it has published is there, if it is to be real."""
    board, clock, told = Conditions(), Clock(), list[Any]()
    board.restore(earlier or {})

    def publish(inventory: Inventory | None) -> None:
        told.append(inventory)
        if real:
            server.put(
                "resourceslices", slice_(name, name, *(each.uuid for each in inventory.gpus) if inventory else ())
            )

    async with KubeClient(Access(server.url), timeout=5) as client:
        beside = Beside(
            client,
            driver=name,
            node=NODE,
            resources=frozenset({"nvidia.com/gpu"}),
            withhold=withhold,
            conditions=board,
            publish=publish,
            sleep=clock.sleep,
            clock=clock,
        )
        task = asyncio.create_task(beside.run())
        beside.offer(TWO)
        try:
            yield Scene(server, beside, board, clock, told)
            assert not task.done(), task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def plugin(server: ApiServer, amount: str) -> None:
    """Have the kubelet say how much a device plugin offers."""
    server.put("nodes", {"metadata": {"name": NODE}, "status": {"allocatable": {"nvidia.com/gpu": amount}}})


def slice_(name: str, driver: str, *uuids: str, pool: str = NODE, **where: object) -> dict[str, Any]:
    """A slice with GPUs."""
    devices = [{"name": f"gpu-{n}", "attributes": {"uuid": {"string": uuid}}} for n, uuid in enumerate(uuids)]
    spec = {"driver": driver, "pool": {"name": pool, "generation": 7, "resourceSliceCount": 1}, "devices": devices}
    return {"metadata": {"name": name}, "spec": spec | (where or {"nodeName": NODE})}


async def test_alone(server: ApiServer) -> None:
    """With nobody else all is published after one look; then each 20 s costs one GET, and nothing else."""
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        await until(lambda: server.requests["watch", "resourceslices"] == 2)
        before = server.requests.copy()
        for _ in range(5):
            await it.look()
        assert server.requests - before == {("get", "nodes"): 5}
        assert it.board.all.get() == {}


async def test_conditions_of_others_are_left_to_those_who_tell_them(server: ApiServer) -> None:
    """However often a GPU's health changes, the same GPUs are published once: slices follow conditions at a pace of their own."""
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        before = len(it.told)
        for number in range(20):
            it.board.report("nvml", {FIRST: [Condition(What.XID, "", str(number))]})
        it.beside.offer(TWO)
        assert len(it.told) == before
        it.board.report("other names", {FIRST: [Condition(What.GIVEN_OUT_TWICE, "", "old.name")]})
        assert it.published == [SECOND]


async def test_a_device_plugin_that_is_there(server: ApiServer) -> None:
    """Nothing is published, not for a moment, while a device plugin offers GPUs, and the condition says why."""
    plugin(server, "8")
    async with scene(server) as it:
        await until(lambda: it.published == [])
        await it.look()
        await it.look()
        assert all(not each.gpus for each in it.told)
        assert it.kinds(FIRST) == it.kinds(SECOND) == [What.GIVEN_OUT_TWICE]
        assert "nvidia.com/gpu: 8" in it.board.of(FIRST)[0].message


async def test_a_device_plugin_comes_and_goes(server: ApiServer) -> None:
    """GPUs are withheld at the next look, and come back when it is gone for good: a restart of the plugin is no end."""
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        plugin(server, "8")
        await it.look()
        assert it.published == []
        plugin(server, "0")
        await it.look()
        assert it.published == []
        plugin(server, "8")
        await it.look()
        plugin(server, "0")
        await it.look()
        assert it.published == []
        await it.look()
        assert it.published == [FIRST, SECOND]
        assert it.board.all.get() == {}


async def test_published_all_the_same(server: ApiServer) -> None:
    """Where the administrator says so the GPUs stay published, and the condition is there for people to see."""
    plugin(server, "8")
    async with scene(server, withhold=False) as it:
        await until(lambda: it.kinds(FIRST) == [What.GIVEN_OUT_TWICE])
        await until(lambda: it.published == [FIRST, SECOND])


async def test_another_driver_with_one_of_the_gpus(server: ApiServer) -> None:
    """Only that GPU is withheld, at once when the other driver publishes it, and until it has been gone for a while."""
    server.put("resourceslices", slice_("nic", "nic.example.com", "NIC-1"))
    server.put("resourceslices", slice_("elsewhere", "gpu.nvidia.com", FIRST, nodeName="n2"))
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        await until(lambda: server.requests["watch", "resourceslices"] == 2)
        server.put("resourceslices", slice_("theirs", "gpu.nvidia.com", SECOND, "GPU-of-nobody"))
        await until(lambda: it.published == [FIRST])
        assert [each.value for each in it.board.of(SECOND)] == ["gpu.nvidia.com"]
        server.put("resourceslices", slice_("theirs", "gpu.nvidia.com"))
        await it.look()
        assert it.published == [FIRST]
        it.clock.tick(GONE)
        await until(lambda: it.published == [FIRST, SECOND])


async def test_a_kubelet_that_restarts(server: ApiServer) -> None:
    """It deletes all slices of its node, the other driver's too, and these come back: our GPUs aren't published in between."""
    server.put("resourceslices", slice_("theirs", "gpu.nvidia.com", FIRST))
    async with scene(server) as it:
        await until(lambda: it.published == [SECOND])
        await until(lambda: server.requests["watch", "resourceslices"] == 2)
        server.remove("resourceslices", "theirs")
        await it.look()
        server.put("resourceslices", slice_("theirs-again", "gpu.nvidia.com", FIRST))
        await it.look()
        await it.look()
        assert all([each.uuid for each in told.gpus] == [SECOND] for told in it.told)


async def test_two_of_ours_with_different_names(server: ApiServer) -> None:
    """Who comes second stays back, and who was first goes on: they don't drive each other away in turns."""
    server.put("resourceslices", slice_("first", "first.example.com", FIRST, SECOND))
    async with scene(server, name="second.example.com") as second:
        await until(lambda: second.published == [])
        server.put("resourceslices", slice_("second", "second.example.com"))
        async with scene(server, name="first.example.com") as first:
            await until(lambda: first.published == [FIRST, SECOND])
            for _ in range(3):
                await second.look()
            assert (first.published, second.published) == ([FIRST, SECOND], [])


async def test_two_of_ours_that_start_at_once(server: ApiServer) -> None:
    """Both may publish, see each other and stay back, but not in turns for ever: soon one has the GPUs, and keeps them."""

    async def lone() -> bool:
        """Whether one of them has the GPUs alone, some time later."""
        for each in (a, b):
            each.clock.tick(1.0)
        await asyncio.sleep(0.01)
        return [bool(a.published), bool(b.published)].count(True) == 1

    async with scene(server, name="a.example.com", real=True) as a, scene(server, name="b.example.com", real=True) as b:
        await until(lambda: a.published == b.published == [])
        async with asyncio.timeout(30):
            while not await lone():
                pass
        winner = a if a.published else b
        assert [await lone() and bool(winner.published) for _ in range(100)] == [True] * 100


async def test_a_slice_that_hides_the_node(server: ApiServer) -> None:
    """A slice of our driver and pool that is no node's is named, also as the value of the condition, until it is deleted."""
    server.put("resourceslices", slice_("of-another-pool", "gpu.hami.io", pool="n2", allNodes=True))
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        await until(lambda: server.requests["watch", "resourceslices"] == 2)
        server.put("resourceslices", slice_("ghost", "gpu.hami.io", allNodes=True))
        await until(lambda: [each.value for each in it.board.of(FIRST)] == ["ghost"])
        assert it.kinds(SECOND) == [What.HIDDEN]
        server.remove("resourceslices", "ghost")
        await until(lambda: not it.board.all.get())


async def test_cordoned(server: ApiServer) -> None:
    """A GPU that the annotation names is cordoned at the next look, and when it is taken out it isn't; it stays published."""
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        server.put("nodes", {"metadata": {"name": NODE, "annotations": {"hami.io/device-cordon": f"{SECOND}, "}}})
        await it.look()
        assert (it.kinds(FIRST), it.kinds(SECOND)) == ([], [What.CORDONED])
        assert it.published == [FIRST, SECOND]
        server.put("nodes", {"metadata": {"name": NODE}})
        await it.look()
        assert it.board.all.get() == {}


async def test_what_is_cordoned_and_not_there(server: ApiServer) -> None:
    """A UUID that no GPU has is said once, with those that there are."""
    server.put("nodes", {"metadata": {"name": NODE, "annotations": {"hami.io/device-cordon": "GPU-typo"}}})
    with capture_logs() as logs:
        async with scene(server) as it:
            await until(lambda: it.published == [FIRST, SECOND])
            await it.look()
            await it.look()
    said = [entry for entry in logs if "annotated" in entry]
    assert [(entry["annotated"], entry["gpus"]) for entry in said] == [(["GPU-typo"], sorted((FIRST, SECOND)))]


async def test_gpus_that_come_later(server: ApiServer) -> None:
    """What is known of others holds for GPUs that are found later, too; without a driver there is nothing to say."""
    server.put("resourceslices", slice_("theirs", "gpu.nvidia.com", gpu(2).uuid))
    async with scene(server) as it:
        await until(lambda: it.published == [FIRST, SECOND])
        it.beside.offer(Inventory((*TWO.gpus, gpu(2))))
        assert it.published == [FIRST, SECOND]
        assert it.kinds(gpu(2).uuid) == [What.GIVEN_OUT_TWICE]
        it.beside.offer(None)
        assert it.told[-1] is None


async def reached(server: ApiServer, ready: Callable[[Scene], bool], **fault: Any) -> None:
    """Whether it comes to that with a fault."""
    server.fail(**fault)
    async with scene(server) as it:
        await until(lambda: ready(it))


async def test_rights_that_lack(server: ApiServer) -> None:
    """Who has a role of his own without one of these rights publishes as before, and the log says what can't be told."""
    for fault in ({"resource": "nodes"}, {"resource": "resourceslices", "verb": "list"}):
        with capture_logs() as logs:
            await reached(server, lambda it: it.published == [FIRST, SECOND], status=403, **fault)
        assert any(fault["resource"] in str(entry.get("error")) for entry in logs)
        server.mend()


async def test_an_api_server_that_is_away(server: ApiServer) -> None:
    """Nothing is published before it can be asked who else is there; afterwards what was known stays while it is away."""
    plugin(server, "8")
    await server.down()
    async with scene(server) as it:
        await until(lambda: len(it.clock.sleepers) == 3)
        assert it.told == []
        await server.up()
        it.clock.tick(1)
        await until(lambda: it.published == [])
        await server.down()
        it.clock.tick(LOOK)
        await until(lambda: len(it.clock.sleepers) == 3)
        assert it.published == []
        assert it.kinds(FIRST) == [What.GIVEN_OUT_TWICE]


async def test_what_an_earlier_run_knew(server: ApiServer) -> None:
    """A cordon holds over a restart until the Node has been read again: no pod slips in between."""
    earlier = {"beside": {FIRST: (Condition(What.CORDONED, "cordoned"),)}}
    await server.down()
    async with scene(server, earlier=earlier) as it:
        await until(lambda: len(it.clock.sleepers) == 3)
        assert it.kinds(FIRST) == [What.CORDONED]
        await server.up()
        it.clock.tick(1)
        await until(lambda: it.published == [FIRST, SECOND])
        assert it.kinds(FIRST) == []


async def test_a_node_that_can_not_be_read(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that answers, but never for the Node, keeps the GPUs back for a while and not for ever."""
    monkeypatch.setattr(module, "FIRST_LOOK", 0.2)
    server.fail(503, resource="nodes")
    async with scene(server) as it:
        await until(lambda: server.requests["watch", "resourceslices"] == 2)
        await until(lambda: it.published == [FIRST, SECOND])
