"""Clean-up: claims that the kubelet forgot are unprepared, and no other."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import ApiForbidden
from tests.unit.claims.cdi_runtime import inject
from tests.unit.claims.node import Node, devices, failing, prepared, uids
from tests.unit.claims.objects import Json, claim, container, pod, result, uid_of


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


@pytest.mark.parametrize("record", [True, False], ids=["record", "no record"])
async def test_a_directory_in_the_place_of_a_spec_stops_nothing(node: Node, record: bool) -> None:
    """It is set aside and said, with what is in it; the claim of its name and the others are looked after as ever."""
    stale, other = await prepared(node, "c", "d")
    path = node.specs.path(stale["metadata"]["uid"])
    path.unlink()
    (path / "in it").mkdir(parents=True)
    if not record:
        node.records.remove(stale["metadata"]["uid"])
    gone(node)
    recovery = node.recovery()
    with capture_logs() as log:
        for node.now in (1000, 1300):
            await recovery.repair()
            await recovery.clean_up()
    [moved] = [entry["moved_to"] for entry in log if "set aside" in entry["event"]]
    assert moved.startswith(f"{path}.")
    assert (Path(moved) / "in it").is_dir()
    assert node.specs.uids() == node.records.uids() == []
    assert node.spec(other) is None


async def test_prepare_and_unprepare_where_a_directory_is(node: Node) -> None:
    """What stands in the way of a claim's spec keeps it neither from being prepared nor from being unprepared."""
    obj = claim("c", [result()])
    node.api.put(obj, pod("p", container("x", "c")))
    path = node.specs.path(obj["metadata"]["uid"])
    (path / "in it").mkdir(parents=True)
    devices((await node.prepare(obj))[0])
    assert node.spec(obj)
    path.unlink()
    (path / "once more").mkdir(parents=True)
    assert await node.unprepare(obj) == [None]
    assert not path.exists()


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
        patch.setattr(os, "unlink", failing(OSError(5, "Input/output error")))
        await recovery.clean_up()
    assert node.records.uids() == uids(obj)
    await recovery.clean_up()
    assert node.snapshot() == {}
