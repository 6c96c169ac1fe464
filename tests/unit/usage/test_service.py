"""What each container uses of each GPU, told to whoever asks: from its region, else by NVML, else not at all."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.processes import own_pid
from hami_kubeletplugin.usage import node, service
from hami_kubeletplugin.usage.joined import Found
from hami_kubeletplugin.usage.model import Memory
from hami_kubeletplugin.usage.sample import OfProcess, Sample
from tests.unit.claims.objects import UUID, claim, config, container, pod, result, uid_of
from tests.unit.usage.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Nothing is prepared."""
    return World(tmp_path)


C = claim("c", [result(0), result(1, "1000Mi", "0", request="other")], pods=["p"])
P = pod("p", container("x", "c"))


async def test_a_prepared_container_is_there_before_its_first_call(world: World) -> None:
    """With its limits, in the order in which it numbers GPUs, and nothing used; its place in the pod when that is known."""
    world.prepare(C, P)
    of = await world.only()
    assert (of.claim.name, of.namespace, of.pod, of.pod_uid, of.container) == (
        "c",
        "default",
        "p",
        uid_of("pod", "p"),
        "x",
    )
    assert (of.whole, of.source, of.processes, of.last_kernel, of.differs) == (False, "region", 0, None, False)
    nothing = Memory(0, 0, 0, 0)
    assert [(gpu.uuid, gpu.device, gpu.index, gpu.limit, gpu.region) for gpu in of.gpus] == [
        (UUID[1], "hami-gpu-1", 0, Limit(1000), Limit(1000)),
        (UUID[0], "hami-gpu-0", 1, Limit(4000, 30), Limit(4000, 30)),
    ]
    assert [(gpu.used, gpu.utilization) for gpu in of.gpus] == [(nothing, 0)] * 2
    assert of.container_index is None
    world.api.pods["p"] = pod("p", container("w"), container("x", "c"))
    world.usage._pods._asked.clear()
    await world.only()
    assert (await world.only()).container_index == 1


async def test_what_living_processes_have_counts_and_nothing_else(world: World) -> None:
    """Processes are known by what they call themselves; one that is gone, and one of another container, do not count."""
    world.prepare(C, P)
    world.runs(100, C, own_pid=7)
    world.proc.add(101, "mnt:[100]")
    world.calls_itself(101, 8)
    world.proc.add(102, "mnt:[0]")
    world.calls_itself(102, 9)
    world.uses(C, 0, 7, gpu0=(100, 10), gpu1=(5, 1))
    world.uses(C, 4, 8, gpu0=(200, 20))
    world.uses(C, 2, 9, gpu0=(400, 40))
    world.uses(C, 3, 100, gpu0=(800, 40))
    of = await world.only()
    assert [(gpu.used, gpu.utilization) for gpu in of.gpus] == [
        (Memory(300, 0, 0, 300), 30),
        (Memory(5, 0, 0, 5), 1),
    ]
    assert of.processes == 2
    world.proc.end(101)
    assert (await world.only()).gpus[0].used == Memory(100, 0, 0, 100)


async def test_a_raised_limit_is_seen(world: World) -> None:
    """What the region says stands beside what the claim was given."""
    world.prepare(C, P)
    path = next(world.hami.glob("cache/*/*.region"))
    with path.open("r+b") as file:
        file.seek(1600)
        file.write((80_000 * MIB).to_bytes(8, "little"))
    of = await world.only()
    assert (of.differs, of.gpus[0].limit, of.gpus[0].region) == (True, Limit(1000), Limit(80_000))


async def test_gpus_that_can_not_be_seen_now_keep_their_numbers(world: World) -> None:
    """As while library and kernel driver don't fit together: a region has its limits by the order of buses.

    A daemon that has never seen them says of several what it knows without.
    """
    world.prepare(C, P)
    world.runs(100, C)
    world.uses(C, 0, 100, gpu0=(100, 10), gpu1=(5, 1))
    (before,) = await world.containers()
    assert not before.differs
    world.usage._gpus = dict
    assert await world.containers() == (before,)
    world.renew()
    world.usage._gpus = dict
    of = await world.only()
    assert (of.differs, of.source) == (False, None)
    assert [(gpu.limit, gpu.region, gpu.used, gpu.utilization) for gpu in of.gpus] == [
        (Limit(4000, 30), None, None, None),
        (Limit(1000), None, None, None),
    ]
    alone = claim("d", [result(0)], pods=["q"])
    world.prepare(alone, pod("q", container("y", "d")))
    assert {of.container: of.source for of in await world.containers()} == {"x": None, "y": "region"}


