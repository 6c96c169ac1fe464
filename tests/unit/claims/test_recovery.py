"""Recovery: recovery at the start, repair when the hardware changes, clean-up of stale claims."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import ApiForbidden, StorageError
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.recovery import Recovery
from tests.unit.claims.cdi_runtime import inject
from tests.unit.claims.node import (
    GPUS,
    Json,
    Node,
    claim,
    container,
    devices,
    inventory,
    pod,
    result,
    uid_of,
)
from tests.waiting import until


async def prepared(node: Node, *names: str) -> list[Json]:
    """Claims of one pod each, prepared."""
    claims = [claim(name, [result(i % 4)], pods=[f"pod-{name}"]) for i, name in enumerate(names)]
    node.api.put(*claims, *(pod(f"pod-{name}", container("x", name)) for name in names))
    for answer in await node.prepare(*claims):
        devices(answer)
    return claims


def uids(*claims: Json) -> list[str]:
    """Sorted."""
    return sorted(c["metadata"]["uid"] for c in claims)


def gone(node: Node) -> None:
    """The object is deleted."""
    node.api.claims.clear()


def replaced(node: Node) -> None:
    """Another object has its name."""
    node.api.put(claim("c", [result()], uid=uid_of("claim", "newer")))


def deallocated(node: Node) -> None:
    """Force-deleted pod: the claim is free again."""
    node.api.claims["default", "c"]["status"] = {}


def somebody_elses(node: Node) -> None:
    """Allocated anew, to devices of another driver."""
    node.api.put(claim("c", [result(driver="net.example.com")]))


def another_nodes(node: Node) -> None:
    """Allocated anew, to a device of ours on another node."""
    node.api.put(claim("c", [result() | {"pool": "node-2"}]))


@pytest.mark.parametrize("change", [gone, replaced, deallocated, somebody_elses, another_nodes])
async def test_a_stale_claim_is_unprepared_after_the_grace(node: Node, change: Callable[[Node], None]) -> None:
    """Not at once: its containers may still be stopping, and the kubelet normally unprepares it itself."""
    await prepared(node, "c")
    change(node)
    before = node.snapshot()
    recovery = node.recovery()
    for node.now in (1000, 1299.9):
        await recovery.clean_up()
        assert node.snapshot() == before
    node.now = 1300
    await recovery.clean_up()
    assert node.snapshot() == {}


def come_late(node: Node, obj: Json) -> None:
    """A pod comes to a claim that is prepared for another; the kubelet doesn't ask us again."""
    reserved = claim("c", [result()], pods=["pod-c", "late"])["status"]["reservedFor"]
    node.api.put({**obj, "status": {**obj["status"], "reservedFor": reserved}}, pod("late", container("x", "c")))


@pytest.mark.parametrize("shipped", ["variables"], indirect=True)
async def test_pods_that_come_late_to_a_claim_are_named_once(node: Node) -> None:
    """Nobody can keep them from starting; at least the log says who shares the claim."""
    (obj,) = await prepared(node, "c")
    come_late(node, obj)
    recovery = node.recovery()
    with capture_logs() as log:
        await recovery.clean_up()
        await recovery.clean_up()
    assert [entry["pods"] for entry in log if "share a claim" in entry["event"]] == [["late"]]


@pytest.mark.parametrize("shipped", ["regions"], indirect=True)
async def test_a_late_pod_gets_the_claim_when_the_one_before_has_ended(node: Node) -> None:
    """Until then its containers are refused by their hook, and the log says why; the region in use is left alone."""
    (obj,) = await prepared(node, "c")
    node.region(obj).write_text("in use")
    come_late(node, obj)
    before = node.snapshot()
    with capture_logs() as log:
        await node.recovery().clean_up()
    assert "would both get the whole limit" in str(log)
    assert node.snapshot() == before
    node.api.put(pod("pod-c", container("x", "c"), phase="Succeeded"))
    await node.recovery().clean_up()
    spec = node.spec(obj)
    assert spec is not None
    renewal = inject([spec], [f"{spec['kind']}={spec['devices'][0]['name']}"]).renewal()
    assert renewal is not None
    assert renewal.pods == (uid_of("pod", "late"),)
    assert node.region(obj).read_text() == "in use"


async def test_claims_in_use_stay(node: Node) -> None:
    """However long the daemon runs."""
    await prepared(node, "a", "b")
    before = node.snapshot()
    recovery = node.recovery()
    for node.now in (0, 10_000, 20_000):
        await recovery.clean_up()
    assert node.snapshot() == before


async def test_the_grace_starts_again_when_a_claim_was_seen_in_use(node: Node) -> None:
    """Only a claim that is stale all the time is stale."""
    (obj,) = await prepared(node, "c")
    before = node.snapshot()
    recovery = node.recovery()
    for node.now, there in ((0, False), (299, True), (301, False), (600, False)):
        gone(node)
        if there:
            node.api.put(obj)
        await recovery.clean_up()
        assert node.snapshot() == before
    node.now = 601
    await recovery.clean_up()
    assert node.snapshot() == {}


