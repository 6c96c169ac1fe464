"""What containers are told of their devices: files for each request, as KEP-5304's readers know them."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.names import DRIVER, POD_CLAIM_NAME
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.metadata_files import FOLDER, MetadataFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.publish.devices import devices as published
from tests.unit.claims.cdi_runtime import inject, kubelet_ids
from tests.unit.claims.node import Node, devices, refusal
from tests.unit.claims.objects import GPUS, NODE, UUID, Json, claim, config, container, pod, result, simple

TOLD = "/var/run/kubernetes.io/dra-device-attributes"
OWN = ("shareID", "memoryLimitMiB", "coresPercent")


@pytest.fixture
def shipped(image: Path) -> Shipped:
    """One of both ways to keep limits, with which all this has nothing to do."""
    return Shipped(image, region_hook=image / "hami-region-hook")


def mounted(node: Node, obj: Json, request: str | None = None) -> dict[str, Path]:
    """The files that a container finds which uses a claim or one request of it: where, and what is mounted there."""
    record = node.records.load(obj["metadata"]["uid"])
    assert record is not None
    answer = {"c": record.devices(f"k8s.{DRIVER}/claim")}
    seen = inject(node.all_specs(), kubelet_ids(answer, [("c", request)]))
    return {path: Path(host) for path, host in seen.mounts.items() if path.startswith(TOLD)}


def read(path: Path) -> Json:
    """What a file says: the same in both versions, newest first."""
    newest, oldest = (json.loads(line) for line in path.read_text().splitlines())
    versions = [each.pop("apiVersion") for each in (newest, oldest)]
    assert versions == ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]
    assert newest == oldest
    assert newest.pop("kind") == "DeviceMetadata"
    found: Json = newest
    return found


def told(path: Path) -> list[tuple[str, str, Any, Any]]:
    """Request, device, memory and cores of each device in a file."""
    return [
        (request["name"], device["name"], *(device["attributes"].get(name, {}).get("int") for name in OWN[1:]))
        for request in read(path)["requests"]
        for device in request["devices"]
    ]


def metadata_of(node: Node, *, wanted: bool) -> None:
    """As a daemon that is started anew with another option."""
    node.metadata = node.files._metadata = MetadataFiles(node.plugin / FOLDER, wanted=wanted)
    node.metadata.open({*node.records.uids(), *node.specs.uids()})


async def prepare(node: Node, obj: Json, *containers: Json) -> None:
    """Have a claim prepared for a pod of these containers."""
    node.api.put(obj, pod("p", *containers))
    devices((await node.prepare(obj))[0])


async def test_what_a_container_is_told(node: Node) -> None:
    """Which GPU, with the attributes of its slice, and what of it is the container's; the file can be read by any user."""
    obj = claim("c", [result(2, "4000Mi", "30")])
    await prepare(node, obj, container("x", "c"))
    ((path, host),) = mounted(node, obj).items()
    assert path == f"{TOLD}/resourceclaims/c/gpu/{DRIVER}-metadata.json"
    assert (host.stat().st_mode & 0o777, host.parent.stat().st_mode & 0o777) == (0o644, 0o700)
    (slice_device,) = (each for each in published(GPUS.gpus, Sharing()) if each["name"] == "hami-gpu-2")
    share = obj["status"]["allocation"]["devices"]["results"][0]["shareID"]
    attributes = slice_device["attributes"] | {
        "shareID": {"string": share},
        "memoryLimitMiB": {"int": 4000},
        "coresPercent": {"int": 30},
    }
    assert read(host) == {
        "metadata": {"name": "c", "namespace": "default", "uid": obj["metadata"]["uid"], "generation": 1},
        "requests": [
            {
                "name": "gpu",
                "devices": [{"driver": DRIVER, "pool": NODE, "name": "hami-gpu-2", "attributes": attributes}],
            }
        ],
    }
    assert attributes["uuid"] == {"string": UUID[2]}
    assert len(attributes) <= 32


async def test_a_claim_made_from_a_template(node: Node) -> None:
    """Its file is found by what the pod calls the claim, which is all that a manifest knows; so also after a restart."""
    obj = claim("p-gpus-x7k2p", [result(0)])
    obj["metadata"]["annotations"] = {POD_CLAIM_NAME: "gpus"}
    await prepare(node, obj, container("x", "p-gpus-x7k2p"))
    expected = f"{TOLD}/resourceclaimtemplates/gpus/gpu/{DRIVER}-metadata.json"
    ((path, host),) = mounted(node, obj).items()
    assert path == expected
    assert read(host)["podClaimName"] == "gpus"
    before = node.snapshot()
    node.start()
    await node.recover()
    assert node.snapshot() == before


