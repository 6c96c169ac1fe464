"""A container that changes its own limit is told of: in the log, by an Event of its pod, and in a count."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.names import DRIVER, MIB
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.hamicore.enforcement import HOOK_SECONDS
from hami_kubeletplugin.inforce.differing import LimitsDiffer
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.claims.objects import NODE, UUID, Json, claim, container, pod, result, uid_of
from tests.unit.usage.world import World

C = claim("c", [result(0)], pods=["p"])
P = pod("p", container("x", "c"))
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "x", "state": {"running": {}}}]}


class Monitor:
    """It, on a node where the container of `P` runs."""

    def __init__(self, root: Path, server: ApiServer, api: KubeClient) -> None:
        self.world, self.server, self.api, self.paused = World(root), server, api, 0.0
        self.world.prepare(C, P)
        self.world.runs(100, C)
        (self.region,) = self.world.hami.glob("cache/*/*.region")
        self.pristine = self.region.read_bytes()
        self.meanwhile: Callable[[], object] = lambda: None
        self.renew()

    def renew(self) -> None:
        """A new daemon."""
        events = PodEvents(self.api, driver=DRIVER, node=NODE)
        self.differ = LimitsDiffer(self.world.usage.found, self.world.usage.gpus, events, pause=self.pause)

    async def pause(self, seconds: float) -> None:
        """Between two looks something may happen."""
        self.paused = seconds
        self.meanwhile()

    def change(self, offset: int, number: int) -> None:
        """What a program in the container does."""
        with self.region.open("r+b") as file:
            file.seek(offset)
            file.write(number.to_bytes(8, "little"))

    async def look(self) -> list[str]:
        """What is logged."""
        with capture_logs() as logs:
            await self.differ.check()
        return [str(entry["event"]) for entry in logs]

    @property
    def events(self) -> list[Json]:
        """All Events."""
        return self.server.all("events")


@pytest.fixture
async def monitor(tmp_path: Path) -> AsyncIterator[Monitor]:
    """Nothing differs yet."""
    async with ApiServer() as server, KubeClient(Access(server.url)) as api:
        server.put("namespaces", {"metadata": {"name": "default"}})
        server.put("pods", P | {"status": RUNNING})
        yield Monitor(tmp_path, server, api)


CHANGED = "a running container's region has other limits than its claim: something in it has changed them"
AGREES = "a container's region has the limits of its claim again"


async def test_a_raised_limit_is_told_once_for_each_start(monitor: Monitor) -> None:
    """With what was changed and what to do; changing it to and fro says no more, a new start does."""
    assert (await monitor.look(), monitor.differ.count, monitor.events) == ([], 0, [])
    monitor.change(1600, 80_000 * MIB)
    assert (await monitor.look(), monitor.differ.count) == ([CHANGED], 1)
    (event,) = monitor.events
    about = event["involvedObject"]
    assert (about["name"], about["uid"], about["fieldPath"]) == ("p", uid_of("pod", "p"), "spec.containers{x}")
    assert (event["type"], event["reason"]) == ("Warning", "GpuLimitNotInForce")
    assert (
        f"Container x has other GPU limits than its claim default/c: the memory limit of {UUID[0]}" in event["message"]
    )
    assert "80000 MiB instead of 4000 MiB" in event["message"]
    assert (await monitor.look(), monitor.differ.count, len(monitor.events)) == ([], 1, 1)
    monitor.region.write_bytes(monitor.pristine)
    assert (await monitor.look(), monitor.differ.count) == ([AGREES], 0)
    monitor.change(1728, 0)
    assert (await monitor.look(), monitor.differ.count, len(monitor.events)) == ([], 1, 1)
    monitor.world.proc.end(100)
    assert (await monitor.look(), monitor.differ.count) == ([], 0)
    monitor.world.runs(200, C)
    assert (await monitor.look(), monitor.differ.count, len(monitor.events)) == ([CHANGED], 1, 2)
    assert sum("core limit" in event["message"] for event in monitor.events) == 1


async def test_a_daemon_that_is_started_anew_writes_no_second_event(monitor: Monitor) -> None:
    """It meets the one that is there."""
    monitor.change(1600, 0)
    await monitor.look()
    monitor.renew()
    await monitor.look()
    assert (len(monitor.events), monitor.differ.count) == (1, 1)


async def test_a_region_that_is_just_being_written_anew_differs_in_nothing(monitor: Monitor) -> None:
    """By the hook, at the start of a container: what is over at a second look, or is of another start, is not told."""
    monitor.region.write_bytes(b"")
    monitor.meanwhile = lambda: monitor.region.write_bytes(monitor.pristine)
    assert (await monitor.look(), monitor.differ.count, monitor.events) == ([], 0, [])
    assert monitor.paused > HOOK_SECONDS  # for so long it may be at it
    monitor.change(1600, 0)

    def restarted() -> None:
        monitor.world.proc.end(100)
        monitor.world.runs(300, C)

    monitor.meanwhile = restarted
    assert (await monitor.look(), monitor.differ.count, monitor.events) == ([], 0, [])


async def test_a_region_that_was_emptied_is_told(monitor: Monitor) -> None:
    """A library that comes to it would take its limits from variables, which a program may have cleared."""
    monitor.region.write_bytes(b"")
    assert await monitor.look() == [CHANGED]
    assert "is none any more" in monitor.events[0]["message"]
    assert len(monitor.events[0]["message"]) < 1024


async def test_gpus_that_can_not_be_seen_now(monitor: Monitor) -> None:
    """What differs does so all the same."""
    monitor.change(1600, 0)
    await monitor.look()
    monitor.world.usage._gpus = dict
    assert (await monitor.look(), monitor.differ.count) == ([], 1)


async def test_an_event_that_could_not_be_written_comes_later(monitor: Monitor) -> None:
    """The failure is said once, and the container counts from the first."""
    monitor.change(1600, 0)
    monitor.server.fail(status=403, verb="create", resource="events")
    first, second = await monitor.look(), await monitor.look()
    monitor.server.mend()
    assert (first[0], len(first), second, monitor.differ.count) == (CHANGED, 2, [], 1)
    await monitor.look()
    assert len(monitor.events) == 1


async def test_where_processes_can_not_be_seen_nothing_is_told(monitor: Monitor) -> None:
    """It is not known then which containers run."""
    monitor.change(1600, 0)
    monitor.world.proc.end(100)
    monitor.world.proc.end(1)
    assert (await monitor.look(), monitor.differ.count) == ([], None)
