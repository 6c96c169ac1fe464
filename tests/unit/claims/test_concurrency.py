"""Claims are worked on side by side, each by one task at a time, for a bounded time."""

import asyncio
import threading
from collections.abc import Collection, Mapping

import pytest

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.service import WORKERS
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from tests.unit.claims.node import Node, devices, refusal
from tests.unit.claims.objects import Json, simple
from tests.waiting import settled, until


class SlowPut:
    """Holds `NodeFiles.put` of one claim in its thread until told to go on."""

    def __init__(self, patch: pytest.MonkeyPatch, uid: str) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self.running = self.most = 0
        real = NodeFiles.put

        def put(self_: NodeFiles, prepared: Prepared, gpus: Mapping[str, Gpu], edits: DriverEdits) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            if prepared.uid == uid and not self.go_on.is_set():
                self.started.set()
                assert self.go_on.wait(60)
            real(self_, prepared, gpus, edits)
            self.running -= 1

        patch.setattr(NodeFiles, "put", put)


async def until_asked(node: Node, obj: Json, times: int) -> None:
    """Wait until so many hold the claim's lock or wait for it, and the loop has nothing left to do but wait."""
    await until(lambda: node.claims._locks.waiting(obj["metadata"]["uid"]) == times)
    await settled()


async def test_claims_are_worked_on_at_the_same_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One claim that is held up does not hold up others, of the same call or of another."""
    pairs = [simple(i) for i in range(3)]
    for obj, its_pod in pairs:
        node.api.put(obj, its_pod)
    slow, fast, later = (obj for obj, _ in pairs)
    held = SlowPut(monkeypatch, slow["metadata"]["uid"])
    call = asyncio.create_task(node.prepare(slow, fast))
    assert await asyncio.to_thread(held.started.wait, 20)
    assert devices((await node.prepare(later))[0])
    await until(lambda: node.spec(fast))
    held.go_on.set()
    assert all(devices(answer) for answer in await call)


async def test_one_claim_is_never_worked_on_twice_at_once(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls for the same claim wait for each other; an unprepare comes after the prepare that it met."""
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    calls = [asyncio.create_task(node.prepare(one)) for _ in range(3)]
    assert await asyncio.to_thread(held.started.wait, 20)
    await until_asked(node, one, 3)
    taking_away = asyncio.create_task(node.unprepare(one))
    await until_asked(node, one, 4)
    assert not taking_away.done()
    held.go_on.set()
    answers = [answer for call in calls for answer in await call]
    refused = [refusal(answer) for answer in answers if isinstance(answer, HamiError)]
    assert len(answers) - len(refused) == 1  # whichever came first
    assert all("unprepared before its turn came" in words for words in refused)
    assert held.most == 1
    assert await taking_away == [None]
    assert node.snapshot() == {}


