"""Whether claims can be prepared on a node: looked at, told, and told again when it has changed."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
import structlog

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, Conditions, What
from hami_kubeletplugin.health import readiness as module
from hami_kubeletplugin.health.readiness import Check, Readiness, Wrong
from tests.waiting import until


class Node:
    """What checks find: set `wrong`, or have one hang."""

    def __init__(self) -> None:
        self.wrong: dict[str, Wrong | Exception] = {}
        self.gpus: Sequence[str] | None = ("GPU-0", "GPU-1")
        self.registered = True
        self.told: list[bool] = []
        self.looks: list[str] = []
        self.conditions = Conditions()
        self.free = threading.Event()
        self.free.set()

    def check(self, what: str, **more: float) -> Check:
        """A check of that name."""
        return Check(what, lambda: self._look(what), **more)

    def _look(self, what: str) -> Wrong:
        self.looks.append(what)
        if what == "hangs":
            self.free.wait(20)
        found = self.wrong.get(what, {})
        if isinstance(found, Exception):
            raise found
        return found

    def readiness(self, *checks: Check, clock: Callable[[], float] = time.monotonic) -> Readiness:
        """Of these checks."""
        return Readiness(
            checks or (self.check("hami-core"), self.check("toolkit")),
            conditions=self.conditions,
            gpus=lambda: self.gpus,
            registered=lambda: self.registered,
            told=self.told.append,
            clock=clock,
        )

    def values(self, uuid: str) -> list[str]:
        """Of the conditions of a GPU."""
        return [condition.value for condition in self.conditions.of(uuid) if condition.what is What.NOT_READY]


@pytest.fixture
def node() -> Node:
    """A node where nothing is wrong."""
    return Node()


@asynccontextmanager
async def running(readiness: Readiness) -> AsyncIterator[None]:
    """It looks by itself meanwhile."""
    task = asyncio.create_task(readiness.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_nothing_is_ready_before_it_was_looked_at(node: Node) -> None:
    """What is not known is not claimed: readiness comes with the first look, and no GPU has a condition."""
    readiness = node.readiness()
    assert "unknown" in readiness.lacking
    await readiness.look()
    assert not readiness.lacking
    assert node.told == [True]
    assert node.conditions.all.get() == {}


async def test_what_is_missing_is_told(node: Node) -> None:
    """All GPUs get the condition, with the first check's name as its value and every message; the log says each once."""
    node.wrong = {"hami-core": StorageError("no library"), "toolkit": {EVERY: "no nvidia-ctk"}}
    readiness = node.readiness()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await readiness.look()
    (condition,) = node.conditions.of("GPU-1")
    assert (condition.value, condition.message) == ("hami-core", "no library; no nvidia-ctk")
    assert readiness.lacking == ("hami-core", "toolkit")
    assert node.told == [False] * 3
    errors = [entry["error"] for entry in logs if entry["log_level"] == "error"]
    assert errors == ["no library", "no nvidia-ctk"]


