"""Never more of a GPU than there is, whatever was allocated: who is refused, for whom, and until when."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import ClaimError, StorageError
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.ledger import Ledger
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.claims.usage import Usage
from tests.unit.claims.file_faults import error, faults
from tests.unit.claims.node import Node, devices, refusal, uids
from tests.unit.claims.objects import GPUS, UUID, Json, claim, container, pod, result
from tests.unit.claims.test_plan import planned


def one(node: Node, name: str, device: int = 0, **consumed: str) -> Json:
    """A claim with a pod of its own, allocated whatever there is."""
    consumed = {"memory": "1Gi", "cores": "10", "slots": "1k"} | consumed
    obj = claim(name, [result(device, **consumed, share=name)], pods=[f"pod-{name}"])
    node.api.put(obj, pod(f"pod-{name}", container("x", name)))
    return obj


def whole(node: Node, name: str, device: int = 0) -> Json:
    """A claim that has all of a GPU."""
    return one(node, name, device, memory="80Gi", cores="100", slots="10k")


async def test_a_whole_gpu_is_given_to_one(node: Node) -> None:
    """Allocated twice, as kube-scheduler may: the second is told who has it, leaves nothing, and gets it afterwards."""
    first, second = (whole(node, name) for name in ("first", "second"))
    devices((await node.prepare(first))[0])
    before = node.snapshot()
    message = refusal((await node.prepare(second))[0])
    for part in (
        "claim default/second was allocated more of device hami-gpu-0",
        UUID[0],
        "81920 MiB of memory, of which 0 are free",
        "default/first holds the rest",
        "starts when that is unprepared",
    ):
        assert part in message
    assert node.snapshot() == before
    assert node.waited_for == uids(first)
    assert await node.unprepare(first) == [None]
    devices((await node.prepare(second))[0])
    assert "default/second" in refusal((await node.prepare(first))[0])


@pytest.mark.parametrize(
    ("held", "asked", "lacking"),
    [
        ({"memory": "50Gi"}, {"memory": "30Gi"}, None),
        ({"memory": "50Gi"}, {"memory": "30721Mi"}, "30721 MiB of memory, of which 30720 are free"),
        ({"cores": "60"}, {"cores": "40"}, None),
        ({"cores": "60"}, {"cores": "41"}, "41 percent of its cores, of which 40 are free"),
        ({"slots": "9k"}, {"slots": "1k"}, None),
        ({"slots": "10k"}, {"slots": "1k"}, "1000 sharing slots, of which 0 are free"),
    ],
)
async def test_what_counts(node: Node, held: dict[str, str], asked: dict[str, str], lacking: str | None) -> None:
    """Memory, cores and slots, each to the last, by GPU."""
    (first,) = await node.prepare(one(node, "held", 0, **held))
    devices(first)
    (answer,) = await node.prepare(one(node, "asked", 0, **asked))
    if lacking is None:
        devices(answer)
    else:
        assert lacking in refusal(answer)
        assert refusal(answer).count("of which") == 1


async def test_gpus_are_counted_apart(node: Node) -> None:
    """What is held of one is free on another."""
    for device in range(4):
        devices((await node.prepare(whole(node, f"whole-{device}", device)))[0])


@pytest.mark.parametrize(
    ("sharing", "memory"), [(Sharing(device_memory_scaling=1.5), "120Gi"), (Sharing(device_memory_scaling=0.5), "40Gi")]
)
async def test_what_is_published_is_what_there_is(node: Node, sharing: Sharing, memory: str) -> None:
    """Oversold memory can be had to the last MiB."""
    node.sharing = sharing
    node.start()
    devices((await node.prepare(one(node, "all", memory=memory)))[0])
    assert "1 MiB of memory, of which 0 are free" in refusal((await node.prepare(one(node, "more", memory="1Mi")))[0])


async def test_options_that_shrink_end_nothing(node: Node) -> None:
    """Claims that are prepared stay, restarts and repeats included; new ones have to fit what is left, and are told why not."""
    node.sharing = Sharing(device_memory_scaling=2)
    node.start()
    first, second = (one(node, name, memory="75Gi") for name in ("first", "second"))
    before = [devices(answer) for answer in await node.prepare(first, second)]
    node.sharing = Sharing()
    node.start()
    await node.recover()
    assert [devices(answer) for answer in await node.prepare(first, second)] == before
    assert "hold" in refusal((await node.prepare(one(node, "third", memory="1Mi")))[0])
    alone = refusal((await node.prepare(one(node, "alone", 1, memory="100Gi")))[0])
    assert (
        "102400 MiB of memory, of which 81920 are free; the node's GPUs or the driver's options are others now" in alone
    )


async def test_admin_access_holds_nothing(node: Node) -> None:
    """It sees a GPU that another one has whole, and is in nobody's way."""
    admin = claim("admin", [result(0, None, None, share=None, slots=None, adminAccess=True)], pods=["pod-admin"])
    node.api.put(admin, pod("pod-admin", container("x", "admin")))
    for answer in await node.prepare(admin):
        devices(answer)
    devices((await node.prepare(whole(node, "whole")))[0])
    devices((await node.prepare(admin))[0])


