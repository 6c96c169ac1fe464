"""What is counted of claims: work that hangs, what is mended, and the reasons for which there are numbers."""

import asyncio
import time
from pathlib import Path

import pytest

from hami_kubeletplugin.api import errors
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.claims.counted import Counted
from hami_kubeletplugin.claims.reasons import INTERNAL, REASONS, reason
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.metrics.driver import Done
from tests.unit.claims.node import Node, prepared, refusal
from tests.unit.claims.objects import ref, simple
from tests.waiting import until


class Seen(Done):
    """The counters, to be asked."""

    def of(self, name: str, **labels: str) -> float | None:
        """One sample; None if there is none."""
        return self._registry.get_sample_value(name, labels)


@pytest.fixture
def counts() -> Seen:
    """Of this test."""
    return Seen()


@pytest.fixture
def counted(tmp_path: Path, shipped: Shipped, counts: Seen) -> Node:
    """A node whose work is counted."""
    node = Node(tmp_path / "node", shipped, timeout=0.3)
    node.counts = counts
    node.start()
    return node


async def test_work_that_hangs_is_in_flight_until_it_ends(counted: Node, counts: Seen) -> None:
    """The kubelet has its answer in time, which counts as one that timed out; the work is seen for as long as it hangs."""
    obj, its_pod = simple(0)
    counted.api.put(obj, its_pod)
    uid = obj["metadata"]["uid"]

    def flying() -> float | None:
        return counts.of("hami_claims_in_flight", operation="prepare")

    service = Counted(counted.claims, counts)
    with counted.claims._locks.hold(uid, deadline=time.monotonic() + 5):
        answers = await asyncio.to_thread(service.prepare, [ref(obj)])
        assert "did not end within" in refusal(answers[uid])
        assert flying() == 1
    await until(lambda: flying() == 0)
    assert counts.of("hami_claim_operations_total", operation="prepare", outcome="failed", reason="timeout") == 1


async def test_a_fault_of_ours_is_counted(counted: Node, counts: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim of a call that comes to nothing has failed, and the call's error goes on."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(counted.claims, "unprepare", broken)
    with pytest.raises(RuntimeError):
        Counted(counted.claims, counts).unprepare([ref(simple(number)[0]) for number in range(2)])
    assert counts.of("hami_claim_operations_total", operation="unprepare", outcome="failed", reason=INTERNAL) == 2


async def test_what_is_mended_is_counted(counted: Node, counts: Seen) -> None:
    """A spec that is gone, a record that is damaged; one that can't be made anew stays in sight until it is."""
    obj, other = await prepared(counted, "one", "two")
    recovery = counted.recovery()
    await recovery.repair()
    assert recovery.recorded == (2, 0)
    assert counts.of("hami_repairs_total", what="cdi_spec") == 0
    counted.specs.path(obj["metadata"]["uid"]).unlink()
    counted.records.path(other["metadata"]["uid"]).write_text('{"version": 1}')
    counted.api.away = True
    await recovery.repair()
    assert recovery.recorded == (1, 1)
    assert counts.of("hami_repairs_total", what="cdi_spec") == 1
    counted.api.away = False
    await recovery.repair()
    assert recovery.recorded == (2, 0)
    assert counts.of("hami_repairs_total", what="record") == 1
    counted.api.claims.clear()
    counted.grace = 0
    await counted.recovery().clean_up()
    assert counts.of("hami_repairs_total", what="stale_claim") == 2


def test_every_error_has_one_of_few_reasons(counts: Seen) -> None:
    """Whatever a prepare fails with, its series is there from the start."""
    every = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, HamiError)}
    assert {reason(cls.__new__(cls)) for cls in every} == {*REASONS.values(), INTERNAL}
    for why in (*REASONS.values(), INTERNAL):
        assert counts.of("hami_claim_operations_total", operation="prepare", outcome="failed", reason=why) == 0
    assert reason(KeyError("x")) == INTERNAL
