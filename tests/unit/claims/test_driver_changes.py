"""A driver that is replaced, or hangs, while claims are prepared. nvidia-ctk is a script over plain files."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.claims.node import Node, prepared, refusal
from tests.unit.claims.objects import UUID, claim, container, pod, result
from tests.unit.claims.test_recovery import LOOKS, going
from tests.unit.dead_mount import can_mount_dead, dead_mount
from tests.unit.gpu.test_toolkit import Node as Driver
from tests.waiting import until


def described(driver: Driver) -> dict[str, Any]:
    """What nvidia-ctk prints of the node's GPUs now."""
    return driver.spec() | {
        "devices": [{"name": uuid, "containerEdits": driver.nodes("nvidia0")} for uuid in UUID.values()]
    }


@pytest.fixture
def driver(tmp_path: Path, node: Node) -> Driver:
    """The node's driver, version 550."""
    made = Driver(tmp_path / "driver")
    made.prints(described(made))
    node.edits = made.source(patience=0.1)  # type: ignore[assignment]
    node.start()
    return made


def upgrade(driver: Driver) -> None:
    """The new driver's files are there, the old one's gone, and its module is loaded."""
    (driver.libraries / "libcuda.so.550").unlink()
    driver.version.write_text("560")
    driver.prints(described(driver))


def library(node: Node, obj: dict[str, Any]) -> str:
    """The libcuda that a container of this claim gets when it starts now."""
    spec = node.spec(obj)
    assert spec is not None
    mounts = [
        mount["hostPath"]
        for edits in (spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"]))
        for mount in edits.get("mounts", ())
    ]
    return {Path(path).name for path in mounts if "libcuda" in path}.pop()


async def test_running_claims_follow_the_driver(node: Node, driver: Driver) -> None:
    """After an upgrade the spec of each prepared claim names the new libcuda: its container may be started again."""
    claims = await prepared(node, "a", "b")
    assert {library(node, obj) for obj in claims} == {"libcuda.so.550"}
    recovery = node.recovery()
    async with going(recovery.watch(LOOKS)), going(recovery.run(3600)):
        upgrade(driver)
        await until(lambda: {library(node, obj) for obj in claims} == {"libcuda.so.560"})
    assert len(driver.runs) == 2, "one run for all claims"


async def test_a_toolkit_that_fails_after_an_upgrade_is_tried_again(node: Node, driver: Driver) -> None:
    """The former specs stay until others can be made; each claim is tried again after waits that grow, and it is said once."""
    claims = await prepared(node, "a", "b")
    before = node.snapshot()
    recovery = node.recovery()
    with capture_logs() as log:
        async with going(recovery.watch(LOOKS)), going(recovery.run(3600)):
            driver.does("echo no driver >&2; exit 1")
            upgrade(driver)
            await until(lambda: len(recovery._failing._waits) == 2)
            for _ in range(3):
                runs = len(driver.runs)
                node.now += 5
                await until(lambda: len(driver.runs) > runs)  # noqa: B023
            assert node.snapshot() == before, "nothing is lost meanwhile"
            shutil.copy(driver.folder / "spec.json", driver.folder / "good.json")
            driver.does(f"cat {driver.folder}/good.json")
            node.now += 60
            await until(lambda: {library(node, obj) for obj in claims} == {"libcuda.so.560"})
    told = [entry["error"] for entry in log if entry["event"] == "claim can't be restored"]
    assert sum("no driver" in words for words in told) == 2


async def test_a_claim_that_failed_is_tried_again_though_its_spec_is_as_it_was_made(node: Node, driver: Driver) -> None:
    """Nothing on the node changes any more after the failure but that the toolkit works: waiting must be enough."""
    (obj,) = await prepared(node, "a")
    works = driver.folder / "works"
    driver.does(f"[ -e {works} ] || exit 1", f"cat {driver.folder}/spec.json")
    upgrade(driver)
    recovery = node.recovery()
    await recovery.repair()
    assert library(node, obj) == "libcuda.so.550"
    works.touch()
    recovery._driver_changed()  # as it is now: no news from here on
    async with going(recovery.watch(LOOKS)):
        node.now += 60
        await until(lambda: library(node, obj) == "libcuda.so.560")


@can_mount_dead
async def test_a_driver_that_hangs_costs_its_own_claims_alone(node: Node, driver: Driver) -> None:
    """Claims are unprepared, claims without the file are prepared, recovery goes on, and what is refused names the file."""
    dead = driver.root / "dead"
    spec = described(driver)
    spec["devices"][list(UUID.values()).index(UUID[1])]["containerEdits"] = driver.nodes("nvidia1") | {
        "mounts": [{"hostPath": str(dead / "fw"), "containerPath": "/fw"}]
    }
    dead.mkdir()
    (dead / "fw").touch()
    driver.prints(spec)
    node.timeout = 1.0
    node.start()
    fine, hit = await prepared(node, "a", "b")
    (dead / "fw").unlink()
    with dead_mount(dead):
        later = [claim(f"later-{i}", [result(1)], pods=[f"pod-later-{i}"]) for i in range(9)]
        node.api.put(*later, *(pod(f"pod-later-{i}", container("x", f"later-{i}")) for i in range(9)))
        for words in map(refusal, await node.prepare(*later)):
            assert f"the driver's file {dead}/fw has not answered" in words
        (other,) = await prepared(node, "c")
        recovery = node.recovery()
        await recovery.repair()
        assert set(recovery._failing._waits) == {hit["metadata"]["uid"]}
        assert await node.unprepare(fine, hit, other, *later) == [None] * 12
        await asyncio.wait_for(asyncio.to_thread(node.claims.close), 20)
    assert node.snapshot() == {}