async def test_all_shares_of_a_claim_count(node: Node) -> None:
    """One claim alone can be more than there is."""
    obj = claim("c", [result(0, "50Gi", "0", request=name) for name in ("a", "b")])
    node.api.put(obj, pod("p", container("x", "c/a"), container("y", "c/b")))
    assert "102400 MiB of memory, of which 81920 are free" in refusal((await node.prepare(obj))[0])


async def test_many_holders_are_not_all_named(node: Node) -> None:
    """An Event has room for some words only."""
    for number in range(8):
        devices((await node.prepare(one(node, f"claim-{number}", memory="10Gi")))[0])
    message = refusal((await node.prepare(one(node, "more")))[0])
    assert "default/claim-4 and 3 more" in message
    assert len(message) < 1000


async def test_a_claim_allocated_anew_counts_once(node: Node) -> None:
    """Moved, grown and shrunk under one UID: what it had is free again, and only that."""
    devices((await node.prepare(one(node, "other", memory="40Gi", slots="5k")))[0])
    for memory, device in (("40Gi", 0), ("30Gi", 0), ("40Gi", 0), ("80Gi", 1), ("10Gi", 0)):
        devices((await node.prepare(one(node, "moving", device, memory=memory)))[0])
    assert "of which 40960 are free" in refusal((await node.prepare(one(node, "moving", memory="50Gi")))[0])
    devices((await node.prepare(one(node, "beside", memory="30Gi")))[0])
    devices((await node.prepare(whole(node, "there", 1)))[0])


@pytest.mark.parametrize("at", [0, 3, 6, 9, 12])
async def test_a_failed_prepare_gives_back(node: Node, at: int) -> None:
    """Whatever failed on the disk: a claim that could not be prepared keeps nobody out."""
    first, second = (whole(node, name) for name in ("first", "second"))
    with faults(node.root, at, error(28)) as fault:
        (answer,) = await node.prepare(first)
    if fault.happened and not isinstance(answer, tuple):
        devices((await node.prepare(second))[0])
        assert await node.unprepare(second) == [None]
    devices((await node.prepare(first))[0])


