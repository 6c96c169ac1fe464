"""The service: claims of a call side by side, each with its own answer; convergent, patient, bounded in time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from claims_node import (
    GPUS,
    Json,
    Node,
    claim,
    config,
    container,
    devices,
    driver_edits,
    gpu,
    inject,
    inventory,
    kubelet_ids,
    pod,
    refusal,
    result,
    uid_of,
)
from file_faults import faults

from hami_kubeletplugin.api.errors import RecordDamaged
from hami_kubeletplugin.claims import state
from hami_kubeletplugin.kube.client import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.standin.api_server import ApiServer

UUID = {minor: GPUS.by_device_name()[f"hami-gpu-{minor}"].uuid for minor in range(4)}


def simple(number: int, device: int = 0) -> tuple[Json, Json]:
    """A claim and its pod."""
    obj = claim(f"c{number}", [result(device, "1Gi", "10")], pods=[f"p{number}"])
    return obj, pod(f"p{number}", container("x", f"c{number}"))


def limits(node: Node, *claims: Json) -> dict[str, tuple[int, int]]:
    """What a container that uses all of these claims is limited to, from the files that are there."""
    answers = {}
    for obj in claims:
        record = node.records.load(obj["metadata"]["uid"])
        assert record is not None
        answers[obj["metadata"]["name"]] = record.devices("k8s.gpu.hami.io/claim")
    ids = kubelet_ids(answers, [(name, None) for name in answers])
    seen, other = inject(node.all_specs(), ids), inject(node.all_specs(), ids[::-1])
    assert seen.limits(GPUS) == other.limits(GPUS)
    return seen.limits(GPUS)


# Against the stand-in API server, over HTTP


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """The stand-in API server."""
    async with ApiServer() as made:
        yield made


@pytest.fixture
async def served(server: ApiServer, tmp_path: Path, library: Path) -> AsyncIterator[Node]:
    """A node that talks to it."""
    async with KubeClient(Access(server.url)) as client:
        yield Node(tmp_path / "node", library, client)


async def test_a_bad_claim_does_not_fail_the_others(server: ApiServer, served: Node) -> None:
    """Every claim of a call has its own answer; the bad ones say why, the good ones are prepared."""
    claims, pods = zip(*(simple(i) for i in range(5)), strict=True)
    for obj in pods:
        server.put("pods", obj)
    claims[1]["status"]["allocation"] = None
    claims[2]["status"]["allocation"]["devices"]["config"] = [config(corePolicy="forced")]
    for obj in claims[:4]:
        server.put("resourceclaims", obj)
    answers = await served.prepare(*claims)
    assert len(devices(answers[0])) == len(devices(answers[3])) == 1
    assert "is not allocated" in refusal(answers[1])
    assert "corePolicy" in refusal(answers[2])
    assert "claim default/c4 is not found in the API server" in refusal(answers[4])
    assert served.records.uids() == sorted(claims[i]["metadata"]["uid"] for i in (0, 3))
    assert await served.unprepare(*claims) == [None] * 5
    assert served.snapshot() == {}


async def test_each_object_is_asked_for_once(server: ApiServer, served: Node) -> None:
    """A batch of 16 claims of one pod costs 16 claims and one pod, all at the same time."""
    claims = [claim(f"c{i}", [result(i % 4, "1Gi", "1")]) for i in range(16)]
    server.put("pods", pod("p", container("x", *(f"c{i}" for i in range(16)))))
    for obj in claims:
        server.put("resourceclaims", obj)
    server.latency = 0.05
    async with asyncio.timeout(5):
        answers = await served.prepare(*claims)
    assert all(devices(answer) for answer in answers)
    assert (server.requests["get", "resourceclaims"], server.requests["get", "pods"]) == (16, 1)
    assert limits(served, *claims) == dict.fromkeys(UUID.values(), (4096, 4))


async def test_an_api_server_that_comes_back_is_waited_for(server: ApiServer, served: Node) -> None:
    """The kubelet would come back only after a minute and a half, so prepare asks again itself."""
    obj, its_pod = simple(0)
    server.put("pods", its_pod)
    server.put("resourceclaims", obj)
    server.fail(503, resource="resourceclaims", times=2)
    server.fail(429, resource="pods", times=1)
    assert devices((await served.prepare(obj))[0])
    await server.down()
    preparing = asyncio.create_task(served.prepare(obj))
    await asyncio.sleep(0.2)
    assert not preparing.done()
    await server.up()
    async with asyncio.timeout(10):
        assert devices((await preparing)[0])


async def test_an_api_server_that_stays_away_is_named(server: ApiServer, served: Node) -> None:
    """Patience ends before the time-out of the call, so that the answer carries the API server's own failure."""
    obj, _ = simple(0)
    served.timeout = 0.5
    served.start()
    server.fail(503, message="etcd is down")
    message = refusal((await served.prepare(obj))[0])
    assert "etcd is down" in message
    assert served.snapshot() == {}


