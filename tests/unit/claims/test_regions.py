"""Regions of prepared claims, renewed by the real hook with what the CDI spec tells it."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.claims.cdi_runtime import Seen, inject, region_limits
from tests.unit.claims.node import Api, Node, devices
from tests.unit.claims.objects import GPUS, UUID, Json, claim, config, container, pod, result, uid_of

SANDBOX = "io.kubernetes.cri.sandbox-uid"


@pytest.fixture
def node(tmp_path: Path, native: Path, api: Api) -> Node:
    """A node with the hook that the image ships."""
    shipped = Shipped(native / "libvgpu.so", region_hook=native / "hami-region-hook")
    return Node(tmp_path / "node", shipped, api)


def seen(node: Node, *claims: Json) -> Seen:
    """What a container with all of these claims gets."""
    specs = node.all_specs()
    names = {str(obj["metadata"]["uid"]) for obj in claims}
    ids = [f"{s['kind']}={d['name']}" for s in specs for d in s["devices"] if any(name in d["name"] for name in names)]
    return inject(specs, ids)


def start(found: Seen, pod_uid: str) -> subprocess.CompletedProcess[str]:
    """What the runtime does before a container's first process, with nothing but what the spec says."""
    hook = found.hooks[0]
    state = {"ociVersion": "1.0.2", "id": "x", "status": "created", "pid": 1, "annotations": {SANDBOX: pod_uid}}
    environment = dict(variable.split("=", 1) for variable in hook["env"])
    return subprocess.run(
        hook["args"],
        executable=hook["path"],
        env=environment,
        input=json.dumps(state),
        capture_output=True,
        text=True,
        timeout=hook["timeout"],
        check=False,
    )


async def prepared(node: Node, obj: Json, *containers: Json, init: tuple[Json, ...] = ()) -> Json:
    """A claim of pod p."""
    node.api.put(obj, pod("p", *containers, init=init))
    devices((await node.prepare(obj))[0])
    return obj


async def test_a_start_makes_the_region_pristine_on_the_same_inode(node: Node) -> None:
    """Whatever a container left, on two GPUs, numbered by bus; another pod is told no."""
    results = [result(0, "1000Mi", "10", request="a"), result(2, "2000Mi", "0", request="b")]
    obj = await prepared(node, claim("c", results), container("x", "c"))
    region = node.region(obj)
    inode = region.stat().st_ino
    region.write_bytes(b"what was left" * 10)
    found = seen(node, obj)
    done = start(found, uid_of("pod", "p"))
    assert (done.returncode, done.stderr) == (0, "")
    renewal = found.renewal()
    assert renewal is not None
    assert region.read_bytes() == renewal.content
    assert region.stat().st_ino == inode
    assert list(region_limits(region.read_bytes()).items()) == [(UUID[2], (2000, 100)), (UUID[0], (1000, 10))]
    refused = start(found, uid_of("pod", "other"))
    assert refused.returncode == 1
    assert "claim default/c" in refused.stderr


async def test_init_and_main_container_have_one_region_in_turn(node: Node) -> None:
    """Both specs are one and the same, so the second start renews what the first container used."""
    obj = await prepared(node, claim("c", [result()]), container("x", "c"), init=(container("i", "c"),))
    region = node.region(obj)
    for _ in "init", "main":
        assert start(seen(node, obj), uid_of("pod", "p")).returncode == 0
        assert region_limits(region.read_bytes()) == {UUID[0]: (4000, 30)}
        region.write_bytes(region.read_bytes()[:200] + b"used")


async def test_a_new_allocation_reaches_a_region_in_use_at_the_next_start(node: Node) -> None:
    """Prepare leaves the file alone; the start takes what the new spec says."""
    obj = await prepared(node, claim("c", [result(0, "1Gi", "10")]), container("x", "c"))
    before = node.region(obj).read_bytes()
    again = await prepared(node, claim("c", [result(3, "7Gi", "0")]), container("x", "c"))
    assert node.region(obj).read_bytes() == before
    assert start(seen(node, again), uid_of("pod", "p")).returncode == 0
    assert region_limits(node.region(again).read_bytes()) == {UUID[3]: (7168, 100)}


async def test_a_spec_that_could_not_be_replaced_still_works(node: Node) -> None:
    """With the former limits: what a start needs is in the spec itself."""
    obj = await prepared(node, claim("c", [result(0, "1Gi", "10")]), container("x", "c"))
    spec = node.specs.path(obj["metadata"]["uid"])
    (spec.parent / f"{spec.name}.tmp").mkdir()
    again = claim("c", [result(3, "7Gi", "0")])
    node.api.put(again)
    assert not isinstance((await node.prepare(again))[0], tuple)
    assert start(seen(node, obj), uid_of("pod", "p")).returncode == 0
    assert region_limits(node.region(obj).read_bytes()) == {UUID[0]: (1024, 10)}