async def test_a_failed_change_keeps_what_was(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim whose new allocation can't be written holds the former one."""
    devices((await node.prepare(one(node, "c", memory="60Gi")))[0])
    with monkeypatch.context() as patch:
        patch.setattr(node.specs, "save", _full)
        refusal((await node.prepare(one(node, "c", memory="10Gi")))[0])
    assert "of which 20480 are free" in refusal((await node.prepare(one(node, "other", memory="30Gi")))[0])


def _full(*_: object) -> None:
    raise StorageError("the disk is full")


async def test_a_claim_whose_files_stay_holds_its_share(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unprepare failed, so the kubelet asks again; until then it counts."""
    first, second = (whole(node, name) for name in ("first", "second"))
    devices((await node.prepare(first))[0])
    with monkeypatch.context() as patch:
        patch.setattr(node.records, "remove", _full)
        assert await node.unprepare(first) != [None]
        refusal((await node.prepare(second))[0])
    assert await node.unprepare(first) == [None]
    devices((await node.prepare(second))[0])


async def test_of_many_at_once_as_many_get_in_as_fit(node: Node) -> None:
    """Looked at and taken in one step: 40 claims of 9 GiB, all prepared at the same time, on a GPU that has room for 8."""
    claims = [one(node, f"c{number}", memory="9Gi", cores="1", slots="100") for number in range(40)]
    answers = await node.prepare(*claims)
    assert sum(isinstance(answer, tuple) for answer in answers) == 8
    assert len(node.records.uids()) == 8
    assert all(isinstance(answer, tuple | ClaimError) for answer in answers)


# --- records ---


async def test_a_restart_forgets_nothing(node: Node) -> None:
    """The records tell who holds what."""
    devices((await node.prepare(whole(node, "first")))[0])
    node.start()
    assert "default/first holds the rest" in refusal((await node.prepare(one(node, "second")))[0])


@pytest.mark.parametrize("harm", [lambda path: path.write_bytes(b"{"), Path.unlink], ids=["damaged", "lost"])
async def test_a_claim_that_nobody_knows_keeps_new_ones_out(node: Node, harm: Callable[[Path], None]) -> None:
    """Its spec says that containers may run. Recovery makes its record anew, though others wait, and then it counts."""
    first, other, running = whole(node, "first"), one(node, "other", 1), one(node, "running", 2)
    for answer in await node.prepare(first, running):
        devices(answer)
    harm(node.records.path(first["metadata"]["uid"]))
    node.start()
    message = refusal((await node.prepare(other))[0])
    assert f"nobody knows what claim UID {first['metadata']['uid']} holds" in message
    assert node.waited_for == uids(first)
    devices((await node.prepare(running))[0])
    await node.recovery().look_at(node.waited_for)
    devices((await node.prepare(other))[0])
    assert "default/first holds the rest" in refusal((await node.prepare(one(node, "second")))[0])


async def test_a_record_that_could_not_be_read_for_a_moment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps new ones out until somebody waits for it, and then counts."""
    first = whole(node, "first")
    devices((await node.prepare(first))[0])
    node.start()
    load = node.records.load
    with monkeypatch.context() as patch:
        patch.setattr(node.records, "load", lambda uid: load(uid) if [uid] != uids(first) else _full())
        assert "nobody knows" in refusal((await node.prepare(one(node, "other", 1)))[0])
    await node.recovery().look_at(node.waited_for)
    devices((await node.prepare(one(node, "other", 1)))[0])
    assert "default/first holds the rest" in refusal((await node.prepare(one(node, "second")))[0])


async def test_a_claim_that_nobody_knows_keeps_nobody_out_once_unprepared(node: Node) -> None:
    """Its pod was deleted."""
    first = whole(node, "first")
    devices((await node.prepare(first))[0])
    node.records.path(first["metadata"]["uid"]).write_bytes(b"{")
    node.start()
    refusal((await node.prepare(whole(node, "second")))[0])
    assert await node.unprepare(first) == [None]
    devices((await node.prepare(whole(node, "second")))[0])


async def test_a_spec_of_nobody_keeps_nobody_out_once_it_is_removed(node: Node) -> None:
    """A spec that names no claim, without a record: the refusal says that it can be removed, and then no restart is needed."""
    path = node.specs.path("11111111-1111-1111-1111-111111111111")
    path.write_bytes(b"{}")
    node.start()
    first = whole(node, "first")
    assert str(path) in refusal((await node.prepare(first))[0])
    path.unlink()
    devices((await node.prepare(first))[0])


async def test_what_no_container_can_have_keeps_nobody_out(node: Node) -> None:
    """A damaged record without a spec, as after a power cut: nothing of it runs, and it may stay for long."""
    devices((await node.prepare(whole(node, "first")))[0])
    for path in node.plugin.glob("claims/*.json"):
        path.write_bytes(b"")
    node.reboot()
    devices((await node.prepare(whole(node, "second")))[0])


async def test_records_that_can_not_be_listed_let_nobody_in(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they can be."""
    node.start()
    with monkeypatch.context() as patch:
        patch.setattr(node.records, "uids", _full)
        assert "the disk is full" in refusal((await node.prepare(one(node, "first")))[0])
    devices((await node.prepare(one(node, "first")))[0])


# --- who waits ---


async def test_a_stale_claim_that_others_wait_for_goes_after_the_grace(node: Node) -> None:
    """Its pod was force-deleted while the node was down: looked at when another is refused, not at the next round."""
    first, second = (whole(node, name) for name in ("first", "second"))
    devices((await node.prepare(first))[0])
    del node.api.claims["default", "first"]
    recovery = node.recovery()
    refusal((await node.prepare(second))[0])
    for node.now in (0, 299):
        assert list(await recovery.look_at(node.waited_for)) == uids(first)
    refusal((await node.prepare(second))[0])
    node.now = 300
    assert not await recovery.look_at(node.waited_for)
    devices((await node.prepare(second))[0])


async def test_a_claim_in_use_is_looked_at_in_vain(node: Node) -> None:
    """It is asked for alone, and stays."""
    first, other = whole(node, "first"), one(node, "other", 1)
    for answer in await node.prepare(first, other):
        devices(answer)
    before, node.api.gets = node.snapshot(), 0
    assert not await node.recovery().look_at(uids(first))
    assert (node.snapshot(), node.api.gets) == (before, 1)


# --- the rule ---

steps = st.lists(
    st.tuples(
        st.sampled_from(["prepare", "prepare", "prepare", "unprepare", "restart", "fail"]),
        st.integers(0, 5),
        st.integers(0, 1),
        st.sampled_from([1, 30, 50, 100]),
        st.sampled_from([0, 10, 50, 100]),
        st.sampled_from([100, 1000, 5000, 10_000]),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_held_is_never_more_than_there_is(todo: list[tuple[str, int, int, int, int, int]]) -> None:
    """Any claims, allocated by a scheduler that doesn't count: one gets in exactly if it fits beside the others."""
    root = Path(tempfile.mkdtemp(prefix="hami-ledger-"))
    held: dict[str, tuple[str, Usage]] = {}
    records, specs = Records(root / "claims"), SpecFiles(root / "cdi", "gpu.hami.io")
    records.open()
    specs.open()

    def ledger() -> Ledger:
        return Ledger(records=records, specs=specs, sharing=Sharing(), waited_for=lambda _: None)

    book = ledger()
    for what, number, device, memory, cores, slots in todo:
        made = planned(
            claim(f"c{number}", [result(device, f"{memory * 512}Mi", str(cores), slots=str(slots))]),
            [pod("p", container("x", f"c{number}"))],
        )
        wanted = Usage(slots, memory * 512, cores, shares=1)
        if what == "restart":
            book = ledger()
        elif what == "unprepare":
            records.remove(made.uid)
            book.forget(made.uid)
            held.pop(made.uid, None)
        else:
            others = sum((u for uid, (d, u) in held.items() if d == UUID[device] and uid != made.uid), Usage(0, 0))
            mine = held[made.uid][1] if made.uid in held and held[made.uid][0] == UUID[device] else Usage(0, 0)
            both = others + wanted
            fits = (mine | wanted) == mine or (both.slots <= 10_000 and both.memory_mib <= 81920 and both.cores <= 100)
            got_in = False
            with contextlib.suppress(ClaimError, StorageError), book.holding(made, GPUS.by_uuid()):
                got_in = True
                if what == "fail":
                    _full()
                records.save(made)
                held[made.uid] = UUID[device], wanted
            assert got_in == fits
        expected: dict[str, Usage] = {}
        for uuid, used in held.values():
            expected[uuid] = expected.get(uuid, Usage(0, 0)) + used
        assert book.in_use() == expected
    shutil.rmtree(root)
