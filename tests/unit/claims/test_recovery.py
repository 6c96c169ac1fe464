"""Recovery: at the start, and repair when the hardware changes."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.cdi import Spec
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.records import Records
from tests.unit.claims.node import Node, failing, prepared, uids
from tests.unit.claims.objects import GPUS, Json, inventory
from tests.waiting import until

LOOKS: Final = 0.01
"""Seconds between looks at the files."""


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
    monkeypatch.setattr(Records, "uids", failing(StorageError("claims: can't be read")))
    with capture_logs() as log:
        await recovery.repair()
        await recovery.clean_up()
    assert [entry["error"] for entry in log] == ["claims: can't be read"] * 2


@contextlib.asynccontextmanager
async def going(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Recovery at work for the time of the block; file work that is under way ends with it."""
    task = asyncio.create_task(work)
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
    async with going(recovery.run(3600)):
        recovery.wake()
        await until(lambda: node.spec(kept))
    assert node.snapshot() == before
    del node.api.claims["default", "b"]
    async with going(node.recovery().run(0.01)):
        await until(lambda: not node.records.load(stale["metadata"]["uid"]))
    await asyncio.to_thread(node.claims.close)
    assert node.records.uids() == uids(kept)


def cut(path: Path) -> None:
    """Half of it is lost."""
    os.truncate(path, path.stat().st_size // 2)


def touch(path: Path) -> None:
    """As long as before, and other content."""
    path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize("harm", [Path.unlink, cut, touch])
async def test_a_harmed_spec_is_made_anew(node: Node, harm: Callable[[Path], None]) -> None:
    """Not the name alone tells that a spec is there: one that somebody cut short is as bad as none."""
    harmed, other = await prepared(node, "a", "b")
    before, untouched = node.snapshot(), node.specs.path(other["metadata"]["uid"]).stat()
    path = node.specs.path(harmed["metadata"]["uid"])
    content = path.read_bytes()
    async with going(node.recovery().watch(LOOKS)):
        harm(path)
        await until(lambda: path.exists() and path.read_bytes() == content)
    assert node.snapshot() == before
    assert node.specs.path(other["metadata"]["uid"]).stat() == untouched


async def test_a_full_disk_is_tried_again_after_growing_waits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a wipe of a CDI folder that is full for a while all is right again soon after it has room; each wait is longer."""
    one, two = await prepared(node, "a", "b")
    before = node.snapshot()
    recovery = node.recovery()
    for obj in (one, two):
        node.specs.path(obj["metadata"]["uid"]).unlink()
    save, tries = node.specs.save, list[tuple[str, float]]()

    def full(uid: str, spec: Spec) -> bool:
        tries.append((uid, node.now))
        if node.now < 12:
            raise StorageError("the disk is full, free some space")
        return save(uid, spec)

    def tried() -> bool:
        """Both at this time, to the end: until their next times are set, too."""
        waits = [due for _, due in recovery._failing._waits.values()]
        both = len(tries) >= 2 and all(at == node.now for _, at in tries[-2:])
        return both and all(due > node.now for due in waits) and len(waits) == (2 if node.now < 12 else 0)

    monkeypatch.setattr(node.specs, "save", full)
    with capture_logs() as log:
        async with going(recovery.watch(LOOKS)):
            for node.now in (0.0, 0.02, 0.05, 0.1, 5.0, 11.9, 80.0):
                await until(tried)
    assert node.snapshot() == before
    assert len(tries) == 14, "each claim once at each time: the waits are over by then, and not before"
    assert sum("can't be restored" in entry["event"] for entry in log) == 2, "said once for each claim"


async def test_waking_puts_off_no_clean_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardware that changes more often than stale claims are looked for must not keep them for ever."""
    await prepared(node, "c")
    node.api.claims.clear()
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
    async with going(recovery.run(0.05)):
        await until(lambda: node.records.uids() == [])
    await asyncio.to_thread(node.claims.close)
    assert node.snapshot() == {}
    assert repairs


async def test_two_looks_at_stale_claims_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that one look found stale and another one finds allocated again meanwhile stays, and ends neither of them."""
    node.grace = 0
    claims = dict(zip("ab", await prepared(node, "a", "b"), strict=True))
    kept = {name: node.api.claims.pop(("default", name)) for name in claims}
    recovery, asked = node.recovery(), list[str]()
    get_claim = node.api.get_claim

    async def meanwhile(namespace: str, name: str) -> Json:
        asked.append(name)
        if len(asked) == 3:  # one is about to be unprepared, and the other one's turn comes next
            (other,) = {*claims} - {name}
            node.api.put(kept[other])
            await recovery.look_at(uids(claims[other]))
        return await get_claim(namespace, name)

    monkeypatch.setattr(node.api, "get_claim", meanwhile)
    await recovery.clean_up()
    (stays,) = {*claims} - {asked[2]}
    assert node.records.uids() == uids(claims[stays])


@pytest.mark.parametrize("content", [b"", b"{", b"{}"])
async def test_a_spec_that_names_no_claim_is_told(node: Node, content: bytes) -> None:
    """With no record either nobody can tell what it was: it is said, with its path and what to do, and it stays."""
    path = node.specs.path("11111111-1111-1111-1111-111111111111")
    path.write_bytes(content)
    with capture_logs() as logs:
        recovery = node.recovery()
        for _ in range(2):
            await recovery.repair()
    (said,) = [entry for entry in logs if entry["event"] == "claim can't be restored"]
    assert f"{path}" in said["error"]
    assert "remove it" in said["error"]
    assert path.read_bytes() == content