@pytest.mark.parametrize("odd", ["../../../../etc", "a/b", "", "A", "a" * 64, 7, None, ["a"]])
async def test_an_annotation_that_is_no_name(node: Node, odd: object) -> None:
    """Who may write a claim's annotations can't have a file mounted elsewhere: the claim counts as one that pods name."""
    obj = claim("c", [result(0)])
    obj["metadata"]["annotations"] = {POD_CLAIM_NAME: odd}
    await prepare(node, obj, container("x", "c"))
    assert [*mounted(node, obj)] == [f"{TOLD}/resourceclaims/c/gpu/{DRIVER}-metadata.json"]


@pytest.mark.parametrize("name", ["..", "a..b", "-"])
async def test_a_claim_with_no_name_of_an_object(node: Node, name: str) -> None:
    """Nothing is mounted where such a name leads to; the API server lets nobody have one."""
    obj = claim(name, [result(0)], uid="u-1")
    node.api.put(obj, pod("p", container("x", name)))
    assert "a name that no object can have" in refusal((await node.prepare(obj))[0])
    assert node.snapshot() == {}


async def test_each_request_has_its_file(node: Node) -> None:
    """A container is told of the requests that it uses alone; several GPUs of one request are in one file."""
    results = [
        result(0, "1Gi", "10", request="one"),
        result(1, "2Gi", "0", request="two"),
        result(2, "2Gi", "0", request="two"),
        result(3, "3Gi", "5", request="three/small"),
    ]
    obj = claim("c", results)
    await prepare(node, obj, container("x", "c/one"), container("y", "c/two"), container("z", "c/three"))
    files = {request: mounted(node, obj, request) for request in ("one", "two", "three")}
    assert {request: [*found] for request, found in files.items()} == {
        request: [f"{TOLD}/resourceclaims/c/{request}/{DRIVER}-metadata.json"] for request in files
    }
    assert [told(path) for found in files.values() for path in found.values()] == [
        [("one", "hami-gpu-0", 1024, 10)],
        [("two", "hami-gpu-1", 2048, None), ("two", "hami-gpu-2", 2048, None)],
        [("three/small", "hami-gpu-3", 3072, 5)],
    ]


async def test_several_claims_in_a_container(node: Node) -> None:
    """Each has its own file, though one GPU is in both: what the container may use of it is their sum."""
    a, b = claim("a", [result(0, "1Gi", "10")]), claim("b", [result(0, "2Gi", "20")])
    node.api.put(a, b, pod("p", container("x", "a", "b")))
    for answer in await node.prepare(a, b):
        devices(answer)
    found = mounted(node, a) | mounted(node, b)
    assert [told(path) for path in found.values()] == [
        [("gpu", "hami-gpu-0", 1024, 10)],
        [("gpu", "hami-gpu-0", 2048, 20)],
    ]


async def test_a_claim_of_several_pods(node: Node) -> None:
    """All of them find one file, which names no pod."""
    shared = config(source="FromClass", allowSharedContainers=True)
    obj = claim("c", [result(0, "1Gi", "10")], pods=["p", "q"], configs=[shared])
    node.api.put(obj, pod("p", container("x", "c")), pod("q", container("x", "c")))
    devices((await node.prepare(obj))[0])
    ((_, host),) = mounted(node, obj).items()
    assert told(host) == [("gpu", "hami-gpu-0", 1024, 10)]


async def test_a_whole_gpu(node: Node) -> None:
    """Its limits are what it has; the long names that pods' generated claims may have are good."""
    obj = claim(f"{'p' * 200}-x7k2p", [result(0, "80Gi", "100", slots="10k")])
    await prepare(node, obj, container("x", obj["metadata"]["name"]))
    ((_, host),) = mounted(node, obj).items()
    assert told(host) == [("gpu", "hami-gpu-0", 81920, 100)]


