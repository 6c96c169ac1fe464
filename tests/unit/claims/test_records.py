"""Records: what was written comes back, or an error says that it can't."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import ClaimError, RecordDamaged, RecordTooNew, StorageError
from hami_kubeletplugin.claims import records
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import GpuLimit, Prepared, PreparedShare, Use
from hami_kubeletplugin.claims.records import Records, decode, encode
from tests.unit.claims.node import Node, claim, container, pod, result

text = st.text(max_size=12)
amount = st.integers(0, 2**50)
limits = st.builds(GpuLimit, uuid=text, memory_mib=amount, cores=amount)
uses = st.builds(
    Use,
    containers=st.lists(text, max_size=3).map(tuple),
    gpus=st.lists(limits, max_size=3).map(tuple),
    admin=st.booleans(),
    core_policy=st.sampled_from([None, "default", "force", "disable"]),
    priority=st.sampled_from([None, "high", "low"]),
    log_level=st.none() | st.integers(0, 4),
    cache=st.sampled_from(["own", "private", "none"]),
    owner=text,
)
shares = st.builds(
    PreparedShare,
    request=text,
    subrequest=st.none() | text,
    pool=text,
    device=text,
    share_id=st.none() | text,
    uuid=text,
    memory_mib=amount,
    cores=amount,
    use=amount,
)
claims = st.builds(
    Prepared,
    namespace=text,
    name=text,
    uid=text,
    pods=st.lists(st.builds(PodRef, namespace=text, name=text, uid=text), max_size=2).map(tuple),
    boot_id=text,
    driver=text,
    shares=st.lists(shares, max_size=3).map(tuple),
    uses=st.lists(uses, max_size=3).map(tuple),
    library=st.none() | text,
    regions=st.booleans(),
)

SAMPLE = Prepared(
    namespace="default",
    name="c",
    uid="0fa1c1e0-0000-4000-8000-000000000000",
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
            memory_mib=4000,
            cores=30,
            use=0,
        ),
    ),
    uses=(
        Use(
            containers=("p/x",),
            gpus=(GpuLimit(uuid="GPU-1", memory_mib=4000, cores=30),),
            admin=False,
            core_policy=None,
            priority=None,
            log_level=None,
            cache="own",
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
    except (RecordDamaged, RecordTooNew) as error:
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
    data = json.loads(SAMPLE.model_dump_json()) | {"colour": "blue"}
    assert decode(_sealed(data), "here") == SAMPLE


def test_a_newer_version_says_what_to_do() -> None:
    """The checksum's rule may be another one there, so it isn't even looked at."""
    content = json.dumps({"version": 2, "sha256": "?", "data": {"new": "shape"}}).encode()
    with pytest.raises(RecordTooNew, match=r"version 2, this program knows 1; go back to the newer program, or drain"):
        decode(content, "here")


def _sealed(data: Any) -> bytes:
    text = json.dumps(data)
    digest = records.hashlib.sha256(text.encode()).hexdigest()
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
    real = files.os.rename

    def rename(source: Path, target: Path) -> None:
        names.append(Path(source).name)
        real(source, target)

    obj = claim("c", [result()])
    node.api.put(obj, pod("p", container("x", "c")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "rename", rename)
        asyncio.run(node.prepare(obj))
    assert len(names) == (4 if node.regions else 2)
    assert not [name for name in names if name.endswith((".json", ".yaml"))]


def test_opening_clears_half_written_files_of_ours_alone(node: Node) -> None:
    """Others write to the CDI directory too."""
    ours, theirs = node.cdi / f"{node.specs.path('u').name}.tmp", node.cdi / "nvidia.json.tmp"
    record = node.plugin / "claims" / "u.json.tmp"
    for path in (ours, theirs, record):
        path.write_text("half")
    node.start()
    assert [path.exists() for path in (ours, theirs, record)] == [False, True, False]