async def test_a_claim_that_takes_too_long_is_answered(node: Node, one: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod's event gets our words, not the kubelet's time-out; the next call waits for the work that is under way."""
    node.timeout = 0.5
    node.start()
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    message = refusal((await node.prepare(one))[0])
    assert "claim default/c0: prepare did not end within 0.5 s and is given up; it will be tried again" in message
    # The thread still has the claim: a second call must not touch its files.
    assert "did not end within" in refusal((await node.prepare(one))[0])
    assert "unprepare did not end within" in refusal((await node.unprepare(one))[0])
    assert (held.running, held.most) == (1, 1)
    held.go_on.set()
    await until(lambda: not held.running)
    assert devices((await node.prepare(one))[0])
    assert held.most == 1


async def test_a_slow_api_server_runs_into_the_time_out(node: Node, one: Json) -> None:
    """Before the time-out of the call, so that the answer names it."""
    node.timeout = 0.5
    node.start()
    node.api.hold = threading.Event()
    assert "get c0 failed: no answer in time" in refusal((await node.prepare(one))[0])
    assert node.snapshot() == {}
    node.api.hold.set()
    assert devices((await node.prepare(one))[0])


async def test_work_that_is_given_up_ends_before_the_daemon_does(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet hangs up, or the daemon stops: file work ends under its lock, and closing waits for it."""
    node.timeout = 0.5
    node.start()
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    refusal((await node.prepare(one))[0])
    closing = asyncio.create_task(asyncio.to_thread(node.claims.close))
    await settled()
    assert not closing.done()
    held.go_on.set()
    await asyncio.wait_for(closing, 20)
    assert node.records.uids() == [one["metadata"]["uid"]]


async def test_what_is_given_up_before_it_wrote_writes_nothing(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet was told that the claim is not prepared, so nothing of it comes about later."""
    node.timeout = 0.3
    node.start()
    go_on = threading.Event()
    real = node.edits.edits

    def edits(uuids: Collection[str], *, deadline: float) -> DriverEdits:
        assert go_on.wait(60)
        return real(uuids, deadline=deadline)

    monkeypatch.setattr(node.edits, "edits", edits)
    assert "did not end within 0.3 s" in refusal((await node.prepare(one))[0])
    go_on.set()
    await asyncio.to_thread(node.claims.close)
    assert node.snapshot() == {}


async def test_closing_does_not_wait_for_an_api_server_that_is_away(node: Node, one: Json) -> None:
    """The daemon is to end in seconds; nothing of such a claim is there, and the kubelet asks the next daemon."""
    node.api.away = True
    call = asyncio.create_task(node.prepare(one))
    await until(lambda: node.api.gets > 0)
    await asyncio.wait_for(asyncio.to_thread(node.claims.close), 5)
    assert "the API server is away" in refusal((await call)[0])
    assert node.snapshot() == {}


async def test_unprepares_never_wait_for_the_api_server(node: Node) -> None:
    """A node full of prepares that wait for an API server that is away lets go of other claims all the same."""
    pairs = [simple(i, i % 4) for i in range(WORKERS + 2)]
    for obj, its_pod in pairs:
        node.api.put(obj, its_pod)
    prepared, *waiting = (obj for obj, _ in pairs)
    devices((await node.prepare(prepared))[0])
    node.api.hold = threading.Event()
    call = asyncio.create_task(node.prepare(*waiting))
    await until(lambda: node.claims._preparing._workers._work_queue.qsize() > 0)
    assert await node.unprepare(prepared) == [None]
    node.api.hold.set()
    assert all(devices(answer) for answer in await call)


async def test_an_unprepare_is_not_undone_by_a_prepare_that_came_before_it(node: Node) -> None:
    """One that had to wait for a thread, and on which the kubelet has hung up: the claim would stay until it is found stale."""
    pairs = [simple(i, i % 4) for i in range(WORKERS + 1)]
    for obj, its_pod in pairs:
        node.api.put(obj, its_pod)
    *busy, late = (obj for obj, _ in pairs)
    node.api.hold = threading.Event()
    calls = [asyncio.create_task(node.prepare(*busy))]
    await until(lambda: sum(node.claims._locks.waiting(obj["metadata"]["uid"]) for obj in busy) == WORKERS)
    calls.append(asyncio.create_task(node.prepare(late)))
    await until(lambda: node.claims._preparing._workers._work_queue.qsize() == 1)
    assert await node.unprepare(late) == [None]
    node.api.hold.set()
    assert all(devices(answer) for answer in await calls[0])
    assert "unprepared before its turn came" in refusal((await calls[1])[0])
    assert late["metadata"]["uid"] not in node.records.uids()
    assert devices((await node.prepare(late))[0])
    await settled()
    assert not node.claims._overtaken


async def test_more_claims_than_threads(node: Node) -> None:
    """A call with more claims than are worked on at the same time answers for all of them."""
    pairs = [simple(i, i % 4) for i in range(2 * WORKERS)]
    for obj, its_pod in pairs:
        node.api.put(obj, its_pod)
    answers = await node.prepare(*(obj for obj, _ in pairs))
    assert all(devices(answer) for answer in answers)


async def test_a_restore_does_not_bring_back_what_is_being_unprepared(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery meets the kubelet's unprepare: the record is read under the claim's lock."""
    devices((await node.prepare(one))[0])
    uid = one["metadata"]["uid"]
    at_work, go_on = threading.Event(), threading.Event()
    real = NodeFiles.take_away

    def take_away(self: NodeFiles, uid: str) -> None:
        at_work.set()
        assert go_on.wait(60)
        real(self, uid)

    monkeypatch.setattr(NodeFiles, "take_away", take_away)
    taking_away = asyncio.create_task(node.unprepare(one))
    assert await asyncio.to_thread(at_work.wait, 20)
    repairing = asyncio.create_task(node.recover())
    await until_asked(node, one, 2)
    go_on.set()
    assert await taking_away == [None]
    await repairing
    assert node.snapshot() == {}
    assert node.claims.restore(uid) is False
