"""Containers whose limits nobody keeps are reported, and no others."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import AllocatedClaim, read_claim
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import read_pod
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.hamicore import loaded
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.inforce.monitor import InForce
from hami_kubeletplugin.inforce.running import Loaded, loaded_now
from hami_kubeletplugin.inforce.runtime import SETTING
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.claims.objects import GPUS as INVENTORY
from tests.unit.claims.objects import NODE, Json, claim, container, pod, ref, result, uid_of
from tests.unit.proc_tree import DAEMON, HAMI, LIBRARY_MAPS, OTHER_MAPS, ProcTree
from tests.waiting import until

CLAIM = claim("c", [result()], pods=["p"])
UID: str = CLAIM["metadata"]["uid"]


def prepared(obj: Json, its_pod: Json, neighbours: tuple[Json, ...] = ()) -> Prepared:
    """The record of a claim, with regions of our own."""

    def read(one: Json) -> AllocatedClaim:
        return read_claim(one, ref(one), driver=DRIVER, node=NODE)

    made = plan(
        read(obj),
        pods=[read_pod(its_pod)],
        neighbours=[read(other) for other in neighbours],
        gpus=INVENTORY.by_device_name(),
        boot_id="b",
        driver=DRIVER,
    )
    return replace(made, regions=True)


def running(its_pod: Json, *names: str) -> Json:
    """The pod with these containers running, the others ended."""

    def states(kind: str) -> list[Json]:
        return [
            {"name": c["name"], "state": {"running": {}} if c["name"] in names else {"terminated": {}}}
            for c in its_pod["spec"][kind]
        ]

    status = {"initContainerStatuses": states("initContainers"), "containerStatuses": states("containers")}
    return its_pod | {"status": {"phase": "Running"} | status}


class World:
    """One prepared claim, a node's processes, and an API server."""

    def __init__(self, root: Path, server: ApiServer, api: KubeClient) -> None:
        self.server, self.api, self.records = server, api, Records(root / "claims")
        self.records.open()
        self.proc, self.host = ProcTree(root / "proc"), root / "host"
        self.proc.add(1, "mnt:[0]", name="systemd")
        self.restart()

    def prepare(self, obj: Json, its_pod: Json, *now: str) -> None:
        """Record a claim, and have its pod in the API server with some containers running."""
        self.records.save(prepared(obj, its_pod))
        self.server.put("pods", running(its_pod, *now))

    def restart(self) -> None:
        """A new daemon."""
        self.check = InForce(
            records=self.records,
            events=PodEvents(self.api, driver=DRIVER, node=NODE),
            hami_dir=HAMI,
            host_root=self.host,
            proc=self.proc.root,
        )

    async def look(self, times: int = 1) -> list[str]:
        """What is logged, at warning and above, in so many looks."""
        with capture_logs() as logs:
            for _ in range(times):
                await self.check.check()
        return [f"{entry['event']} {entry.get('error', '')}" for entry in logs if entry["log_level"] != "info"]

    @property
    def events(self) -> list[Json]:
        """All Events."""
        return self.server.all("events")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A pod `p` whose container `x` runs, and has no process yet."""
    async with ApiServer() as server, KubeClient(Access(server.url)) as api:
        server.put("namespaces", {"metadata": {"name": "default"}})
        made = World(tmp_path, server, api)
        made.prepare(CLAIM, pod("p", container("x", "c")), "x")
        yield made


async def test_a_container_that_never_loads_the_library_is_reported_once(world: World) -> None:
    """At the second look: in the log, as a warning event of its pod that says what and why, and in the count; then no more."""
    world.proc.container(100, UID)
    assert (await world.look(), world.events, world.check.not_limited) == ([], [], 0)
    assert len(await world.look()) == 1
    assert world.check.not_limited == 1
    (event,) = world.events
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Pod", "p", uid_of("pod", "p"))
    assert (about["namespace"], about["fieldPath"]) == ("default", "spec.containers{x}")
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "GpuLimitNotInForce", 1)
    assert len(event["message"]) < 1024, "the API's limit"
    assert all(words in event["message"] for words in ("Container x", "(sh)", "musl", "static", "glibc", "shares"))
    assert await world.look(5) == []
    assert (len(world.events), world.check.not_limited) == (1, 1)


async def test_one_process_with_the_library_is_enough(world: World) -> None:
    """A static init beside it is fine, and so is the container for good, though that process ends before the next look."""
    world.proc.container(100, UID)
    world.proc.container(101, UID, namespace="mnt:[100]", maps=LIBRARY_MAPS)
    assert await world.look(3) == []
    world.proc.end(101)
    assert await world.look(3) == []
    assert (world.events, world.check.not_limited) == ([], 0)


async def test_programs_that_are_just_starting(world: World) -> None:
    """A look before the loader has done its work is none against the container, nor one at which its maps are empty."""
    world.proc.container(100, UID, maps="")
    assert await world.look(3) == []
    world.proc.maps(100, OTHER_MAPS)
    assert await world.look() == []
    world.proc.maps(100, LIBRARY_MAPS)
    assert await world.look(3) == []
    assert world.events == []


async def test_a_restarted_container_is_another_one(world: World) -> None:
    """Looks at the one before don't count, and what that one had loaded doesn't either; there is still one event only."""
    world.proc.container(100, UID, maps=LIBRARY_MAPS)
    assert await world.look(2) == []
    world.proc.end(100)
    for pid in (200, 300):
        world.proc.container(pid, UID)
        assert await world.look() == []
        assert len(await world.look()) == 1
        world.proc.end(pid)
    assert world.server.requests["create", "events"] == len(world.events) == 1
    assert await world.look() == []
    assert world.check.not_limited == 0


async def test_a_container_that_loads_it_later(world: World) -> None:
    """It is counted no more, and the log says so."""
    world.proc.container(100, UID)
    await world.look(2)
    world.proc.container(150, UID, namespace="mnt:[100]", maps=LIBRARY_MAPS)
    with capture_logs() as logs:
        await world.check.check()
        await world.check.check()
    assert [entry["event"] for entry in logs] == ["a container has loaded HAMi-core after all"]
    assert world.check.not_limited == 0


async def test_a_new_daemon_does_not_repeat_the_event(world: World) -> None:
    """The event's name follows from what it is about."""
    world.proc.container(100, UID)
    await world.look(2)
    world.restart()
    assert len(await world.look(2)) == 1
    assert len(world.events) == 1
    assert world.server.requests["create", "events"] == 2
    await world.look(2)
    assert world.server.requests["create", "events"] == 2


