"""The whole daemon as a process, on a node on which somebody else gives out the GPUs, too."""

import asyncio
import re
import socket

import aiohttp

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.process.daemon import NODE, Process, allocated
from tests.waiting import until

DRIVER = "gpu.hami.io"


def devices(api: ApiServer) -> list[str] | None:
    """The UUIDs that are published; None without a slice."""
    slices = [each["spec"] for each in api.all("resourceslices") if each["spec"]["driver"] == DRIVER]
    found = [device for spec in slices for device in spec.get("devices", [])]
    return [device["attributes"]["uuid"]["string"] for device in found] if slices else None


async def test_what_another_driver_gives_out_is_withheld(process: Process, api: ApiServer) -> None:
    """A GPU of another driver's slice leaves ours, and is in the metrics; a claim that is prepared on it can go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--metrics-address", address)
        plugin = await kubelet.plugin(DRIVER)
        published = await until(lambda: devices(api))
        assert published is not None
        ref = allocated(api, "train", memory="4000Mi")
        before = await plugin.prepare([ref])
        attributes = {"uuid": {"string": published[0]}}
        spec = {
            "driver": "gpu.nvidia.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": attributes}],
        }
        api.put("resourceslices", {"metadata": {"name": "theirs"}, "spec": spec})
        await until(lambda: devices(api) == published[1:])
        assert await plugin.prepare([ref]) == before
        metrics = f"http://{address}/metrics"
        async with asyncio.timeout(15), aiohttp.ClientSession() as session, session.get(metrics) as response:
            text = await response.text()
        (line,) = re.findall("^hami_gpu_condition{.*", text, re.MULTILINE)
        assert 'value="gpu.nvidia.com",what="given-out-twice"' in line
        assert published[0] in line
        assert await plugin.unprepare([ref]) == {ref.uid: None}


async def test_a_device_plugin_at_the_start(process: Process, api: ApiServer) -> None:
    """The pool is there and empty while a device plugin offers the node's GPUs, and the log says so; an option publishes them."""
    api.put("nodes", {"metadata": {"name": NODE}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    await process.start()
    await until(lambda: devices(api) == [])
    assert any("device plugin" in event.get("message", "") for event in process.events() if event["level"] == "error")
    assert await process.stop() == 0
    await process.start("--given-out-twice", "published")
    await until(lambda: len(devices(api) or ()) == 8)
    assert await process.stop() == 0
    await process.start("--device-plugin-resources", "example.com/gpu")
    await until(lambda: len(devices(api) or ()) == 8)
