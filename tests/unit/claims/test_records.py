"""Records: what was written comes back, or an error says that it can't."""

import asyncio
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ClaimError, RecordDamaged, RecordTooNew, StorageError
from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare, Use
from hami_kubeletplugin.claims.record_schema import dump, upgraded
from hami_kubeletplugin.claims.records import Records, claim_of, decode, encode
from tests.unit.claims.node import Node
from tests.unit.claims.objects import claim, container, pod, result

GOLDEN = Path(__file__).parent / "golden"
"""Records as released versions wrote them. They are never edited: a new version of the record gets a folder of its own."""

text = st.text(max_size=12)
amount = st.integers(0, 2**50)
limits = st.builds(Limit, memory_mib=amount, cores=amount)
policies = st.builds(
    Policy,
    core_policy=st.sampled_from([None, "default", "force", "disable"]),
    priority=st.sampled_from([None, "high", "low"]),
    log_level=st.none() | st.integers(0, 4),
)
uses = st.builds(
    Use,
    containers=st.lists(text, max_size=3).map(tuple),
    gpus=st.dictionaries(text, limits, max_size=3),
    admin=st.booleans(),
    policy=policies,
    enforced_by=st.sampled_from(["hami-core", "none"]),
    concurrent=st.booleans(),
    owner=text,
).map(lambda use: replace(use, concurrent=False) if use.enforced_by == "none" else use)
shares = st.builds(
    PreparedShare,
    request=text,
    subrequest=st.none() | text,
    pool=text,
    device=text,
    share_id=st.none() | text,
    uuid=text,
    limit=limits,
    use=st.integers(0, 2),
    slots=amount,
)
claims = st.builds(
    Prepared,
    ref=st.builds(ClaimRef, text, text, text),
    pods=st.lists(st.builds(PodRef, namespace=text, name=text, uid=text), max_size=2).map(tuple),
    boot_id=text,
    driver=text,
    shares=st.lists(shares, max_size=3).map(tuple),
    uses=st.lists(uses, min_size=3, max_size=3).map(tuple),
    library=st.none() | text,
    regions=st.booleans(),
)

SAMPLE = Prepared(
    ref=ClaimRef("default", "c", "0fa1c1e0-0000-4000-8000-000000000000"),
    pods=(PodRef(namespace="default", name="p", uid="u"),),
    boot_id="boot-1",
    driver="gpu.hami.io",
    shares=(
        PreparedShare(
            request="gpu",
            subrequest=None,
            pool="n",
            device="hami-gpu-0",
            share_id="s",
            uuid="GPU-1",
            limit=Limit(4000, 30),
            use=0,
        ),
    ),
    uses=(
        Use(
            containers=("p/x",),
            gpus={"GPU-1": Limit(4000, 30)},
            admin=False,
            policy=Policy(),
            enforced_by="hami-core",
            concurrent=False,
            owner="0fa1c1e0-0000-4000-8000-000000000000",
        ),
    ),
)


@given(claims)
@settings(max_examples=60, deadline=None)
def test_round_trip(prepared: Prepared) -> None:
    """Any prepared claim comes back as it was, odd characters included."""
    assert decode(encode(prepared), "here") == prepared


def survives(content: bytes) -> None:
    """Decode to the very same claim, or say damaged or too new; nothing else."""
    try:
        found: object = decode(content, "here")
    except RecordDamaged as error:
        found = str(error)
    assert found == SAMPLE or str(found).startswith("here: record ")


@pytest.mark.parametrize("mask", [0x01, 0x10, 0x20, 0x80, 0xFF])
def test_any_flipped_byte_is_noticed(mask: int) -> None:
    """Every byte of a record, flipped in several ways."""
    good = encode(SAMPLE)
    for i, byte in enumerate(good):
        survives(good[:i] + bytes([byte ^ mask]) + good[i + 1 :])