async def test_a_claim_prepared_anew_during_a_clean_up_stays(node: Node) -> None:
    """It was free when the clean-up looked at it, and is allocated and prepared here again before its turn to go comes."""
    node.grace = 0
    claims = await prepared(node, "a", "b")
    first, second = sorted(claims, key=lambda c: c["metadata"]["uid"])
    saved = node.api.claims.pop(("default", first["metadata"]["name"]))
    get_claim = node.recovery_api.get_claim

    async def prepares(namespace: str, name: str) -> Json:
        if name == second["metadata"]["name"]:
            node.api.put(saved)
            devices((await node.prepare(saved))[0])
        return dict(await get_claim(namespace, name))

    node.recovery_api.get_claim = prepares  # type: ignore[method-assign]
    await node.recovery().clean_up()
    assert sorted(node.records.uids()) == uids(*claims)


async def test_an_api_server_that_is_away_makes_nothing_stale(node: Node) -> None:
    """In doubt a claim is in use; one question is enough to know that it is away, and one line in the log."""
    await prepared(node, "a", "b", "c")
    before = node.snapshot()
    recovery = node.recovery()
    node.api.away, asked = True, node.api.gets
    with capture_logs() as log:
        for node.now in (0, 10_000):
            await recovery.clean_up()
    assert node.snapshot() == before
    assert node.api.gets == asked + 2
    assert [entry["event"] for entry in log] == ["can't look for stale claims now"] * 2


async def test_a_forbidden_question_makes_nothing_stale(node: Node) -> None:
    """RBAC that is missing says nothing about claims."""
    await prepared(node, "c")
    before = node.snapshot()
    recovery = node.recovery()
    node.api.error = ApiForbidden("get resourceclaims: forbidden")
    for node.now in (0, 10_000):
        await recovery.clean_up()
    assert node.snapshot() == before


async def test_a_stale_claim_without_a_record_is_found_by_its_spec(node: Node) -> None:
    """The spec names the claim, so a lost record hides nothing for ever."""
    (obj,) = await prepared(node, "c")
    node.records.path(obj["metadata"]["uid"]).unlink()
    gone(node)
    recovery = node.recovery()
    for node.now in (0, 300):
        await recovery.clean_up()
    assert node.snapshot() == {}


async def test_a_stale_claim_that_can_not_be_removed_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record stays until all is gone."""
    (obj,) = await prepared(node, "c")
    gone(node)
    node.now = 0
    recovery = node.recovery()
    await recovery.clean_up()
    node.now = 300
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _raise(OSError(5, "Input/output error")))
        await recovery.clean_up()
    assert node.records.uids() == uids(obj)
    await recovery.clean_up()
    assert node.snapshot() == {}


@pytest.mark.parametrize("content", [b"", b"\x00" * 300, b'{"version": 1}'])
async def test_a_damaged_record_is_made_anew_from_spec_and_api(node: Node, content: bytes) -> None:
    """The kubelet won't ask again for a pod that runs; its cache is left alone."""
    (obj,) = await prepared(node, "c")
    uid = obj["metadata"]["uid"]
    node.region(obj).write_text("in use")
    before = node.snapshot()
    node.records.path(uid).write_bytes(content)
    await node.recover()
    assert node.snapshot() == before


async def test_a_lost_record_is_made_anew_from_spec_and_api(node: Node) -> None:
    """Deleted by hand."""
    (obj,) = await prepared(node, "c")
    before = node.snapshot()
    node.records.path(obj["metadata"]["uid"]).unlink()
    await node.recover()
    assert node.snapshot() == before


async def test_a_record_that_can_not_be_made_anew_is_reported_once(node: Node) -> None:
    """Damaged, and the spec is gone too: it is left for unprepare, and said once for each reason."""
    (obj,) = await prepared(node, "c")
    uid = obj["metadata"]["uid"]
    node.records.path(uid).write_bytes(b"{")
    node.specs.path(uid).unlink()
    recovery = node.recovery()
    with capture_logs() as log:
        for _ in range(3):
            await recovery.repair()
    assert [(entry["event"], entry["claim_uid"]) for entry in log] == [("claim can't be restored", uid)]
    assert "record is damaged" in log[0]["error"]
    assert await node.unprepare(obj) == [None]
    assert node.snapshot() == {}


