"""All who hear of conditions hear the same, at a bounded pace, and a daemon that starts anew knows what its predecessor knew."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.gpu.conditions import Condition, Conditions, Found, What
from hami_kubeletplugin.health import heard as module
from hami_kubeletplugin.health.heard import Heard
from hami_kubeletplugin.health.kept import FILE, Keeper, read
from tests.unit.publish.fakes import Time
from tests.waiting import settled, until

LOST = Condition(What.LOST, "it doesn't answer", since=7.0)
UNREADY = Condition(What.NOT_READY, "no library", "hami-core")


class Events:
    """Notes what it would write Events of."""

    def __init__(self) -> None:
        self.looks: list[Found] = []

    async def look(self, found: Found) -> None:
        """See ConditionEvents."""
        self.looks.append(found)

    async def run(self) -> None:
        """See ConditionEvents."""
        await asyncio.Event().wait()


class World:
    """One run of a daemon."""

    def __init__(self, folder: Path, *, boot_id: str = "b", holder: str = "1 n") -> None:
        self.folder, self.time, self.board, self.events = folder, Time(), Conditions(), Events()
        self.time.hold()
        self.told: list[Found] = []
        self.heard = Heard(
            conditions=self.board,
            events=self.events,  # type: ignore[arg-type]
            keeper=Keeper(folder, holder, boot_id, self.board),
            devices=lambda: {"GPU-1": "hami-gpu-0"},
            tell=lambda: self.told.append(self.board.all.get()),
            sleep=self.time.sleep,
        )

    @property
    def file(self) -> dict[str, object]:
        """What is kept."""
        found: dict[str, object] = json.loads((self.folder / FILE).read_text())
        return found


@contextlib.asynccontextmanager
async def running(folder: Path, **options: str) -> AsyncIterator[World]:
    """A run until its end."""
    world = World(folder, **options)
    task = asyncio.create_task(world.heard.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_many_changes_are_told_once(tmp_path: Path) -> None:
    """The first at once, what comes within the pace together afterwards."""
    async with running(tmp_path) as world:
        await until(lambda: world.events.looks == [{}])
        for number in range(20):
            world.board.report("nvml", {"GPU-1": [Condition(What.XID, "", str(number))]})
            await settled()
        assert world.events.looks == [{}]
        world.time.release()
        await until(lambda: len(world.events.looks) == 2)
        assert world.events.looks[-1] == world.told[-1] == world.board.all.get()
        assert module.PACE in world.time.slept


async def test_a_successor_knows_what_was_known(tmp_path: Path) -> None:
    """From before anything is published on, until the source itself has looked; a source that says nothing is forgotten."""
    async with running(tmp_path) as first:
        first.board.report("nvml", {"GPU-1": [LOST]})
        first.board.report("ready", {"GPU-1": [UNREADY]})
        await until(lambda: (tmp_path / FILE).exists() and "lost" in str(first.file) and "hami-core" in str(first.file))
    second = World(tmp_path, holder="2 n")
    assert [each.what for each in second.told[0]["GPU-1"]] == [What.LOST, What.NOT_READY]
    second.board.report("nvml", {"GPU-1": [Condition(What.LOST, "it doesn't answer", since=99.0)]})
    assert second.board.of("GPU-1")[0].since == 7.0
    second.board.report("nvml", {})
    assert [each.what for each in second.board.of("GPU-1")] == [What.NOT_READY]
    second.board.expire()
    assert second.board.of("GPU-1") == ()


async def test_what_is_forgotten_by_itself(tmp_path: Path) -> None:
    """Nothing is believed for ever of a part of the daemon that isn't there any more."""
    async with running(tmp_path) as first:
        first.board.report("old", {"GPU-1": [LOST]})
        await until(lambda: (tmp_path / FILE).exists() and "lost" in str(first.file))
    async with running(tmp_path) as second:
        assert second.board.of("GPU-1")
        second.time.release()
        await until(lambda: not second.board.of("GPU-1"))
        assert module.EARLIER in second.time.slept


async def test_a_reboot_ends_all(tmp_path: Path) -> None:
    """It resets the GPUs; and what another version wrote, or nobody, is no reason to stop."""
    async with running(tmp_path) as first:
        first.board.report("nvml", {"GPU-1": [LOST]})
        await until(lambda: (tmp_path / FILE).exists() and "lost" in str(first.file))
    assert World(tmp_path, boot_id="another").told == [{}]
    for content in ("{", "[]", json.dumps(first.file).replace("lost", "haunted")):
        (tmp_path / FILE).write_text(content)
        assert World(tmp_path).told == [{}]
        assert read(tmp_path) is None


async def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others hear all the same; when there is room the file is there."""
    (tmp_path / FILE).mkdir()
    with capture_logs() as logs:
        async with running(tmp_path) as world:
            world.time.release()
            world.board.report("nvml", {"GPU-1": [LOST]})
            await until(lambda: world.events.looks and world.events.looks[-1] and len(world.time.slept) > 20)
            (tmp_path / FILE).rmdir()
            await until((tmp_path / FILE).is_file)
            assert "lost" in str(world.file)
    assert len([entry for entry in logs if "can't be kept" in entry["event"]]) == 1
