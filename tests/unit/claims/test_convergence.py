"""Prepare is convergent: whatever happened to the files, it makes them what they must be, and nothing more."""

import contextlib
import shutil
from collections.abc import Callable, Iterator

import pytest

from hami_kubeletplugin.api.errors import RecordDamaged
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims import node_files
from hami_kubeletplugin.claims.usage import Usage
from tests.unit.claims.file_faults import faults
from tests.unit.claims.node import Node, devices, refusal
from tests.unit.claims.objects import UUID, Json, claim, config, container, gpu, inventory, pod, result, simple


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
    shutil.rmtree(node.hami / "cache" / uid)


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


async def test_a_newer_record_is_set_aside(node: Node, one: Json) -> None:
    """After a roll-back the claim is prepared from what the API server says; what the newer program wrote is kept aside."""
    devices((await node.prepare(one))[0])
    path = node.records.path(one["metadata"]["uid"])
    before = node.snapshot()
    newer = path.read_bytes().replace(b'"version": 1', b'"version": 2')
    path.write_bytes(newer)
    devices((await node.prepare(one))[0])
    assert node.snapshot() == before
    assert (path.parent / "damaged" / path.name).read_bytes() == newer
    path.write_bytes(newer)
    assert await node.unprepare(one) == [None]
    assert node.snapshot() == {}


async def test_a_new_allocation_replaces_the_former(node: Node, one: Json) -> None:
    """Deallocated and allocated anew under one UID: spec, record and region follow, since a region keeps its first limit."""
    devices((await node.prepare(one))[0])
    region = node.region(one)
    region.write_text("limits of old")
    again = claim("c0", [result(3, "7Gi", "0")], pods=["p0"])
    node.api.put(again)
    (device,) = devices((await node.prepare(again))[0])
    assert device.device == "hami-gpu-3"
    assert node.limits(again) == {UUID[3]: (7168, 0)}
    # One of ours is renewed when a container starts; until then it may be in use.
    assert (region.read_text() if region.exists() else None) == ("limits of old" if node.regions else None)


async def test_a_running_containers_cache_is_never_reset(node: Node, one: Json) -> None:
    """Neither a repeat, a restart of the daemon, a lost record nor a damaged one empties it in the same boot."""
    devices((await node.prepare(one))[0])
    uid = one["metadata"]["uid"]
    region = node.region(one)
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
    region = node.region(one)
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
    region = node.region(one)
    region.write_text("of the former boot")
    before = node.spec(one)
    harm(node, uid)
    node.reboot()
    await node.recover()
    assert await node.prepare(one) == first
    assert node.spec(one) == before
    assert (region.read_text() if region.exists() else None) == ("of the former boot" if node.regions else None)


async def test_a_device_name_that_means_another_gpu_now_is_refused(node: Node, one: Json) -> None:
    """After a reboot with a GPU less, minors are given out anew; the pod must not land on another GPU than allocated."""
    devices((await node.prepare(one))[0])
    node.inventory = inventory([gpu(0, 0x86, name="1"), gpu(1, 0x3B, name="2")])
    node.reboot()
    message = refusal((await node.prepare(one))[0])
    assert (
        f"device hami-gpu-0 was GPU {UUID[0]} when it was allocated and is GPU {UUID[1]} now; delete the pod" in message
    )


async def test_one_gpu_for_a_request_of_two_is_refused(node: Node) -> None:
    """kube-scheduler 1.35 may give a request of two GPUs two shares of one. A pod that runs on such a claim already goes on."""
    twice = claim("twin", [result(0, share="a"), result(0, share="b")])
    node.api.put(twice, pod("p", container("x", "twin")))
    message = refusal((await node.prepare(twice))[0])
    assert "request 'gpu' is for several GPUs and was given shares of one, hami-gpu-0" in message
    assert node.snapshot() == {}
    # As 0.1.0 did.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_files, "_refuse_one_gpu_for_several", lambda _: None)
        first = devices((await node.prepare(twice))[0])
    assert devices((await node.prepare(twice))[0]) == first
    damage_record(node, twice["metadata"]["uid"])
    assert devices((await node.prepare(twice))[0]) == first
    apart = claim("apart", [result(0, cores="20", request="a"), result(0, cores="20", request="b")])
    node.api.put(apart, pod("p", container("x", "apart")))
    assert len(devices((await node.prepare(apart))[0])) == 2, (
        "two requests may share a GPU, unless a constraint says otherwise"
    )


async def test_what_an_administrator_refuses_leaves_nothing(node: Node) -> None:
    """A claim that lifts its own limit is not prepared, nor one that a container uses together with it."""
    node.rights = Settings.checked(node_name="n", core_policy_disable="refused").claim_rights
    node.start()
    lifted = claim("lifted", [result(0)], configs=[config(corePolicy="disable")])
    beside = claim("beside", [result(1)])
    node.api.put(lifted, beside, pod("p", container("x", "lifted", "beside")))
    for message in map(refusal, await node.prepare(lifted, beside)):
        assert "claim default/lifted" in message
        assert "corePolicy: disable is refused in claims on this node" in message
    assert node.snapshot() == {}


@contextlib.contextmanager
def counted(kind: type, *names: str) -> Iterator[list[str]]:
    """The calls of these methods, in a list that grows."""
    calls: list[str] = []

    def counting(name: str) -> Callable[..., object]:
        method = getattr(kind, name)

        def call(*given: object) -> object:
            calls.append(name)
            return method(*given)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(kind, name, counting(name))
        yield calls


async def test_cost_does_not_grow_with_prepared_claims(node: Node) -> None:
    """The same file operations, and sums of what is held, whether one or 300 other claims are prepared."""
    counts = []
    for number in (1, 300):
        while len(node.records.uids()) < number:
            there = len(node.records.uids())
            obj, its_pod = simple(there + 1, there % 4)
            node.api.put(obj, its_pod)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("os.fsync", lambda descriptor: None)
                devices((await node.prepare(obj))[0])
        obj, its_pod = simple(1000)
        node.api.put(obj, its_pod)
        with faults(node.root) as prepare, counted(Usage, "__add__", "__sub__") as sums:
            devices((await node.prepare(obj))[0])
        with faults(node.root) as unprepare:
            assert await node.unprepare(obj) == [None]
        counts.append((prepare.names, unprepare.names, len(sums)))
    assert counts[0] == counts[1]
    assert counts[0][0].count("fsync") == 2  # the record and its name: all that must survive a power cut


async def test_restore_says_when_a_record_is_damaged(node: Node, one: Json) -> None:
    """Recovery then makes it anew."""
    devices((await node.prepare(one))[0])
    damage_record(node, one["metadata"]["uid"])
    with pytest.raises(RecordDamaged):
        node.claims.restore(one["metadata"]["uid"])
