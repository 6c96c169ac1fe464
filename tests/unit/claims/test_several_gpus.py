"""Several limited GPUs in a container, with a library that maps them rightly and with one that doesn't."""

import hashlib
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.claims.node import Api, Node, devices
from tests.unit.claims.objects import Json, claim, container, pod, result


@pytest.fixture
def folder(tmp_path: Path, image: Path) -> Path:
    """A library of one's own, whose versions.json a test writes."""
    (tmp_path / "libvgpu.so").write_bytes((image / "libvgpu.so").read_bytes())
    return tmp_path


def node_with(folder: Path, api: Api, **more: str) -> Node:
    """A node with it."""
    digest = hashlib.sha256((folder / "libvgpu.so").read_bytes()).hexdigest()
    (folder / "versions.json").write_text(json.dumps([{"sha256": digest, "version": "2.10.0"} | more]))
    return Node(folder / "node", Shipped(folder), api)


async def said(node: Node, *claims: Json) -> list[Json]:
    """The warnings of a prepare of claims, each of a pod of its own."""
    for obj in claims:
        name = obj["metadata"]["name"]
        node.api.put(obj, pod(name, container("x", name)))
    with capture_logs() as log:
        for answer in await node.prepare(*claims):
            devices(answer)
    return [dict(entry) for entry in log if entry["log_level"] == "warning"]


def of(name: str, *gpus: int) -> Json:
    """A claim of parts of GPUs."""
    return claim(name, [result(gpu, "1000Mi", "10", request=f"r{gpu}") for gpu in gpus], pods=[name])


async def test_without_our_patches_it_is_said_once_what_does_not_hold(folder: Path, api: Api) -> None:
    """With the claim, the library and what to do; of one GPU nothing, and of the next claim nothing more."""
    node = node_with(folder, api)
    assert await said(node, of("one", 0)) == []
    (warning,) = await said(node, of("two", 0, 1))
    assert warning["claim"].endswith("/two")
    assert warning["library"] == "2.10.0"
    for word in ("CUDA_VISIBLE_DEVICES", "can get all of a GPU", "from its source", "one GPU each"):
        assert word in warning["event"]
    assert await said(node, of("three", 1, 2)) == []
    node.start()
    assert len(await said(node, of("four", 1, 2))) == 1


async def test_with_our_patches_there_is_nothing_to_say(folder: Path, api: Api) -> None:
    """And the record tells that they are in."""
    node = node_with(folder, api, patch="hami-dra-1")
    both = of("two", 0, 1)
    assert await said(node, both) == []
    record = node.records.load(both["metadata"]["uid"])
    assert record is not None
    assert record.library == "2.10.0-hami-dra-1"


async def test_what_is_not_limited_is_no_concern(folder: Path, api: Api) -> None:
    """Admin access sees all GPUs, and nothing is kept of them."""
    node = node_with(folder, api)
    obj = claim(
        "admin",
        [result(gpu, None, None, share=None, request=f"r{gpu}", adminAccess=True) for gpu in (0, 1)],
        pods=["admin"],
    )
    assert await said(node, obj) == []