async def test_admin_access(node: Node) -> None:
    """Which GPU it is, and no limits."""
    obj = claim("c", [result(0, "1Mi", "0", adminAccess=True)])  # the scheduler gives it a share as any other
    await prepare(node, obj, container("x", "c"))
    ((_, host),) = mounted(node, obj).items()
    (device,) = read(host)["requests"][0]["devices"]
    assert device["attributes"]["uuid"] == {"string": UUID[0]}
    assert device["attributes"].keys() & {*OWN} == {"shareID"}


async def test_a_prepare_that_fails_leaves_the_record_as_it_was(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that can't be made anew either are mended later, from the record: that has to say what containers have."""
    devices((await node.prepare(one))[0])
    uid, before = one["metadata"]["uid"], node.snapshot()
    anew = copy.deepcopy(one)
    anew["status"]["allocation"]["devices"]["results"][0] = result(1, "2Gi", "20")
    node.api.put(anew)

    def broken(*_: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(node.files._metadata, "save", broken)
        assert "the disk is full" in refusal((await node.prepare(anew))[0])
    record = node.records.load(uid)
    assert record is not None
    assert [share.device for share in record.shares] == ["hami-gpu-0"]
    await node.recovery()._mend(uid)
    assert node.snapshot() == before


async def test_the_answer_to_the_kubelet_is_the_same(node: Node, one: Json) -> None:
    """With files, without, and after an update that brings them: the kubelet keeps the CDI devices of earlier answers."""
    answers = []
    for wanted in (True, False, True):
        metadata_of(node, wanted=wanted)
        answers.append(devices((await node.prepare(one))[0]))
        assert bool(mounted(node, one)) == wanted
    assert answers[0] == answers[1] == answers[2]


async def test_what_an_older_version_prepared_goes_on_without(node: Node, one: Json) -> None:
    """Nobody knows by what name its pod calls it, until it is prepared again."""
    devices((await node.prepare(one))[0])
    record = node.records.load(one["metadata"]["uid"])
    assert record is not None
    await node.unprepare(one)
    node.records.save(replace(record, in_pod=None))
    await node.recover()
    assert node.limits(one)
    assert not mounted(node, one)
    devices((await node.prepare(one))[0])
    assert mounted(node, one)


def _gone(path: Path) -> None:
    path.unlink()


def _all_gone(path: Path) -> None:
    shutil.rmtree(path.parent)


def _changed(path: Path) -> None:
    path.write_text("{}")


def _directory(path: Path) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


def _closed(path: Path) -> None:
    path.chmod(0o600)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent)


@pytest.mark.parametrize("harm", [_gone, _all_gone, _changed, _directory, _closed, _link])
async def test_they_are_mended(node: Node, one: Json, harm: Callable[[Path], None]) -> None:
    """Containers that start again find them, whatever somebody did, without the kubelet's asking; other claims are let be."""
    other, its_pod = simple(1)
    node.api.put(other, its_pod)
    for obj in (one, other):
        devices((await node.prepare(obj))[0])
    before = node.snapshot()
    recovery = node.recovery()
    assert recovery._due() == []
    ((_, host),) = mounted(node, one).items()
    mode = host.stat().st_mode
    harm(host)
    due = recovery._due()
    assert one["metadata"]["uid"] in due
    for uid in due:
        await recovery._mend(uid)
    assert recovery._due() == []
    assert node.snapshot() == before
    assert host.stat().st_mode == mode


async def test_a_reboot(node: Node, one: Json) -> None:
    """What a power cut left half-written is written anew."""
    devices((await node.prepare(one))[0])
    before = node.snapshot()
    ((_, host),) = mounted(node, one).items()
    host.write_bytes(b"")
    node.reboot()
    await node.recover()
    after = node.snapshot()
    record = f"plugin/claims/{one['metadata']['uid']}.json"  # names the boot
    assert before | {record: after[record]} == after


async def test_nothing_stays(node: Node, one: Json) -> None:
    """Unprepare removes them, also when they are no longer wanted; and a start those of claims of which nothing else is."""
    devices((await node.prepare(one))[0])
    uid = one["metadata"]["uid"]
    metadata_of(node, wanted=False)
    assert await node.unprepare(one) == [None]
    assert node.snapshot() == {}
    metadata_of(node, wanted=True)
    devices((await node.prepare(one))[0])
    before = node.snapshot()
    (node.plugin / FOLDER / "stray.gpu.json").touch()
    (node.plugin / FOLDER / f"{uid}.gone.json.tmp").touch()
    node.start()
    await node.recover()
    assert node.snapshot() == before