async def test_unprepare_needs_no_api_server(server: ApiServer, served: Node) -> None:
    """A node must be able to let go of claims whatever else is broken."""
    obj, its_pod = simple(0)
    server.put("pods", its_pod)
    server.put("resourceclaims", obj)
    devices((await served.prepare(obj))[0])
    await server.down()
    asked = sum(server.requests.values())
    served.inventory = None
    served.start()
    assert await served.unprepare(obj, simple(1)[0]) == [None, None]
    assert served.snapshot() == {}
    assert sum(server.requests.values()) == asked


# Refusals that need more than the claim


@pytest.fixture
def one(node: Node) -> Json:
    """A claim whose objects are there."""
    obj, its_pod = simple(0)
    node.api.put(obj, its_pod)
    return obj


async def test_a_pod_that_is_gone_is_named(node: Node, one: Json) -> None:
    """Nobody is left to prepare for: deleted, finished, or replaced by another pod of its name."""
    node.api.pods.clear()
    assert "is reserved for pod default/p0, which is gone" in refusal((await node.prepare(one))[0])
    node.api.put(pod("p0", container("x", "c0"), phase="Succeeded"))
    assert "which is gone" in refusal((await node.prepare(one))[0])
    other = pod("p0", container("x", "c0"))
    other["metadata"]["uid"] = "another"
    node.api.put(other)
    assert "which is gone" in refusal((await node.prepare(one))[0])
    assert node.snapshot() == {}


async def test_a_finished_pod_does_not_count(node: Node) -> None:
    """It may still stand in reservedFor, but it uses nothing any more."""
    obj = claim("c", [result()], pods=("old", "new"))
    node.api.put(obj, pod("old", container("x", "c"), phase="Failed"), pod("new", container("x", "c")))
    assert devices((await node.prepare(obj))[0])
    record = node.records.load(obj["metadata"]["uid"])
    assert record is not None
    assert [p.name for p in record.pods] == ["new"]


async def test_a_replaced_claim_is_refused(node: Node, one: Json) -> None:
    """The kubelet still has the UID of the former claim."""
    node.api.put(claim("c0", [result()], pods=["p0"], uid=uid_of("claim", "newer")))
    assert "got replaced" in refusal((await node.prepare(one))[0])


async def test_without_a_driver_the_reason_is_passed_on(node: Node, one: Json) -> None:
    """The GPUs can't be seen: the answer is the hardware's own error, and a later try works."""
    there, node.inventory = node.inventory, None
    assert refusal((await node.prepare(one))[0]) == "no NVIDIA driver on this node"
    node.inventory = there
    assert devices((await node.prepare(one))[0])


async def test_a_uid_that_is_none_is_refused(node: Node) -> None:
    """A UID becomes part of paths; nothing else than a UID is taken, in either call."""
    obj = claim("c", [result()], uid="../../etc/passwd")
    assert "is not a UID" in refusal((await node.prepare(obj))[0])
    assert "is not a UID" in refusal((await node.unprepare(obj))[0])


