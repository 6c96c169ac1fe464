"""Who is told of a GPU's condition, and how often."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import PodRef, read_claim
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import read_pod
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, What
from hami_kubeletplugin.health import events as module
from hami_kubeletplugin.health.events import ConditionEvents
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.claims.objects import GPUS, NODE, claim, container, pod, ref, result
from tests.unit.publish.fakes import Time
from tests.waiting import until

LOST = Condition(What.LOST, "it doesn't answer")
XID = Condition(What.XID, "Xid 31", "31")


def prepared() -> Prepared:
    """A claim of pod `p`."""
    obj = claim("c", [result()], pods=["p"])
    read = read_claim(obj, ref(obj), driver=DRIVER, node=NODE)
    its_pod = read_pod(pod("p", container("x", "c")))
    return plan(read, pods=[its_pod], neighbours=[], gpus=GPUS.by_device_name(), boot_id="b", driver=DRIVER)


class World:
    """An API server, and one GPU that a pod uses."""

    def __init__(self, server: ApiServer, api: KubeClient, claim: Prepared) -> None:
        self.server, self.api, self.time, self.claims = server, api, Time(), [claim]
        self.uuid = claim.shares[0].uuid
        self.now = 1_000_000.0
        self.start()

    def start(self) -> None:
        """A new daemon."""
        self.events = ConditionEvents(
            self.api,
            driver=DRIVER,
            node=NODE,
            claims=lambda: self.claims,
            devices=lambda: {self.uuid: "hami-gpu-0"},
            sleep=self.time.sleep,
            clock=lambda: self.now,
        )
        self.task = asyncio.create_task(self.events.run())

    async def stop(self) -> None:
        """It ends."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def say(self, *conditions: Condition, of: str = "") -> None:
        """These are the conditions now, and what has to be written is written."""
        await self.events.look({of or self.uuid: conditions} if conditions else {})
        await until(lambda: not self.events._waiting)

    @property
    def told(self) -> list[tuple[str, str, str, str]]:
        """Kind and name of what each Event is about, its type and its message."""
        return sorted(
            (e["involvedObject"]["kind"], e["involvedObject"]["name"], f"{e['type']} {e['reason']}", e["message"])
            for e in self.server.all("events")
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Namespaces `default` and that of the pod are there."""
    async with ApiServer() as server, KubeClient(Access(server.url)) as api:
        server.put("namespaces", {"metadata": {"name": "default"}})
        made = World(server, api, prepared())
        yield made
        await made.stop()


async def test_node_and_pods_hear_of_a_gpu_that_is_not_well(world: World) -> None:
    """Beginning and end: on the Node, where `kubectl describe node` looks, and on each pod that uses the GPU."""
    await world.say(LOST)
    await world.say()
    gpu = f"GPU hami-gpu-0 ({world.uuid})"
    assert world.told == [
        ("Node", NODE, "Normal GpuConditionEnded", f"{gpu}: lost is over"),
        ("Node", NODE, "Warning GpuCondition", f"{gpu}: lost: it doesn't answer"),
        ("Pod", "p", "Normal GpuConditionEnded", f"{gpu}: lost is over"),
        ("Pod", "p", "Warning GpuCondition", f"{gpu}: lost: it doesn't answer"),
    ]
    (node,) = {e["involvedObject"]["uid"] for e in world.server.all("events") if e["involvedObject"]["kind"] == "Node"}
    assert node == NODE


async def test_information_is_for_the_node_alone(world: World) -> None:
    """A program's own error needs nobody to act, and its pod knows; whichever number it has, it is told once an hour."""
    await world.say(XID)
    await world.say(replace(XID, value="13", message="Xid 13"))
    assert [each[:3] for each in world.told] == [("Node", NODE, "Normal GpuCondition")]
    world.now += 3600
    await world.say(XID)
    assert len(world.told) == 2


async def test_another_action_is_told(world: World) -> None:
    """That it needs a reboot and not a reset is news."""
    for value in ("gpu-reset", "node-reboot"):
        await world.say(Condition(What.ACTION, "act", value))
    assert len([each for each in world.told if each[0] == "Node"]) == 2


async def test_what_holds_for_all_gpus(world: World) -> None:
    """It is one Event of the Node, not one for each GPU; and every pod with a GPU hears of it."""
    await world.say(Condition(What.NOT_ANSWERING, "the driver hangs"), of=EVERY)
    assert [each[0] for each in world.told] == ["Node", "Pod"]
    assert all(each[3] == "all GPUs of this node: not-answering: the driver hangs" for each in world.told)


async def test_a_gpu_that_comes_and_goes_is_no_flood(world: World) -> None:
    """However often it happens in an hour, it is two Events of each object, and as many requests."""
    for _ in range(50):
        await world.say(LOST)
        await world.say()
    assert len(world.told) == world.server.requests["create", "events"] == 4


async def test_a_daemon_that_starts_anew_repeats_nothing(world: World) -> None:
    """It meets the Events of its predecessor."""
    await world.say(LOST)
    before = world.told
    await world.stop()
    world.start()
    await world.say(LOST)
    assert world.told == before


async def test_events_wait_for_the_api_server(world: World) -> None:
    """What happened while it was away is told when it is back, once; more than some hundreds are not kept."""
    world.server.fail(503, verb="create", resource="events")
    with capture_logs() as logs:
        await world.events.look({world.uuid: (LOST,)})
        await until(lambda: len(world.time.slept) > 3)
        world.server.mend()
        await until(lambda: len(world.told) == 2)
    assert len([entry for entry in logs if "can't be written" in entry["event"]]) == 1
    world.time.hold()
    world.server.fail(503, verb="create", resource="events")
    many = [replace(world.claims[0], pods=tuple(PodRef("default", f"p{n}", f"u{n}") for n in range(module.MOST + 50)))]
    world.claims = many
    await world.events.look({world.uuid: (LOST, Condition(What.ACTION, "reset"))})
    assert len(world.events._waiting) == module.MOST


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_an_event_that_nobody_wants_holds_up_no_other(world: World, status: int) -> None:
    """One that is refused for good, as in a namespace that is being deleted, is dropped, and the next one is written."""
    if status == 403:
        world.server.put("namespaces", {"metadata": {"name": "gone"}, "status": {"phase": "Terminating"}})
    elif status == 422:
        world.server.fail(422, verb="create", resource="events", times=1)
    gone = PodRef("gone" if status != 422 else "default", "q", "u")
    world.claims = [replace(world.claims[0], pods=(gone, *world.claims[0].pods))]
    await world.say(LOST)
    assert ("Pod", "p") in {each[:2] for each in world.told}
