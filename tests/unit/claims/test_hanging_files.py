"""File systems of the node that hang: what needs them is refused and says what hangs, all else goes on."""

import threading
from collections.abc import Iterator

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import host
from tests.unit.claims.node import Node, devices, prepared, refusal
from tests.unit.claims.objects import Json, claim, container, pod, result
from tests.unit.dead_mount import can_mount_dead, dead_mount
from tests.waiting import until

pytestmark = can_mount_dead


@pytest.fixture
def node(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """With little patience."""
    monkeypatch.setattr(host, "_PATIENCE", 0.2)
    node.timeout = 1.0
    node.start()
    yield node
    node.claims.close()


def asked(node: Node, *names: str, device: int = 1, slots: str = "1", memory: str = "1000Mi") -> list[Json]:
    """Claims of one pod each on one GPU."""
    claims = [claim(name, [result(device, memory, "0", slots=slots)], pods=[f"pod-{name}"]) for name in names]
    node.api.put(*claims, *(pod(f"pod-{name}", container("x", name)) for name in names))
    return claims


def answers(node: Node) -> bool:
    """Whether the kernel has let go of HAMi-core's files."""
    try:
        node.host.check()
    except StorageError:
        return False
    return True


async def test_hami_core_that_hangs_costs_what_needs_it(node: Node) -> None:
    """200 prepares with limits are refused and leave no threads; whole GPUs are prepared, and all are unprepared."""
    others = {*threading.enumerate()}  # those of the tests before rest for some seconds
    before = await prepared(node, "a", "b")
    library = node.host.check().library
    limited = asked(node, *(f"limited-{number}" for number in range(20)))
    (whole,) = asked(node, "whole", device=2, slots="10k", memory="80Gi")
    with dead_mount(node.hami / "lib"):
        for _ in range(10):
            for words in map(refusal, await node.prepare(*limited)):
                assert f"HAMi-core's file {library} has not answered for" in words
        hanging = [thread for thread in {*threading.enumerate()} - others if thread.name == "HAMi-core's file"]
        assert len(hanging) <= 8
        devices((await node.prepare(whole))[0])
        assert await node.unprepare(whole, *before) == [None] * 3
    await until(lambda: answers(node))
    for answer in await node.prepare(*limited):
        devices(answer)


async def test_a_folder_of_hami_core_that_hangs(node: Node) -> None:
    """So it is when all of it does, as on a disk that is gone: refused in time, and told which."""
    limited = asked(node, *(f"limited-{number}" for number in range(20)))
    with dead_mount(node.hami):
        for _ in range(3):
            for words in map(refusal, await node.prepare(*limited)):
                assert f"HAMi-core's file {node.hami} has not answered for" in words
    await until(lambda: answers(node))
    for answer in await node.prepare(*limited):
        devices(answer)


async def test_what_a_claim_hangs_at_is_said(node: Node) -> None:
    """To who waits for it, and to who comes after that."""
    (one,) = asked(node, "one")
    record = node.records.path(one["metadata"]["uid"])
    with dead_mount(record.parent):
        first, second = [refusal((await node.prepare(one))[0]) for _ in range(2)]
        assert "did not end within 1 s" in first
        for words in (first, second):
            assert "is in files." in words
            assert f"({record})" in words
    devices((await node.prepare(one))[0])