async def test_a_bug_of_ours_fails_one_claim_and_is_named(node: Node, one: Json) -> None:
    """An unexpected exception is an answer too, with its type; the daemon lives on."""
    node.api.claims["default", "c0"]["status"]["allocation"]["devices"]["results"] = [7]
    message = refusal((await node.prepare(one))[0])
    assert "claim default/c0: prepare failed by a fault of the driver: AttributeError" in message


# Convergence


async def test_the_answer_is_the_same_and_nothing_is_written_again(node: Node, one: Json) -> None:
    """The kubelet keeps the CDI IDs of an earlier answer beside ours; and a repeat costs no write."""
    first = await node.prepare(one)
    before = node.snapshot()
    with faults(node.root) as counted:
        assert await node.prepare(one) == first
    assert counted.writes == ["mkdir"] * counted.writes.count("mkdir")  # tried on directories that are there
    assert node.snapshot() == before
    node.start()
    assert await node.prepare(one) == first
    assert node.snapshot() == before


def delete_spec(node: Node, uid: str) -> None:
    """As `rm /var/run/cdi/*` does."""
    node.specs.path(uid).unlink()


def delete_cdi_directory(node: Node, uid: str) -> None:
    """The directory itself too."""
    delete_spec(node, uid)
    node.cdi.rmdir()


def delete_cache(node: Node, uid: str) -> None:
    """As a clean-up job might."""
    (node.hami / "cache" / uid / "use-0").rmdir()


def delete_record(node: Node, uid: str) -> None:
    """By hand."""
    node.records.path(uid).unlink()


def damage_record(node: Node, uid: str) -> None:
    """A power cut."""
    node.records.path(uid).write_bytes(b"\x00" * 200)


def edit_spec(node: Node, uid: str) -> None:
    """By hand."""
    path = node.specs.path(uid)
    path.write_text(path.read_text().replace("1024m", "9999m"))


@pytest.mark.parametrize(
    "harm", [delete_spec, delete_cdi_directory, delete_cache, delete_record, damage_record, edit_spec]
)
async def test_prepare_makes_good_what_was_harmed(node: Node, one: Json, harm: Callable[[Node, str], None]) -> None:
    """Prepare is convergent, not "already done": same IDs, and all is there again."""
    first = await node.prepare(one)
    before = node.snapshot()
    harm(node, one["metadata"]["uid"])
    assert node.snapshot() != before
    assert await node.prepare(one) == first
    assert node.snapshot() == before


async def test_a_damaged_record_is_kept_for_people(node: Node, one: Json) -> None:
    """It is set aside under its name, and goes when it is damaged again: one for each claim."""
    devices((await node.prepare(one))[0])
    path = node.records.path(one["metadata"]["uid"])
    for content in (b"first", b"second"):
        path.write_bytes(content)
        devices((await node.prepare(one))[0])
        assert [p.read_bytes() for p in (path.parent / "damaged").iterdir()] == [content]


async def test_a_newer_record_is_refused_and_left(node: Node, one: Json) -> None:
    """What a newer program wrote may mean more than we know; unprepare takes it away all the same."""
    devices((await node.prepare(one))[0])
    path = node.records.path(one["metadata"]["uid"])
    newer = path.read_bytes().replace(b'"version": 1', b'"version": 2')
    path.write_bytes(newer)
    assert "this program knows 1; go back to the newer program" in refusal((await node.prepare(one))[0])
    assert path.read_bytes() == newer
    assert await node.unprepare(one) == [None]
    assert node.snapshot() == {}


