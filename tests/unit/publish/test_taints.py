"""Conditions as taints, and what becomes of them on each kind of API server."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.api.taint_settings import DEFAULT_EFFECTS
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.api_slices import add_times, check_slice
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, Conditions, What
from hami_kubeletplugin.publish.devices import Device, devices
from hami_kubeletplugin.publish.slices import Pool, reconcile, split
from hami_kubeletplugin.publish.taints import allocatable, tainted
from tests.unit.publish.fakes import MANY, TWO, World, gpu, running
from tests.waiting import until

FIRST, SECOND = (each.uuid for each in TWO.gpus)
WAITS = Condition(What.ACTION, "reset it", "gpu-reset")
TOLD = Condition(What.XID, "Xid 31", "31")


def report(world: World, conditions: Conditions, **found: list[Condition]) -> None:
    """Have conditions of the first or second GPU on the board, and the publisher told."""
    uuids = {"first": FIRST, "second": SECOND, "every": EVERY}
    conditions.report("test", {uuids[name]: each for name, each in found.items()})
    world.publisher.conditions_changed()


def taints(world: World) -> dict[str, list[tuple[str, str, str]]]:
    """Key, value and effect of the taints of each published device."""
    return {
        device["name"]: [(t["key"], t.get("value", ""), t["effect"]) for t in device.get("taints", ())]
        for item in world.slices
        for device in item["spec"].get("devices", [])
    }


def test_every_kind_has_an_effect_and_none_ends_pods() -> None:
    """Options and conditions name the same kinds, no default evicts, and all of them together fit a device."""
    assert list(DEFAULT_EFFECTS) == list(What)
    assert "NoExecute" not in DEFAULT_EFFECTS.values()
    assert len(What) <= 16


@pytest.mark.parametrize(
    ("value", "stands"),
    [("31", "31"), ("", None), ("a b/c", "a-b-c"), ("-.x._", "x"), ("x" * 100, "x" * 63), ("x" * 62 + "-y", "x" * 62)],
)
def test_values_are_label_values(value: str, stands: str | None) -> None:
    """Whatever a source says, the API server takes the slice."""
    (device,) = tainted(devices((gpu(0),), Sharing()), {FIRST: (Condition(What.XID, "", value),)}, DEFAULT_EFFECTS)
    assert device["taints"][0].get("value") == stands
    (slice_,) = (write.slice for write in reconcile(Pool("gpu.hami.io", "n1", "uid"), [[device]], []))
    slice_["metadata"]["name"] = "s"
    check_slice(slice_, None)


async def test_conditions_are_taints(server: ApiServer) -> None:
    """Each condition is a taint of its GPU, or of all, with the effect of its kind; when it ends, its taint does."""
    conditions = Conditions()
    async with running(server, conditions=conditions, effects={**DEFAULT_EFFECTS, "cordoned": "Off"}) as world:
        report(world, conditions, first=[WAITS, TOLD], every=[Condition(What.CORDONED, "")])
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        assert taints(world) == {
            "hami-gpu-0": [
                ("gpu.hami.io/recovery-action", "gpu-reset", "NoSchedule"),
                ("gpu.hami.io/xid", "31", "None"),
            ],
            "hami-gpu-1": [],
        }
        assert world.told == {"hami-gpu-0": "Unhealthy", "hami-gpu-1": "Healthy"}
        report(world, conditions, first=[TOLD])
        await until(lambda: len(taints(world)["hami-gpu-0"]) == 1)
        assert world.told["hami-gpu-0"] == "Healthy"
        await world.quiet()
        assert server.writes == 2
        assert world.slices[0]["spec"]["pool"]["generation"] == 1


async def test_the_kubelet_is_told_with_the_api_server_away(server: ApiServer) -> None:
    """What is said of a GPU reaches the kubelet at once, whether or not anything can be published."""
    conditions = Conditions()
    await server.down()
    async with running(server, conditions=conditions) as alone:
        alone.time.hold()
        alone.publisher.offer(TWO)
        alone.publisher.know({"hami-gpu-0": FIRST})
        assert alone.told == {}
        report(alone, conditions, first=[WAITS], second=[WAITS])
        assert [each for each in alone.publisher.health.get() if each.message != "reset it"] == []
        assert alone.told == {"hami-gpu-0": "Unhealthy"}


async def test_before_taints_a_gpu_leaves(server: ApiServer) -> None:
    """On 1.35 one on which nothing new may be put is not published; one with mere information is; pods of both are told."""
    server.version = (1, 35)
    conditions = Conditions()
    async with running(server, conditions=conditions) as world:
        world.publisher.offer(MANY)
        await until(world.publisher.first_published.is_set)
        assert len(world.slices) == 1
        report(world, conditions, first=[WAITS], second=[TOLD])
        await until(lambda: "hami-gpu-0" not in world.devices)
        assert len(world.devices) == 65
        assert world.told["hami-gpu-0"] == "Unhealthy"
        report(world, conditions)
        await until(lambda: "hami-gpu-0" in world.devices)


async def test_a_server_that_drops_taints(server: ApiServer) -> None:
    """With its gate off, which is said once, the GPU leaves, and does not come back for a moment in each new session."""
    server.gates_off = frozenset({"DRADeviceTaints"})
    conditions = Conditions()
    with capture_logs() as logs:
        async with running(server, conditions=conditions) as world:
            world.publisher.offer(TWO)
            await until(world.publisher.first_published.is_set)
            report(world, conditions, first=[WAITS], second=[TOLD])
            await until(lambda: world.devices == ["hami-gpu-1"])
            await world.quiet()
            writes = server.writes
            server.store.compact()
            server.drop_watches()
            await until(lambda: server.requests["list", "resourceslices"] == 2)
            await world.quiet()
            assert (server.writes, world.devices) == (writes, ["hami-gpu-1"])
            report(world, conditions)
            await until(lambda: world.devices == ["hami-gpu-0", "hami-gpu-1"])
    told = [entry["event"] for entry in logs if "DRADeviceTaints" in entry["event"]]
    assert len(told) == 1


async def test_a_restart_keeps_the_times(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that starts, and a change of something else, leave a taint's time as it was: tolerations count from it."""
    conditions = Conditions()
    async with running(server, conditions=conditions) as world:
        report(world, conditions, first=[WAITS])
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
    changed = copy.deepcopy(world.slices[0])
    changed["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2020-01-01T00:00:00Z"
    server.put("resourceslices", changed)
    before = server.writes
    async with running(server, conditions=conditions) as world:
        world.publisher.offer(TWO)
        await until(world.publisher.first_published.is_set)
        await world.quiet()
        assert server.writes == before
        report(world, conditions, first=[WAITS, TOLD])
        await until(lambda: server.writes == before + 1)
    times = {t["key"]: t["timeAdded"] for t in world.slices[0]["spec"]["devices"][0]["taints"]}
    assert times["gpu.hami.io/recovery-action"] == "2020-01-01T00:00:00Z"
    assert times["gpu.hami.io/xid"] > "2020-01-01T00:00:00Z"


async def test_a_node_of_many_gpus_from_before(server: ApiServer) -> None:
    """More than 64 devices in one slice, as an older version wrote them, are split under a new generation; a taint then fits."""
    conditions, pool = Conditions(), Pool("gpu.hami.io", "n1", "node-uid")
    (write,) = reconcile(pool, split(devices(MANY.gpus, Sharing()), 128), [])
    server.put("resourceslices", write.slice | {"metadata": {**write.slice["metadata"], "name": "00000-old"}})
    async with running(server, conditions=conditions) as world:
        report(world, conditions, first=[WAITS])
        world.publisher.offer(MANY)
        await until(lambda: len(world.devices) == 66)
        await until(lambda: taints(world)["hami-gpu-0"])
        assert {item["spec"]["pool"]["generation"] for item in world.slices} == {2}


TAINTS = st.sets(st.sampled_from([("xid", "1"), ("xid", "2"), ("lost", "")]), max_size=2)
STATES = st.lists(st.tuples(TAINTS, TAINTS, st.booleans()), min_size=1, max_size=6)


@given(STATES)
def test_times_follow_the_taints(states: list[tuple[set[tuple[str, str]], set[tuple[str, str]], bool]]) -> None:
    """A taint has the time of the write since which it is there without a break, whichever slice its device is in."""
    pool, slices, expected = Pool("gpu.hami.io", "n1", "uid"), dict[str, dict[str, Any]](), dict[tuple[str, ...], str]()
    for now, (of_a, of_b, swapped) in enumerate(states):
        wanted = {name: _device(name, found) for name, found in (("a", of_a), ("b", of_b))}
        parts = [[wanted[name]] for name in ("ba" if swapped else "ab")]
        for write in reconcile(pool, parts, list(slices.values())):
            stored = copy.deepcopy(write.slice)
            name = stored["metadata"].setdefault("name", f"{stored['metadata'].get('generateName')}{now}")
            if write.verb == "delete":
                del slices[name]
                continue
            for device in stored["spec"]["devices"]:
                for taint in device.get("taints", ()):
                    taint.setdefault("timeAdded", f"{now:04}")
            slices[name] = stored
        there = {
            (device["name"], taint["key"], taint["value"]): taint["timeAdded"]
            for item in slices.values()
            for device in item["spec"]["devices"]
            for taint in device.get("taints", ())
        }
        given_now = {(name, *each) for name, found in (("a", of_a), ("b", of_b)) for each in found}
        expected = {each: expected.get(each, f"{now:04}") for each in given_now}
        assert there == expected
        assert reconcile(pool, parts, list(slices.values())) == []


def _device(name: str, found: set[tuple[str, str]]) -> Device:
    taints = [{"key": key, "value": value, "effect": "None"} for key, value in sorted(found)]
    return {"name": name, "attributes": {}, "capacity": {}} | ({"taints": taints} if taints else {})


def test_what_is_allocatable() -> None:
    """Devices without a taint that keeps pods off."""
    every = tainted(
        devices(TWO.gpus, Sharing()),
        {FIRST: (TOLD,), SECOND: (WAITS,)},
        {**DEFAULT_EFFECTS, "recovery-action": "NoExecute"},
    )
    assert [(device["name"], "taints" in device) for device in allocatable(every)] == [("hami-gpu-0", False)]


def test_the_fake_server_gives_times() -> None:
    """As the real one does, where there is none."""
    slice_ = {"spec": {"devices": [{"taints": [{"key": "k"}, {"key": "l", "timeAdded": "t"}]}]}}
    add_times(slice_)
    first, second = slice_["spec"]["devices"][0]["taints"]
    assert first["timeAdded"] != "t" == second["timeAdded"]