def test_any_truncation_is_noticed() -> None:
    """A record cut short anywhere is damaged."""
    good = encode(SAMPLE)
    for i in range(len(good)):
        with pytest.raises(RecordDamaged):
            decode(good[:i], "here")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_is_noticed(data: st.DataObject) -> None:
    """A piece of a record replaced by any bytes."""
    good = encode(SAMPLE)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    survives(good[:start] + data.draw(st.binary(max_size=40)) + good[end:])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"17",
        b'"text"',
        b"{}",
        b"[" * 100_000,
        b"\x00" * 4096,
        b'{"version":true,"sha256":"","data":""}',
        b'{"version":0,"sha256":"","data":""}',
        b'{"version":"1","sha256":"","data":""}',
        b'{"version":1,"sha256":"","data":7}',
        b'{"version":1,"sha256":"","data":"\\ud800"}',
    ],
)
def test_foreign_content_is_damage(content: bytes) -> None:
    """Whatever else stands in the file, as after a power cut, is damage and no crash."""
    with pytest.raises(RecordDamaged, match=r"^here: record is damaged"):
        decode(content, "here")


def test_a_good_checksum_over_a_wrong_shape_is_damage() -> None:
    """A record that says less than a claim is not used."""
    record = json.loads(encode(SAMPLE))
    data = json.loads(record["data"])
    del data["uses"]
    with pytest.raises(RecordDamaged, match="1 fields are wrong"):
        decode(_sealed(data), "here")


def test_fields_of_a_later_program_are_ignored() -> None:
    """A newer program of the same record version may add fields; going back must not lose the claim."""
    data = dump(SAMPLE) | {"colour": "blue"}
    assert decode(_sealed(data), "here") == SAMPLE


def test_a_newer_version_is_told_from_damage() -> None:
    """The checksum's rule may be another one there, so it isn't even looked at; whose it is can be read all the same."""
    claim = {"namespace": "default", "name": "c"}
    content = json.dumps({"version": 2, "claim": claim, "sha256": "?", "data": {"new": "shape"}}).encode()
    with pytest.raises(RecordTooNew, match=r"record has version 2, this program knows 1"):
        decode(content, "here")
    assert claim_of(content, "u") == ClaimRef("default", "c", "u")


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("v1/*.json")))
def test_golden_records_of_version_1(name: str) -> None:
    """Records that 0.1.0 wrote mean what they meant, and the same is written for them: names on the disk stay."""
    content = (GOLDEN / f"v1/{name}.json").read_bytes()
    prepared = decode(content, "here")
    written, before = (json.loads(one) for one in (encode(prepared), content))
    assert json.loads(written["data"]) == json.loads(before["data"])
    assert claim_of(content, prepared.uid) == claim_of(encode(prepared), prepared.uid) == prepared.ref


def test_what_a_golden_record_says() -> None:
    """Each field of a record comes to its place."""
    prepared = decode((GOLDEN / "v1/policy.json").read_bytes(), "here")
    (use,), (share,) = prepared.uses, prepared.shares
    assert (str(prepared.ref), [str(pod) for pod in prepared.pods]) == ("claim default/c", ["pod default/p"])
    assert (prepared.boot_id, prepared.driver, prepared.library, prepared.regions) == ("boot-1", DRIVER, "2.10.0", True)
    assert use.policy == Policy("force", "high", 3)
    assert (use.containers, use.gpus, use.owner) == (("p/x",), {share.uuid: Limit(4000, 30)}, prepared.uid)
    assert (share.request, share.subrequest, share.pool, share.device, share.limit) == (
        "gpu",
        None,
        "node-1",
        "hami-gpu-0",
        Limit(4000, 30),
    )
    shared = decode((GOLDEN / "v1/shared-containers.json").read_bytes(), "here").uses[0]
    admin = decode((GOLDEN / "v1/admin.json").read_bytes(), "here").uses[0]
    assert (use.enforced_by, use.concurrent, use.admin) == ("hami-core", False, False)
    assert (shared.enforced_by, shared.concurrent, shared.admin) == ("hami-core", True, False)
    assert (admin.enforced_by, admin.concurrent, admin.admin) == ("none", False, True)