async def test_it_ends_by_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair is seen without anybody saying so: the condition goes, claims can be prepared, and the log says so."""
    monkeypatch.setattr(module, "_FIRST", 0.02)
    node.wrong = {"hami-core": StorageError("no library")}
    readiness = node.readiness(node.check("hami-core", interval=0.05))
    with structlog.testing.capture_logs() as logs:
        async with running(readiness):
            await until(lambda: node.told and node.values("GPU-0") == ["hami-core"])
            node.wrong = {}
            await until(lambda: readiness.ready)
            assert node.conditions.all.get() == {}
            node.wrong = {"hami-core": StorageError("no library")}
            await until(lambda: not readiness.ready)
    assert [entry["log_level"] for entry in logs] == ["error", "info", "error"]


async def test_a_change_is_looked_at_at_once(node: Node) -> None:
    """Who says that something has changed, from any thread, is not made to wait for the next look."""
    node.wrong = {"hami-core": StorageError("no library")}
    readiness = node.readiness()
    async with running(readiness):
        await until(lambda: node.told)
        await readiness.look()
        node.wrong = {}
        await asyncio.to_thread(readiness.wake)
        await until(lambda: readiness.ready, within=1)


async def test_waits_grow_up_to_each_checks_own(node: Node) -> None:
    """What is dear is looked at less and less often while it fails; what is cheap stays within seconds."""
    now = 0.0
    node.wrong = {"cheap": StorageError("x"), "dear": StorageError("y")}
    readiness = node.readiness(node.check("cheap"), node.check("dear", interval=60.0, longest=30.0), clock=lambda: now)
    seen: dict[str, list[float]] = {"cheap": [], "dear": []}
    while now <= 120:
        node.looks.clear()
        await readiness.look(anyway=False)
        for what in node.looks:
            seen[what].append(now)
        now += 1
    waits = {what: [later - before for before, later in pairwise(at)] for what, at in seen.items()}
    assert waits["cheap"][:5] == [1, 2, 4, 5, 5]
    assert waits["dear"][:6] == [1, 2, 4, 8, 16, 30]
    assert max(waits["dear"]) == 30
    node.wrong = {}
    await readiness.look()
    node.looks.clear()
    for _ in range(60):
        now += 1
        await readiness.look(anyway=False)
    assert (node.looks.count("cheap"), node.looks.count("dear")) == (12, 1)


async def test_one_gpu_alone(node: Node) -> None:
    """What is wrong with one GPU is a condition of that one; the node is ready for the others, and not when all have it."""
    node.wrong = {"toolkit": {"GPU-1": "refused"}}
    readiness = node.readiness()
    await readiness.look()
    assert (node.values("GPU-0"), node.values("GPU-1")) == ([], ["toolkit"])
    assert readiness.ready
    node.gpus = ("GPU-1",)
    await readiness.look()
    assert readiness.lacking == ("toolkit",)


async def test_a_node_without_gpus(node: Node) -> None:
    """It is ready for what comes to it, nothing, so that rollouts go on. GPUs that it gets have the condition at once."""
    node.gpus = ()
    node.wrong = {"hami-core": StorageError("no library")}
    readiness = node.readiness()
    await readiness.look()
    assert readiness.ready
    assert node.values("GPU-0") == ["hami-core"]


async def test_gpus_that_are_not_known_yet(node: Node) -> None:
    """Until the driver has answered for the first time nobody knows what there is to be ready for."""
    node.gpus = None
    readiness = node.readiness()
    await readiness.look()
    assert readiness.lacking == ("unknown",)
    node.gpus = ()
    await readiness.look()
    assert readiness.ready


async def test_without_registration(node: Node) -> None:
    """A node that the kubelet has not registered yet is not ready, but that alone is no condition of its GPUs."""
    node.registered = False
    readiness = node.readiness()
    await readiness.look()
    assert readiness.lacking == ("registration",)
    assert node.conditions.all.get() == {}


async def test_a_check_that_hangs(node: Node) -> None:
    """It is told like one that fails, holds up neither the others nor the end, keeps one thread, and ends when it answers."""
    node.free.clear()
    readiness = node.readiness(node.check("hangs", within=0.05), node.check("hami-core"))
    for _ in range(5):
        await readiness.look()
    assert readiness.lacking == ("hangs",)
    assert "no answer" in node.conditions.of("GPU-0")[0].message
    assert node.looks.count("hangs") == 1
    assert node.looks.count("hami-core") == 5
    assert [thread.name for thread in threading.enumerate()].count("ready: hangs") == 1
    node.free.set()

    async def looked() -> None:
        while not readiness.ready:
            await readiness.look()

    await asyncio.wait_for(looked(), 10)


async def test_a_fault_of_ours(node: Node) -> None:
    """A check that fails unexpectedly keeps the node from being ready, with words, and ends nothing."""
    node.wrong = {"toolkit": KeyError("x")}
    readiness = node.readiness()
    await readiness.look()
    assert readiness.lacking == ("toolkit",)
    assert "KeyError" in node.conditions.of("GPU-0")[0].message


async def test_it_can_be_cancelled_while_it_is_woken(node: Node) -> None:
    """The daemon's end, of which the registration's is a part, wakes it and ends it at the same time."""
    readiness = node.readiness()
    task = asyncio.create_task(readiness.run())
    await until(lambda: node.told)
    await asyncio.sleep(0.05)
    readiness._woken.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 5)
    assert task.cancelled()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({}, {}),
        ({"a": {EVERY: "x"}, "b": {EVERY: "x"}}, {EVERY: ("a", "x")}),
        ({"a": {EVERY: "x"}, "b": {"GPU-0": "y"}}, {EVERY: ("a", "x"), "GPU-0": ("b", "y")}),
    ],
)
def test_conditions(wrong: dict[str, Wrong], expected: dict[str, tuple[str, str]]) -> None:
    """Each GPU has one condition at the most of what is wrong, with each message once."""
    found: Callable[..., dict[str, tuple[Condition, ...]]] = module.found
    assert {uuid: (c.value, c.message) for uuid, (c,) in found(wrong, 1.0).items()} == expected