async def test_a_new_allocation_replaces_the_former(node: Node, one: Json) -> None:
    """Deallocated and allocated anew under one UID: spec, record and region follow, since a region keeps its first limit."""
    devices((await node.prepare(one))[0])
    region = node.hami / "cache" / one["metadata"]["uid"] / "use-0" / "vgpu.cache"
    region.write_text("limits of old")
    again = claim("c0", [result(3, "7Gi", "0")], pods=["p0"])
    node.api.put(again)
    (device,) = devices((await node.prepare(again))[0])
    assert device.device == "hami-gpu-3"
    assert limits(node, again) == {UUID[3]: (7168, 0)}
    assert not region.exists()


async def test_a_running_containers_cache_is_never_reset(node: Node, one: Json) -> None:
    """Neither a repeat, a restart of the daemon, a lost record nor a damaged one empties it in the same boot."""
    devices((await node.prepare(one))[0])
    uid = one["metadata"]["uid"]
    region = node.hami / "cache" / uid / "use-0" / "vgpu.cache"
    region.write_text("in use")
    for harm in (lambda *_: None, delete_record, damage_record, delete_spec):
        harm(node, uid)
        node.start()
        devices((await node.prepare(one))[0])
        await node.recover()
        assert region.read_text() == "in use"


async def test_a_failed_prepare_spares_what_runs(node: Node, one: Json) -> None:
    """A record that is lost while a container runs, and a disk that is full when it is made anew."""
    devices((await node.prepare(one))[0])
    uid = one["metadata"]["uid"]
    region = node.hami / "cache" / uid / "use-0" / "vgpu.cache"
    region.write_text("in use")
    delete_record(node, uid)
    edit_spec(node, uid)
    spec = node.specs.path(uid)
    spec.with_name(spec.name + ".tmp").mkdir()  # so that writing the spec fails
    refusal((await node.prepare(one))[0])
    assert region.read_text() == "in use"
    assert spec.exists()


@pytest.mark.parametrize("harm", [lambda *_: None, damage_record, delete_record])
async def test_after_a_reboot_all_is_made_anew(node: Node, one: Json, harm: Callable[[Node, str], None]) -> None:
    """The CDI directory is gone, and region files tell of processes that are gone; the answer stays."""
    first = await node.prepare(one)
    uid = one["metadata"]["uid"]
    region = node.hami / "cache" / uid / "use-0" / "vgpu.cache"
    region.write_text("of the former boot")
    before = node.spec(one)
    harm(node, uid)
    node.reboot()
    await node.recover()
    assert await node.prepare(one) == first
    assert node.spec(one) == before
    assert not region.exists()


async def test_a_device_name_that_means_another_gpu_now_is_refused(node: Node, one: Json) -> None:
    """After a reboot with a GPU less, minors are given out anew; the pod must not land on another GPU than allocated."""
    devices((await node.prepare(one))[0])
    node.inventory = inventory([gpu(0, 0x86, name="1"), gpu(1, 0x3B, name="2")])
    node.reboot()
    message = refusal((await node.prepare(one))[0])
    assert (
        f"device hami-gpu-0 was GPU {UUID[0]} when it was allocated and is GPU {UUID[1]} now; delete the pod" in message
    )


async def test_cost_does_not_grow_with_prepared_claims(node: Node) -> None:
    """The same file operations whether one or 300 other claims are prepared."""
    counts = []
    for number in (1, 300):
        while len(node.records.uids()) < number:
            obj, its_pod = simple(len(node.records.uids()) + 1)
            node.api.put(obj, its_pod)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("os.fsync", lambda descriptor: None)
                devices((await node.prepare(obj))[0])
        obj, its_pod = simple(1000)
        node.api.put(obj, its_pod)
        with faults(node.root) as prepare:
            devices((await node.prepare(obj))[0])
        with faults(node.root) as unprepare:
            assert await node.unprepare(obj) == [None]
        counts.append((prepare.names, unprepare.names))
    assert counts[0] == counts[1]
    assert counts[0][0].count("fsync") == 2  # the record and its name: all that must survive a power cut


# Two claims in one container