async def test_a_target_that_somebody_removed_is_made_by_the_next_prepare(node: Node) -> None:
    """Whole, and usable for a start; unprepare then leaves nothing of all of it."""
    obj = await prepared(node, claim("c", [result()]), container("x", "c"))
    node.region(obj).unlink()
    devices((await node.prepare(obj))[0])
    assert region_limits(node.region(obj).read_bytes()) == {UUID[0]: (4000, 30)}
    assert start(seen(node, obj), uid_of("pod", "p")).returncode == 0
    assert await node.unprepare(obj) == [None]
    assert node.snapshot() == {}


async def test_after_a_reboot_all_is_there_again(node: Node) -> None:
    """The CDI directory is gone and a power cut spoilt files: recovery makes the spec and what it names."""
    obj = await prepared(node, claim("c", [result()]), container("x", "c"))
    renewal = seen(node, obj).renewal()
    assert renewal is not None
    renewal.region.write_bytes(bytes(len(renewal.content)))
    node.reboot()
    await node.recover()
    assert start(seen(node, obj), uid_of("pod", "p")).returncode == 0
    assert region_limits(node.region(obj).read_bytes()) == {UUID[0]: (4000, 30)}


async def test_two_claims_of_a_container_have_the_owners_region(node: Node) -> None:
    """With the limits of both, whichever was prepared first."""
    one, two = claim("one", [result(0, "1Gi", "10")]), claim("two", [result(2, "2Gi", "0")])
    node.api.put(one, two, pod("p", container("x", "one", "two")))
    for answer in await node.prepare(one, two):
        devices(answer)
    found = seen(node, one, two)
    renewal = found.renewal()
    assert renewal is not None
    assert start(found, uid_of("pod", "p")).returncode == 0
    assert region_limits(renewal.region.read_bytes()) == {UUID[2]: (2048, 100), UUID[0]: (1024, 10)}
    assert len(list((node.hami / "cache").rglob("*.region"))) == 1


async def test_a_change_of_the_library_changes_claims_over_and_back(node: Node, native: Path) -> None:
    """An update of the daemon re-renders all specs: what starts from then on has or hasn't a region; files in use stay."""
    obj = await prepared(node, claim("c", [result()]), container("x", "c"))
    region = node.region(obj)
    region.write_bytes(b"in use")
    known = node.shipped
    record = node.records.load(obj["metadata"]["uid"])
    assert record is not None
    assert (record.regions, record.library) == (True, "2.10.0")
    node.shipped = dataclasses.replace(known, region_hook=None)
    node.start()
    await node.recover()
    without = seen(node, obj)
    assert without.renewal() is None
    assert without.limits(GPUS) == {UUID[0]: (4000, 30)}
    assert without.mounts["/usr/local/vgpu/cache"] == str(region.with_name("use-0"))
    assert region.with_name("use-0").is_dir()
    assert region.read_bytes() == b"in use"
    node.shipped = known
    node.start()
    await node.recover()
    assert start(seen(node, obj), uid_of("pod", "p")).returncode == 0
    assert node.limits(obj) == {UUID[0]: (4000, 30)}
    assert await node.unprepare(obj) == [None]
    assert node.snapshot() == {}


@pytest.mark.parametrize("configs", [[], [config(allowSharedContainers=True)]], ids=["one at a time", "shared"])
@pytest.mark.parametrize("file", ["library", "preload"])
async def test_no_container_starts_without_the_library_that_was_installed(
    node: Node, file: str, configs: list[Json]
) -> None:
    """Cut between two starts, it would be left out by the loader, and the limit with it; put back, the same spec works again."""
    obj = await prepared(node, claim("c", [result()], configs=configs), container("x", "c"))
    found, pod_uid = seen(node, obj), uid_of("pod", "p")
    assert start(found, pod_uid).returncode == 0
    path: Path = getattr(node.host.check(), file)
    os.truncate(path, 10)
    ended = start(found, pod_uid)
    assert ended.returncode == 1
    assert f"claim default/c: {path} on the node is not as the driver installed it: it is cut short" in ended.stderr
    node.host.check()
    assert start(found, pod_uid).returncode == 0
    assert seen(node, obj) == found


async def test_of_two_claims_in_a_container_one_has_the_hook(node: Node) -> None:
    """It is run once for each start, also where containers share what they have."""
    claims = [claim(name, [result(0)], configs=[config(allowSharedContainers=True)]) for name in ("one", "two")]
    node.api.put(*claims, pod("p", container("x", "one", "two")))
    for answer in await node.prepare(*claims):
        devices(answer)
    assert len(seen(node, *claims).hooks) == 1
