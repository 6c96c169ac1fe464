"""The whole daemon on a node whose GPUs fail and come back."""

from hami_kubeletplugin.fake.api_server import ApiServer
from tests.unit.gpu.fake_node import FakeNode
from tests.unit.process.daemon import Process
from tests.waiting import until


async def test_gpus_that_nvml_finds_are_published(process: Process, api: ApiServer, node: FakeNode) -> None:
    """The daemon runs on the fake NVML as it does on a real one."""
    await process.start(on=node)
    await until(lambda: api.all("resourceslices"))
    (published,) = api.all("resourceslices")
    assert [device["name"] for device in published["spec"]["devices"]] == ["hami-gpu-0", "hami-gpu-1"]