async def test_a_claim_prepared_before_is_planned_anew_with_its_neighbour(node: Node) -> None:
    """A new pod uses a claim that is still prepared for a former pod together with another: the kubelet names the other alone."""
    first = claim("c", [result(0, "1Gi", "10")], pods=["old"])
    node.api.put(first, pod("old", container("x", "c")))
    devices((await node.prepare(first))[0])
    node.api.put(pod("old", container("x", "c"), phase="Succeeded"))
    both = claim("c", [result(0, "1Gi", "10")], pods=["new"]), claim("d", [result(2, "2Gi", "0")], pods=["new"])
    node.api.put(*both, pod("new", container("x", "c", "d")))
    devices((await node.prepare(both[1]))[0])
    assert limits(node, *both) == {UUID[0]: (1024, 10), UUID[2]: (2048, 0)}


async def test_two_claims_of_a_container_in_one_call(node: Node) -> None:
    """The usual case, and its repeat."""
    both = claim("c", [result(0, "1Gi", "10")]), claim("d", [result(2, "2Gi", "0")])
    node.api.put(*both, pod("p", container("x", "c", "d")))
    answers = [devices(answer) for answer in await node.prepare(*both)]
    assert limits(node, *both) == {UUID[0]: (1024, 10), UUID[2]: (2048, 0)}
    assert [devices(answer) for answer in await node.prepare(*both)] == answers
    assert await node.unprepare(*both) == [None, None]
    assert node.snapshot() == {}


# Time and concurrency


class SlowPut:
    """Holds `NodeState.put` of one claim in its thread until told to go on."""

    def __init__(self, patch: pytest.MonkeyPatch, uid: str) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self.running = self.most = 0
        real = state.NodeState.put

        def put(self_: state.NodeState, prepared: object, *more: object) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            if prepared.uid == uid and not self.go_on.is_set():  # type: ignore[attr-defined]
                self.started.set()
                assert self.go_on.wait(10)
            real(self_, prepared, *more)  # type: ignore[arg-type]
            self.running -= 1

        patch.setattr(state.NodeState, "put", put)


async def test_claims_are_worked_on_at_the_same_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One claim that is held up does not hold up others, of the same call or of another."""
    pairs = [simple(i) for i in range(3)]
    for obj, its_pod in pairs:
        node.api.put(obj, its_pod)
    slow, fast, later = (obj for obj, _ in pairs)
    held = SlowPut(monkeypatch, slow["metadata"]["uid"])
    call = asyncio.create_task(node.prepare(slow, fast))
    await asyncio.to_thread(held.started.wait, 5)
    async with asyncio.timeout(5):
        assert devices((await node.prepare(later))[0])
        while node.spec(fast) is None:  # noqa: ASYNC110 - a file signals nothing
            await asyncio.sleep(0.01)
    held.go_on.set()
    assert all(devices(answer) for answer in await call)


async def test_one_claim_is_never_worked_on_twice_at_once(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls for the same claim wait for each other; an unprepare comes after the prepare that it met."""
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    calls = [asyncio.create_task(node.prepare(one)) for _ in range(3)]
    await asyncio.to_thread(held.started.wait, 5)
    taking_away = asyncio.create_task(node.unprepare(one))
    await asyncio.sleep(0.05)
    assert not taking_away.done()
    held.go_on.set()
    for call in calls:
        assert devices((await call)[0])
    assert held.most == 1
    assert await taking_away == [None]
    assert node.snapshot() == {}


