"""What hostile or odd input does to claims: it is refused or lived with, never followed."""

import asyncio
import os
import threading

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import read_claim
from tests.unit.claims.node import Node, devices
from tests.unit.claims.objects import Json, claim, container, pod, ref, result, simple
from tests.waiting import until


@pytest.mark.parametrize("amount", ["1e30", "8Ei", "1e999"])
@pytest.mark.parametrize("capacity", ["memory", "cores"])
def test_an_amount_beyond_64_bits_is_refused(capacity: str, amount: str) -> None:
    """HAMi-core's number would overflow, which it takes for no limit at all; some of these are whole MiB."""
    obj = claim("c", [result(**{capacity: amount})])
    with pytest.raises(ClaimError, match=rf"results\[0\]\.consumedCapacity\.{capacity}: {amount}"):
        read_claim(obj, ref(obj), driver=DRIVER, node="node-1")


async def test_a_record_that_is_no_file_holds_nobody_up(node: Node, one: Json) -> None:
    """A FIFO, at which a reader would wait for ever, is set aside for a record; unprepare removes that."""
    path = node.records.path(one["metadata"]["uid"])
    os.mkfifo(path)
    async with asyncio.timeout(5):
        assert devices(*await node.prepare(one))
        assert path.is_file()
        assert await node.unprepare(one) == [None]
    assert not path.exists()


async def test_records_come_back_after_their_directory_was_deleted(node: Node, one: Json) -> None:
    """Somebody cleans up below the plugin directory: the next prepare makes what it needs."""
    node.records.path("x").parent.rmdir()
    assert devices(*await node.prepare(one))
    assert node.records.uids() == [one["metadata"]["uid"]]


async def test_a_fault_at_one_claim_does_not_end_the_upkeep_of_others(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one claim provokes is logged with its traceback, once; the others are restored and cleaned up."""
    bad, its_pod = simple(1)
    node.api.put(bad, its_pod)
    await node.prepare(one, bad)
    node.specs.remove(one["metadata"]["uid"])
    real_load, real_get = node.files.load, node.api.get_claim

    def load(uid: str) -> object:
        if uid == bad["metadata"]["uid"]:
            raise RuntimeError("a fault of ours")
        return real_load(uid)

    async def get_claim(namespace: str, name: str) -> object:
        if name == bad["metadata"]["name"]:
            raise RuntimeError("a fault of ours")
        return await real_get(namespace, name)

    monkeypatch.setattr(node.files, "load", load)
    monkeypatch.setattr(node.api, "get_claim", get_claim)
    recovery = node.recovery()
    with capture_logs() as log:
        await recovery.repair()
        await recovery.repair()
    assert node.spec(one) is not None
    assert [entry["claim_uid"] for entry in log if entry.get("exc_info")] == [bad["metadata"]["uid"]]
    node.api.claims.pop(("default", one["metadata"]["name"]))
    for node.now in (0, 300):
        await recovery.clean_up()
    assert node.records.uids() == [bad["metadata"]["uid"]]


async def test_a_neighbour_that_is_being_unprepared_does_not_come_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prepare plans prepared claims of the same container again, but not one whose unprepare came first."""
    a, b = (claim(name, [result(i)], pods=["p"]) for i, name in enumerate("ab"))
    node.api.put(a, b, pod("p", container("x", "a", "b")))
    assert devices(*await node.prepare(b))
    uid, go, real = b["metadata"]["uid"], threading.Event(), node.files.take_away

    def take_away(gone: str) -> None:
        assert go.wait(10)
        real(gone)

    monkeypatch.setattr(node.files, "take_away", take_away)
    unprepare = asyncio.create_task(node.unprepare(b))
    prepare = asyncio.create_task(node.prepare(a))
    await until(lambda: node.claims._locks.waiting(uid) == 2)  # the prepare has come to it and waits
    go.set()
    assert await unprepare == [None]
    assert devices(*await prepare)
    assert node.records.uids() == [a["metadata"]["uid"]]
    assert node.spec(b) is None


async def test_the_log_names_the_claims_own_containers(node: Node) -> None:
    """A prepare that plans a claim beside it anew says of its own lines whose they are, and of the other's whose those are."""
    a, b = claim("a", [result(0)], pods=["p"]), claim("b", [result(1), result(2, request="own")], pods=["p"])
    node.api.put(a, b, pod("p", container("both", "a", "b/gpu"), container("other", "b/own")))
    assert devices(*await node.prepare(b))
    node.records.path(b["metadata"]["uid"]).write_text("{}")
    with capture_logs(processors=[merge_contextvars]) as log:
        assert devices(*await node.prepare(a))
    lines = {entry["event"]: (entry["claim"], entry["claim_uid"], entry["containers"]) for entry in log}
    assert lines == {
        "claim record can't be used and is made anew": ("default/b", b["metadata"]["uid"], ["p/both", "p/other"]),
        "claim prepared": ("default/a", a["metadata"]["uid"], ["p/both"]),
    }
    assert len({entry["call"] for entry in log}) == 1