async def test_a_region_that_is_none_keeps_nobody_from_the_others(world: World) -> None:
    """Cut short by its container: what it uses is not known, others are told as ever."""
    other = claim("d", [result(2)], pods=["q"])
    world.prepare(C, P)
    world.prepare(other, pod("q", container("y", "d")))
    os.truncate(next(world.hami.glob(f"cache/{C['metadata']['uid']}/*.region")), 100)
    found = {of.container: of for of in await world.containers()}
    assert (found["x"].source, found["x"].gpus[0].used, found["x"].gpus[0].region) == (None, None, None)
    assert found["y"].source == "region"


async def test_a_library_that_makes_its_own_region(world: World) -> None:
    """In a directory that any uid may write into: until it has made one nothing is used, and a link there is not followed."""
    world.prepare(C, P, regions=False)
    world.runs(100, C)
    (folder,) = world.hami.glob("cache/*/use-0")
    assert (await world.only()).gpus[0].used == Memory(0, 0, 0, 0)
    made = world.prepare(
        claim("d", [result(0), result(1, "1000Mi", "0", request="other")], pods=["p"]), pod("p", container("x", "d"))
    )
    source = ClaimDir(world.hami, made.uid).region("use-0")
    (folder / "vgpu.cache").symlink_to(source)
    world.records.remove(made.uid)
    assert (await world.only()).source is None
    (folder / "vgpu.cache").unlink()
    source.rename(folder / "vgpu.cache")
    assert (await world.only()).gpus[0].region == Limit(1000)


async def test_whole_gpus_are_told_of_by_nvml(world: World) -> None:
    """By the pods of processes: no other container of the pod has that GPU."""
    obj = claim("c", [result(0, "81920Mi", "0", slots="10k")], pods=["p"])
    world.prepare(obj, P)
    of = await world.only()
    assert (of.whole, of.source, of.processes, of.gpus[0].used, of.gpus[0].utilization) == (
        True,
        None,
        None,
        None,
        None,
    )
    world.in_pod(50, "p", "a" * 64)
    world.in_pod(51, "p", "a" * 64)
    world.in_pod(52, "q", "a" * 64)
    world.nvml(
        {
            0: {50: OfProcess(10, 5), 51: OfProcess(20, 6), 52: OfProcess(40, 7), 53: OfProcess(80, 8)},
            1: {50: OfProcess(3, 3)},
        }
    )
    of = await world.only()
    assert (of.source, of.processes, of.gpus[0].used, of.gpus[0].utilization) == ("nvml", 2, Memory(30), 11)


async def test_several_containers_with_a_gpu_are_told_apart_by_the_pods_status(world: World) -> None:
    """Until that is known, nothing is told of them rather than something wrong."""
    shared = config(allowSharedContainers=True)
    obj = claim("c", [result(0)], pods=["p"], configs=[shared])
    world.prepare(obj, pod("p", container("x", "c"), container("y", "c")))
    world.in_pod(50, "p", "a" * 64)
    world.in_pod(51, "p", "b" * 64)
    world.nvml({0: {50: OfProcess(10, 5), 51: OfProcess(20, 6)}})
    found = await world.containers()
    assert [(of.container, of.source, of.gpus[0].used) for of in found] == [("x", None, None), ("y", None, None)]
    status = [
        {"name": name, "containerID": f"containerd://{cid * 64}", "state": {"running": {}}}
        for name, cid in (("x", "b"), ("y", "a"))
    ]
    world.api.pods["p"] = pod("p", container("x", "c"), container("y", "c")) | {"status": {"containerStatuses": status}}
    world.usage._pods._asked.clear()
    await world.containers()
    found = await world.containers()
    assert [(of.container, of.source, of.gpus[0].used) for of in found] == [
        ("x", "nvml", Memory(20)),
        ("y", "nvml", Memory(10)),
    ]