def test_older_versions_are_upgraded_step_by_step() -> None:
    """Each step knows two versions alone; data of the newest version goes through none."""
    steps = [lambda data: data | {"two": data["one"]}, lambda data: data | {"three": data["two"]}]
    assert upgraded({"one": 1}, 1, steps) == {"one": 1, "two": 1, "three": 1}
    assert upgraded({"one": 1, "two": 2}, 2, steps) == {"one": 1, "two": 2, "three": 2}
    assert upgraded({"three": 3}, 3, steps) == {"three": 3}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"claim": 7}', b'{"claim": {"namespace": "", "name": "c"}}', b'{"data": "[]"}']
)
def test_a_record_that_names_no_claim(content: bytes) -> None:
    """Nobody is asked about it then."""
    assert claim_of(content, "u") is None


def test_a_share_of_a_use_that_is_not_there_is_damage() -> None:
    """It would have no limit."""
    data = dump(SAMPLE)
    data["shares"][0]["use"] = 1
    with pytest.raises(RecordDamaged, match="a use that isn't there"):
        decode(_sealed(data), "here")


def _sealed(data: object) -> bytes:
    text = json.dumps(data)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"version": 1, "sha256": digest, "data": text}).encode()


def test_a_record_under_another_name_is_damage(tmp_path: Path) -> None:
    """A file copied to another UID's name would prepare the wrong claim."""
    kept = Records(tmp_path / "claims")
    kept.open()
    kept.save(SAMPLE)
    kept.path(SAMPLE.uid).rename(kept.path("other-uid"))
    with pytest.raises(RecordDamaged, match=f"it is of claim UID {SAMPLE.uid}"):
        kept.load("other-uid")


def test_only_records_are_listed(tmp_path: Path) -> None:
    """Half-written files, copies of damaged records and what people leave there are no records."""
    kept = Records(tmp_path / "claims")
    kept.open()
    kept.save(SAMPLE)
    folder = tmp_path / "claims"
    for name in (
        ".tmp-x.json",
        f"{SAMPLE.uid}.json.tmp",
        f".{SAMPLE.uid}.json",
        "a b.json",
        "notes.txt",
        "copy.json.bak",
    ):
        (folder / name).write_text("{}")
    (folder / "damaged").mkdir()
    assert kept.uids() == [SAMPLE.uid]
    assert list(kept.all()) == [SAMPLE]


def test_one_unreadable_record_does_not_hide_the_others(tmp_path: Path) -> None:
    """`all` gives the reason in its place and goes on."""
    kept = Records(tmp_path / "claims")
    kept.open()
    kept.save(SAMPLE)
    (tmp_path / "claims" / "0damaged.json").write_text("{")
    (tmp_path / "claims" / "0folder.json").mkdir()
    damaged, good, folder = kept.all()
    assert isinstance(damaged, RecordDamaged)
    assert isinstance(folder, StorageError)
    assert good == SAMPLE


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".", "..", "x" * 64, "a b", "é", "-a", "a\n"])
def test_a_uid_never_leaves_the_directory(tmp_path: Path, uid: str) -> None:
    """A UID becomes a part of paths, so only UIDs are taken."""
    with pytest.raises(ClaimError, match="is not a UID"):
        Records(tmp_path).path(uid)


def test_half_written_files_are_never_read_by_runtimes_or_by_us(node: Node) -> None:
    """CDI runtimes read all *.json, hidden ones too, and drop a device that two files have."""
    names: list[str] = []
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        names.append(Path(source).name)
        real(source, target)

    obj = claim("c", [result()])
    node.api.put(obj, pod("p", container("x", "c")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", rename)
        asyncio.run(node.prepare(obj))
    assert len(names) == (3 if node.regions else 2)
    assert not [name for name in names if name.endswith((".json", ".yaml"))]


def test_opening_clears_half_written_files_of_ours_alone(node: Node) -> None:
    """Others write to the CDI directory too. What a kill left of a damaged record's copy goes as well, and not the copies."""
    (node.plugin / "claims" / "damaged").mkdir()
    copy, half_a_copy = (node.plugin / "claims" / "damaged" / name for name in ("u.json", "u.json.tmp"))
    ours, theirs = node.cdi / f"{node.specs.path('u').name}.tmp", node.cdi / "nvidia.json.tmp"
    record = node.plugin / "claims" / "u.json.tmp"
    for path in (ours, theirs, record, copy, half_a_copy):
        path.write_text("half")
    node.start()
    assert [path.exists() for path in (ours, record, half_a_copy, theirs, copy)] == [False] * 3 + [True] * 2