async def test_a_claim_that_takes_too_long_is_answered(node: Node, one: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod's event gets our words, not the kubelet's time-out; the next call waits for the work that is under way."""
    node.timeout = 0.2
    node.start()
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    message = refusal((await node.prepare(one))[0])
    assert "claim default/c0: prepare did not end within 0.2 s and is given up; it will be tried again" in message
    # The thread still has the claim: a second call must not touch its files.
    assert "did not end within" in refusal((await node.prepare(one))[0])
    assert "unprepare did not end within" in refusal((await node.unprepare(one))[0])
    assert (held.running, held.most) == (1, 1)
    held.go_on.set()
    await asyncio.wait_for(node.claims.drain(), 5)
    assert devices((await node.prepare(one))[0])
    assert held.most == 1


async def test_a_slow_api_server_runs_into_the_time_out(node: Node, one: Json) -> None:
    """Before the time-out of the call, so that the answer names it."""
    node.timeout = 0.2
    node.start()
    node.api.hold = asyncio.Event()
    assert "the API server gave no answer about default/c0 in time" in refusal((await node.prepare(one))[0])
    assert node.snapshot() == {}
    node.api.hold.set()
    assert devices((await node.prepare(one))[0])


async def test_a_call_that_is_given_up_leaves_nothing_running(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet hangs up, or the daemon stops: file work ends under its lock, and drain waits for it."""
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    call = asyncio.create_task(node.prepare(one))
    await asyncio.to_thread(held.started.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    draining = asyncio.create_task(node.claims.drain())
    await asyncio.sleep(0.05)
    assert not draining.done()
    held.go_on.set()
    await asyncio.wait_for(draining, 5)
    assert node.records.uids() == [one["metadata"]["uid"]]
    assert len(asyncio.all_tasks()) == 1


async def test_a_restore_that_is_cancelled_twice_keeps_its_lock(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock covers the thread to its end however often the task around it is cancelled."""
    devices((await node.prepare(one))[0])
    held = SlowPut(monkeypatch, one["metadata"]["uid"])
    restoring = asyncio.create_task(node.claims.restore(one["metadata"]["uid"]))
    await asyncio.to_thread(held.started.wait, 5)
    for _ in range(3):
        restoring.cancel()
        await asyncio.sleep(0.01)
    taking_away = asyncio.create_task(node.unprepare(one))
    await asyncio.sleep(0.05)
    assert not taking_away.done()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert await taking_away == [None]
    assert node.snapshot() == {}


async def test_the_same_claim_twice_in_a_call(node: Node, one: Json) -> None:
    """It is worked on once and answered once."""
    assert devices((await node.prepare(one, one))[0])
    assert node.api.gets == 2


async def test_no_claims(node: Node) -> None:
    """An empty call has an empty answer."""
    assert await node.claims.prepare([]) == {}
    assert await node.claims.unprepare([]) == {}


async def test_a_restore_does_not_bring_back_what_is_being_unprepared(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep meets the kubelet's unprepare: the record is read under the claim's lock."""
    devices((await node.prepare(one))[0])
    uid = one["metadata"]["uid"]
    at_work, go_on = threading.Event(), threading.Event()
    real = state.NodeState.take_away

    def take_away(self: state.NodeState, uid: str) -> None:
        at_work.set()
        assert go_on.wait(10)
        real(self, uid)

    monkeypatch.setattr(state.NodeState, "take_away", take_away)
    taking_away = asyncio.create_task(node.unprepare(one))
    await asyncio.to_thread(at_work.wait, 5)
    repairing = asyncio.create_task(node.recover())
    await asyncio.sleep(0.05)
    go_on.set()
    assert await taking_away == [None]
    await repairing
    assert node.snapshot() == {}
    assert await node.claims.restore(uid) is False


async def test_restore_says_when_a_record_is_damaged(node: Node, one: Json) -> None:
    """Upkeep then makes it anew."""
    devices((await node.prepare(one))[0])
    damage_record(node, one["metadata"]["uid"])
    with pytest.raises(RecordDamaged):
        await node.claims.restore(one["metadata"]["uid"])


async def test_driver_edits_that_fail_refuse_the_claim(node: Node, one: Json) -> None:
    """No libcuda: refused; edits in order again: prepared."""
    node.edits.made = driver_edits([UUID[0]], libcuda=False)
    assert "mount no libcuda.so" in refusal((await node.prepare(one))[0])
    assert node.snapshot() == {}
    node.edits.made = None
    assert devices((await node.prepare(one))[0])