async def test_a_vanished_gpu_is_reported_once_for_its_claim(node: Node) -> None:
    """The others are repaired, the spec stays, and when the GPU is back all is well again."""
    claims = await prepared(node, "a", "b")
    before = node.snapshot()
    for obj in claims:
        node.specs.path(obj["metadata"]["uid"]).unlink()
    node.inventory = inventory(g for g in GPUS.gpus if g.device_name != "hami-gpu-0")
    recovery = node.recovery()
    with capture_logs() as log:
        for _ in range(3):
            await recovery.repair()
    assert [entry["claim_uid"] for entry in log] == uids(claims[0])
    assert "is not on this node any more; delete the pod" in log[0]["error"]
    assert node.specs.uids() == uids(claims[1])
    node.inventory = GPUS
    with capture_logs() as log:
        await recovery.repair()
    assert (node.snapshot(), log) == (before, [])


async def test_a_newer_record_is_made_anew_over_a_reboot(node: Node) -> None:
    """An upgrade rolled back: the CDI spec comes back although nothing but the newer record tells of the claim."""
    (obj,) = await prepared(node, "c")
    node.reboot()
    path = node.records.path(obj["metadata"]["uid"])
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2'))
    with capture_logs() as log:
        await node.recovery().repair()
    (told,) = [entry for entry in log if entry["log_level"] == "warning"]
    assert "version 2, this program knows 1" in told["error"]
    assert node.specs.uids() == node.records.uids() == uids(obj)
    assert node.limits(obj)


async def test_a_newer_record_of_a_claim_that_is_gone_is_cleaned_up(node: Node) -> None:
    """Neither record nor cache stays for ever."""
    (obj,) = await prepared(node, "c")
    node.reboot()
    path = node.records.path(obj["metadata"]["uid"])
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2'))
    node.api.claims.clear()
    recovery = node.recovery()
    await recovery.repair()
    await recovery.clean_up()
    node.now += node.grace
    await recovery.clean_up()
    assert node.snapshot() == {}


async def test_odd_files_stop_nothing(node: Node) -> None:
    """What people and other programs leave in our directories must not end the daemon or hide claims."""
    claims = await prepared(node, "a", "b")
    records, cdi = node.plugin / "claims", node.cdi
    (records / f".tmp-{claims[0]['metadata']['uid']}.json").write_text("half")
    (records / "no uid.json").write_text("{}")
    (records / "folder.json").mkdir()
    name = node.specs.path("x").name
    (cdi / name.replace("_x", "_no uid")).write_text("{}")
    (cdi / name.replace("_x", "_empty")).write_text("")
    (cdi / name.replace("_x", "_deep")).write_text("[" * 100_000)
    (cdi / name.replace("_x", "_folder")).mkdir()
    (cdi / name.replace("_x", "_odd")).write_text('{"devices": [{"containerEdits": {"env": [7]}}]}')
    for obj in claims:
        node.specs.path(obj["metadata"]["uid"]).unlink()
    recovery = node.recovery()
    await recovery.repair()
    await recovery.clean_up()
    await recovery.repair()
    assert set(uids(*claims)) <= set(node.specs.uids())


async def test_an_unreadable_directory_is_said_and_lived_with(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails for a while ends neither recovery nor the daemon."""
    await prepared(node, "c")
    recovery = node.recovery()
    monkeypatch.setattr(Records, "uids", _raise(StorageError("claims: can't be read")))
    with capture_logs() as log:
        await recovery.repair()
        await recovery.clean_up()
    assert [entry["error"] for entry in log] == ["claims: can't be read"] * 2


@contextlib.asynccontextmanager
async def running(recovery: Recovery, interval: float) -> AsyncIterator[None]:
    """Recovery that runs for the time of the block; file work that is under way ends with it."""
    task = asyncio.create_task(recovery.run(interval))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_run_repairs_when_woken_and_cleans_up_in_between(node: Node) -> None:
    """Woken by a change of the hardware it repairs at once; every interval it looks for stale claims."""
    kept, stale = await prepared(node, "a", "b")
    before = node.snapshot()
    node.specs.path(kept["metadata"]["uid"]).unlink()
    recovery = node.recovery()
    node.grace = 0
    async with running(recovery, 3600):
        recovery.wake()
        await until(lambda: node.spec(kept))
    assert node.snapshot() == before
    del node.api.claims["default", "b"]
    async with running(node.recovery(), 0.01):
        await until(lambda: not node.records.load(stale["metadata"]["uid"]))
    await asyncio.to_thread(node.claims.close)
    assert node.records.uids() == uids(kept)


async def test_waking_puts_off_no_clean_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardware that changes more often than stale claims are looked for must not keep them for ever."""
    await prepared(node, "c")
    gone(node)
    node.grace = 0
    recovery = node.recovery()
    repair, repairs = recovery.repair, 0

    async def always_woken() -> None:
        nonlocal repairs
        await repair()
        recovery.wake()  # before the next wait begins, so that none ever lasts until the interval is over
        repairs += 1

    monkeypatch.setattr(recovery, "repair", always_woken)
    recovery.wake()
    async with running(recovery, 0.05):
        await until(lambda: node.records.uids() == [])
    await asyncio.to_thread(node.claims.close)
    assert node.snapshot() == {}
    assert repairs


def _raise(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
