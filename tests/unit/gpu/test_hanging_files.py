"""Files that hang: each costs those alone who need it, and one thread, and is named."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.toolkit import ToolkitDriverEdits
from tests.unit.dead_mount import can_mount_dead, dead_mount
from tests.unit.gpu.edits import edits_of
from tests.unit.gpu.test_toolkit import A, B, Node
from tests.waiting import until

PATIENCE = 0.1


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two GPUs with a driver."""
    return Node(tmp_path)


async def refused(source: ToolkitDriverEdits, *uuids: str) -> str:
    """What is said to a claim of these GPUs."""
    with pytest.raises(HardwareError) as caught:
        await edits_of(source, uuids)
    return str(caught.value)


def threads() -> set[threading.Thread]:
    """Those for the driver's files."""
    return {thread for thread in threading.enumerate() if thread.name == "the driver's file"}


def at_work(source: ToolkitDriverEdits) -> list[str]:
    """The files that threads are at."""
    return [job.at for job in source._files._jobs]


@can_mount_dead
async def test_a_hanging_file_of_one_gpu_leaves_the_others_alone(node: Node) -> None:
    """Ten claims of that GPU are refused and told which file it is, with one thread left; others go on; after it all is well."""
    dead = node.root / "dead"
    spec = node.spec(A, B)
    spec["devices"][1]["containerEdits"]["mounts"] = [{"hostPath": str(dead / "fw"), "containerPath": "/fw"}]
    node.prints(spec)
    source, before = node.source(patience=PATIENCE), threads()
    with dead_mount(dead):
        for _ in range(10):
            assert f"the driver's file {dead / 'fw'} has not answered for" in await refused(source, B)
        assert A in (await edits_of(source, [A])).per_gpu
        assert f"{dead / 'fw'}" in await refused(source, A, B)
        assert at_work(source) == [str(dead / "fw")]
        assert len(threads() - before) <= 2, "one that hangs, and one that goes on"
    await until(lambda: not at_work(source))
    dead.mkdir()
    (dead / "fw").touch()
    assert set((await edits_of(source, [A, B])).per_gpu) == {A, B}


@can_mount_dead
async def test_a_toolkit_that_hangs_in_the_file_system_is_named(node: Node) -> None:
    """As a program on a dead network file system: nobody waits longer than for any other file."""
    dead = node.folder / "dead"
    source = node.source(toolkit=str(dead / "nvidia-ctk"), patience=PATIENCE)
    with dead_mount(dead):
        answers = [await refused(source, A) for _ in range(10)]
        assert all(f"the driver's file {dead}/nvidia-ctk has not answered" in answer for answer in answers)
        assert at_work(source) == [f"{dead}/nvidia-ctk"]
    await until(lambda: not at_work(source))


async def test_a_driver_that_does_not_say_its_version_is_named(node: Node) -> None:
    """/proc/driver/nvidia/version is answered by the driver, which may be stuck. Here by a FIFO that nobody writes into."""
    node.version.unlink()
    os.mkfifo(node.version)
    source, before = node.source(patience=PATIENCE), threads()
    try:
        many = await asyncio.gather(*(refused(source, A) for _ in range(30)))
        assert all(f"the driver's file {node.version} has not answered" in answer for answer in many)
        assert len(threads() - before) <= 2
        assert "has not answered" in await refused(source, A)
    finally:
        while at_work(source):
            descriptor = os.open(node.version, os.O_RDWR)
            await asyncio.sleep(0.01)
            os.close(descriptor)
    node.version.unlink()
    node.version.write_text("550")
    assert A in (await edits_of(source, [A])).per_gpu


async def test_no_second_toolkit_is_begun_beside_one_that_can_not_be_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in the driver can't be killed: each try would leave one more. It is named, and when it has gone all is well."""
    monkeypatch.setattr("hami_kubeletplugin.gpu.toolkit_run._KILL_TIMEOUT", 0.01)
    monkeypatch.setattr("hami_kubeletplugin.gpu.toolkit_run._kill", lambda process: None)
    go = node.folder / "go"
    node.does(f"while [ ! -e {go} ]; do sleep 0.02; done", f"cat {node.folder}/spec.json")
    source = node.source(timeout=0.3)
    assert "did not finish within 0.3 s" in await refused(source, A)
    process = await node.until_run()
    for _ in range(5):
        assert f"nvidia-ctk, process {process}, hangs in the driver and can't be ended" in await refused(source, A)
    assert len(node.runs) == 1
    go.touch()
    node.does(f"cat {node.folder}/spec.json")
    await until(lambda: source._process._stuck is not None and source._process._stuck.poll() is not None)
    assert A in (await edits_of(source, [A])).per_gpu