@pytest.mark.parametrize(("now", "field"), [("i", "spec.initContainers{i}"), ("x", "spec.containers{x}")])
async def test_which_of_the_containers_that_share_a_region_it_is(world: World, now: str, field: str) -> None:
    """Init containers that have ended are not blamed for the main one, nor the other way round."""
    its_pod = pod("p", container("x", "c"), init=[container("i", "c")])
    world.records.save(prepared(CLAIM, its_pod))
    world.server.put("pods", running(its_pod))
    world.proc.container(100, UID)
    await world.look(3)
    assert world.events == [], "the API server doesn't say yet which one runs"
    world.server.put("pods", running(its_pod, now))
    await world.look()
    assert [event["involvedObject"]["fieldPath"] for event in world.events] == [field]


async def test_events_that_are_refused_are_tried_again(world: World) -> None:
    """The log names the right that is missing, once; when it is there the event comes."""
    world.server.fail(status=403, verb="create", resource="events")
    world.proc.container(100, UID)
    logged = await world.look(4)
    assert len(logged) == 2
    assert "allow verb create on events" in logged[1]
    world.server.mend()
    assert await world.look() == []
    assert len(world.events) == 1


async def test_another_pod_of_that_name_is_left_alone(world: World) -> None:
    """A pod that was replaced meanwhile gets no event for its predecessor."""
    other = running(pod("p", container("x", "c")), "x")
    world.server.put("pods", other | {"metadata": other["metadata"] | {"uid": "another"}})
    world.proc.container(100, UID)
    await world.look(3)
    assert world.events == []