async def test_of_containers_one_after_the_other_the_running_one_is_told(world: World) -> None:
    """Each limit stands once: an init container's, then the main one's."""
    its_pod = pod("p", container("x", "c"), init=[container("a", "c")])
    world.prepare(C, its_pod)
    world.api.pods["p"] = its_pod | {"status": {"initContainerStatuses": [{"name": "a", "state": {"running": {}}}]}}
    await world.only()
    assert (await world.only()).container == "a"
    world.api.pods["p"] = its_pod | {"status": {}}
    world.usage._pods._asked.clear()
    await world.only()
    assert (await world.only()).container == "x"


async def test_a_container_with_several_claims_is_told_for_each(world: World) -> None:
    """With the GPUs of that claim, as the container numbers all of them, and what its one region says."""
    first, second = claim("c", [result(0)], pods=["p"]), claim("d", [result(1, "1000Mi")], pods=["p"])
    its_pod = pod("p", container("x", "c", "d"))
    world.prepare(first, its_pod, [second])
    world.prepare(second, its_pod, [first])
    (owner,) = [one for one in (first, second) if list(world.hami.glob(f"cache/{one['metadata']['uid']}/*"))]
    world.runs(100, owner)
    world.uses(owner, 0, 100, gpu0=(111, 1), gpu1=(222, 2))
    found = {of.claim.name: of for of in await world.containers()}
    assert {name: [(gpu.uuid, gpu.index, gpu.used) for gpu in of.gpus] for name, of in found.items()} == {
        "c": [(UUID[0], 1, Memory(222, 0, 0, 222))],
        "d": [(UUID[1], 0, Memory(111, 0, 0, 111))],
    }


async def test_a_program_without_the_library_is_told_of_by_nvml(world: World) -> None:
    """Nobody counts it in the region, and what it has is seen all the same."""
    world.prepare(C, P)
    world.runs(100, C)
    world.nvml({0: {100: OfProcess(7000 * MIB, 90)}, 1: {}})
    of = await world.only()
    assert (of.source, of.gpus[1].used, of.gpus[1].utilization) == ("nvml", Memory(7000 * MIB), 90)


async def test_the_last_kernel_is_told_unless_it_is_still_to_come(world: World) -> None:
    """A container may write any time there."""
    world.prepare(C, P)
    path = next(world.hami.glob("cache/*/*.region"))
    for seconds, told in ((1_700_000_000, 1_700_000_000.0), (1 << 62, None), (0, None)):
        with path.open("r+b") as file:
            file.seek(2_008_912)
            file.write(seconds.to_bytes(8, "little"))
        assert (await world.only()).last_kernel == told


async def test_many_who_ask_share_a_look(world: World) -> None:
    """And pods are asked for once, in the background."""
    world.prepare(C, P)
    world.api.pods["p"] = P
    answers = await asyncio.gather(*(world.usage.look() for _ in range(10)))
    assert all(answer is answers[0] for answer in answers)
    assert await world.usage.look() is answers[0]
    for _ in range(5):
        await world.containers()
    assert world.api.asked == 1


async def test_simulated_gpus_have_in_use_what_their_containers_use(world: World) -> None:
    """So that what is shown of them fits together."""
    world.prepare(C, P)
    world.runs(100, C)
    world.uses(C, 0, 100, gpu0=(100, 10))
    gpus = (await world.usage.look()).gpus
    assert [(gpu.index, gpu.uuid, gpu.memory_used, gpu.utilization) for gpu in gpus] == [
        (0, UUID[2], 0, 0),
        (1, UUID[3], 0, 0),
        (2, UUID[1], 100, 10),
        (3, UUID[0], 0, 0),
    ]


async def test_what_can_not_be_looked_at_is_said_once(world: World) -> None:
    """In the log; who asks gets the GPUs and no containers, where none were known."""
    world.prepare(C, P)
    world.proc.root.rename(world.proc.root.with_name("away"))
    with capture_logs() as logs:
        for _ in range(3):
            assert await world.containers() == ()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "what containers use of GPUs can't be told now"
    ]


