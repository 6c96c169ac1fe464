"""A reboot between allocation and prepare that swaps the minors of two GPUs: the pod gets the GPU that it was given, or none."""

from dataclasses import replace
from pathlib import Path

import pytest

from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.gpu.device_names import NamedGpus
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from tests.unit.claims.node import Node, devices, refusal
from tests.unit.claims.objects import Json, claim, container, gpu, pod, result

BIG = replace(gpu(0, 0x10, name="big"), memory_bytes=40960 * MIB)
SMALL = replace(gpu(1, 0x20, name="small"), memory_bytes=15360 * MIB)


class Driver:
    """Finds the GPUs in an order that a boot gives."""

    async def discover(self) -> Inventory:
        """See `GpuSource`."""
        return Inventory(self.found)

    def boot(self, *gpus: Gpu) -> None:
        """Minors are given out anew."""
        self.found = tuple(replace(one, minor=minor, device_name="") for minor, one in enumerate(gpus))


@pytest.fixture
def driver() -> Driver:
    """With the large GPU first."""
    made = Driver()
    made.boot(BIG, SMALL)
    return made


async def look(node: Node, driver: Driver, names: Path) -> None:
    """The daemon starts and finds the GPUs."""
    node.reboot()
    prepared = {share.device: share.uuid for record in node.records.usable() for share in record.shares}
    node.inventory = await NamedGpus(driver, names, lambda: prepared).discover()


def allocated(node: Node, name: str = "c") -> Json:
    """All memory of the GPU that was published first."""
    obj = claim(name, [result(0, "40960Mi", "0")])
    node.api.put(obj, pod("p", container("x", name)))
    return obj


async def test_the_pod_gets_the_gpu_that_it_was_given(node: Node, driver: Driver, tmp_path: Path) -> None:
    """Names are kept: the limit is on the GPU that had the name when the scheduler read it."""
    await look(node, driver, tmp_path / "names")
    obj = allocated(node)
    driver.boot(SMALL, BIG)
    await look(node, driver, tmp_path / "names")
    devices((await node.prepare(obj))[0])
    record = node.records.load(obj["metadata"]["uid"])
    assert record is not None
    assert [(share.device, share.uuid, share.limit.memory_mib) for share in record.shares] == [
        ("hami-gpu-0", BIG.uuid, 40960)
    ]


async def test_without_names_a_limit_that_a_gpu_does_not_have_is_refused(
    node: Node, driver: Driver, tmp_path: Path
) -> None:
    """The disk was lost between: nobody knows which GPU the name meant, but not one of 15 GiB."""
    await look(node, driver, tmp_path / "names")
    obj = allocated(node)
    driver.boot(SMALL, BIG)
    await look(node, driver, tmp_path / "other")
    message = refusal((await node.prepare(obj))[0])
    assert (
        f"more of device hami-gpu-0 ({SMALL.uuid}) than there is: 40960 MiB of memory, of which 15360 are free"
        in message
    )
    assert "delete the pod" in message
    assert node.snapshot() == {}


async def test_without_names_what_is_prepared_keeps_its_gpu(node: Node, driver: Driver, tmp_path: Path) -> None:
    """Its record tells which GPU the name means."""
    await look(node, driver, tmp_path / "names")
    obj = allocated(node)
    before = devices((await node.prepare(obj))[0])
    driver.boot(SMALL, BIG)
    await look(node, driver, tmp_path / "other")
    assert devices((await node.prepare(obj))[0]) == before
    record = node.records.load(obj["metadata"]["uid"])
    assert record is not None
    assert record.shares[0].uuid == BIG.uuid