@pytest.mark.parametrize("excess", ["mounts", "mappings"])
async def test_a_container_that_has_too_much_to_look_at(
    world: World, monkeypatch: pytest.MonkeyPatch, excess: str
) -> None:
    """It is neither taken for limited nor for unlimited: the log names its claim once, and it has a count of its own."""
    if excess == "mounts":
        mounts = "".join(f"{100 + i} 40 0:8 / /m/{i} rw - tmpfs tmpfs rw\n" for i in range(10_000))
        world.proc.add(100, "mnt:[100]", mounts, cgroup=f"/kubepods/pod{uid_of('pod', 'p')}/c")
    else:
        monkeypatch.setattr(loaded, "_LIMIT", 1000)
        world.proc.container(100, UID, maps=OTHER_MAPS * 100)
        world.proc.container(101, UID, maps=OTHER_MAPS, namespace="mnt:[100]")
    world.proc.add(200, "mnt:[200]", cgroup=f"/kubepods/pod{uid_of('pod', 'q')}/c")
    (said,) = await world.look(3)
    assert "more mounts" in said
    assert (world.events, world.check.not_limited, world.check.not_known) == ([], 0, 1)
    world.proc.end(100)
    assert await world.look() == []
    assert world.check.not_known == 0


async def test_files_that_belong_to_no_record(world: World) -> None:
    """Claims that are unprepared, uses that are not the claim's own, and records that are damaged are left to others."""
    world.proc.container(100, uid_of("claim", "unknown"))
    world.proc.container(101, UID, "use-7")
    assert await world.look(3) == []
    world.proc.container(102, UID)
    world.records.path(UID).write_bytes(b"{}")
    assert await world.look(3) == []
    assert (world.events, world.check.not_limited) == ([], 0)


async def test_without_the_nodes_processes_it_is_said_once(world: World) -> None:
    """Only with claims there; the count is unknown then, not 0."""
    world.proc.end(1)
    said = await world.look(3)
    assert len(said) == 1
    assert "hostPID" in said[0]
    assert world.check.not_limited is None
    world.restart()
    world.records.remove(UID)
    assert await world.look(2) == []


async def test_a_fault_is_not_the_end(world: World) -> None:
    """What can't be read is logged once, and looked at again."""
    moved = world.proc.root.rename(world.proc.root.with_name("away"))
    with capture_logs() as logs:
        task = asyncio.create_task(world.check.run(0.01))
        await until(lambda: logs)
        moved.rename(world.proc.root)
        await until(lambda: world.check.not_limited is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(logs) == 1


async def test_a_runtime_that_gives_gpus_to_all_is_said_once(world: World) -> None:
    """With the file and the setting; it is looked at again, so that closing it needs no new start."""
    config = world.host / "etc/nvidia-container-runtime/config.toml"
    with capture_logs() as logs:
        task = asyncio.create_task(world.check.run(0.01))
        await until(lambda: world.check.not_limited is not None)
        assert world.check.open_to_all is None
        config.parent.mkdir(parents=True)
        config.touch()
        await until(lambda: world.check.open_to_all)
        config.write_text(f"{SETTING} = false")
        await until(lambda: world.check.open_to_all is False)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (said,) = logs
    assert said["configurations"] == ["/etc/nvidia-container-runtime/config.toml"]
    assert said["setting"] == f"{SETTING} = false"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    """A node's processes."""
    return ProcTree(tmp_path / "proc")


def test_processes_are_shown_for_each_claim_of_a_container(tree: ProcTree) -> None:
    """A container with two claims has the files of one, and both tell of its processes; without processes nothing is told."""
    two = claim("d", [result(1)], pods=["p"])
    its_pod = pod("p", container("x", "c", "d"), container("y", "e"))
    other = claim("e", [result(2)], pods=["p"])
    records = [prepared(CLAIM, its_pod, (two,)), prepared(two, its_pod, (CLAIM,)), prepared(other, its_pod)]
    owner = records[0].uses[0].owner
    tree.container(DAEMON + 1, owner)
    tree.container(DAEMON + 2, owner, namespace=f"mnt:[{DAEMON + 1}]", maps=LIBRARY_MAPS)
    shown = loaded_now(records, HAMI, tree.root)
    assert shown == {("default", "c", 0): Loaded(2, 1), ("default", "d", 0): Loaded(2, 1)}