async def test_a_look_that_fails_takes_no_container_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown as it was, for a minute: who counts series takes one that goes for a container that ended."""
    world.prepare(C, P)
    before = await world.containers()
    away = world.proc.root.rename(world.proc.root.with_name("away"))
    assert await world.containers() == before != ()
    with monkeypatch.context() as later:
        later.setattr(service, "STALE", -1.0)
        assert await world.containers() == ()
    away.rename(world.proc.root)
    assert await world.containers() == before


async def test_a_look_that_takes_long_is_shown_when_it_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't waited for and not begun again, however often somebody asks, and who asks later has what it found."""
    world.prepare(C, P)
    may_go, looks = threading.Event(), []
    look = world.usage._node.look

    def slow(sample: Sample | None) -> Found:
        looks.append(1)
        may_go.wait(20)
        return look(sample)

    monkeypatch.setattr(world.usage._node, "look", slow)
    world.usage._patience = 0.01
    with capture_logs() as logs:
        for _ in range(3):
            assert await world.containers() == ()
    assert (len(looks), [entry["event"] for entry in logs]) == (
        1,
        ["looking at what containers use of GPUs takes long"],
    )
    may_go.set()
    async with asyncio.timeout(20):
        while not await world.containers():
            pass
    assert world.usage.found().claims


async def test_looks_take_a_small_part_of_the_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that costs much, as by what containers do, is good for longer, whoever asks how often."""
    clock, looks = [0.0], list[float]()
    look = world.usage._node.look

    def costs(sample: Sample | None) -> Found:
        looks.append(clock[0])
        clock[0] += 0.5
        return look(sample)

    monkeypatch.setattr(world.usage._node, "look", costs)
    world.usage._clock = lambda: clock[0]
    while clock[0] < 60:
        await world.usage.look()
        clock[0] += 0.25
    assert 0.5 * len(looks) < 60 / 8


async def test_processes_that_cost_much_keep_nobody_from_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 65536 groups the kernel takes 40 ms to tell of each.

    Until all are known, a few more at each look, all that the region says counts of their container. A new name costs nothing.
    """
    other = claim("d", [result(2)], pods=["q"])
    world.prepare(C, P)
    world.prepare(other, pod("q", container("y", "d")))
    world.runs(100, C)
    for pid in range(101, 112):
        world.proc.add(pid, "mnt:[100]")
        world.calls_itself(pid, pid)
    world.uses(C, 0, 100, gpu0=(1, 0))
    world.uses(C, 1, 99, gpu0=(2, 0))
    world.runs(200, other)
    world.uses(other, 0, 200, gpu0=(4, 0))
    clock, asked = [0.0], list[int]()

    def asks(pid: int, proc: Path) -> int:
        asked.append(pid)
        clock[0] += 0.04
        return own_pid(pid, proc)

    monkeypatch.setattr(node, "own_pid", asks)
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])

    async def told() -> dict[str, tuple[int | None, Memory | None]]:
        return {of.container: (of.processes, of.gpus[0].used) for of in await world.containers()}

    assert await told() == {"x": (None, Memory(3, 0, 0, 3)), "y": (1, Memory(4, 0, 0, 4))}
    looks = [len(asked)]
    while (await told())["x"] != (1, Memory(1, 0, 0, 1)):
        looks.append(len(asked))
    assert looks[0] < 12 < len(asked) == 13
    stat = world.proc.root / "100/stat"
    stat.write_text(stat.read_text().replace("(sh)", "(other)"))
    await told()
    assert len(asked) == 13


async def test_what_does_not_change_is_read_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, and what processes call themselves; another record is read again, and one that is gone is forgotten."""
    read: list[str] = []
    load = world.records.load

    def loads(uid: str) -> object:
        read.append("record")
        return load(uid)

    def asks(pid: int, proc: Path) -> int:
        read.append("process")
        return own_pid(pid, proc)

    monkeypatch.setattr(world.records, "load", loads)
    monkeypatch.setattr(node, "own_pid", asks)
    world.prepare(C, P)
    world.runs(100, C)
    for _ in range(3):
        await world.only()
    assert read == ["record", "process"]
    made = world.prepare(claim("c", [result(0, "2000Mi")], pods=["p"]), P)
    assert (await world.only()).gpus[0].limit == Limit(2000, 30)
    assert read == ["record", "process", "record"]
    world.records.remove(made.uid)
    assert await world.containers() == ()
