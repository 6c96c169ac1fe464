"""The whole daemon beside what hangs: it goes on with what it can, says what hangs, and ends when it is asked to."""

import asyncio

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.dead_mount import can_mount_dead, dead_mount
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu
from tests.unit.process.daemon import Process, allocated
from tests.unit.process.test_daemon import registered
from tests.waiting import until

END = 7.0
"""Seconds: less than calls in flight are granted, 8, so that it is not those that are waited for."""


async def test_sigterm_does_not_wait_for_a_silent_api_server(process: Process, api: ApiServer) -> None:
    """A prepare that waits for an answer that does not come is ended, and said to be."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="4000Mi")
        api.latency = 60
        prepare = asyncio.create_task(plugin.prepare([ref]))
        await until(lambda: api.requests["get", "resourceclaims"])
        assert await process.stop(within=END) == 0
        assert "get resourceclaims" in str((await prepare)[ref.uid])


@can_mount_dead
async def test_gpus_are_watched_beside_a_file_system_that_hangs(
    process: Process, api: ApiServer, node: FakeNode
) -> None:
    """Each fault is told, and the slices follow, though nobody can tell what is prepared; so is its end."""

    def lost() -> list[str]:
        devices = [device for item in api.all("resourceslices") for device in item["spec"]["devices"]]
        tainted = [(device, taint["key"]) for device in devices for taint in device.get("taints", ())]
        return [device["name"] for device, key in tainted if key == "gpu.hami.io/lost"]

    await process.start("--health-poll", "0.3", on=node)
    await until(lambda: api.all("resourceslices"))
    with dead_mount(process.plugin_dir / "claims"):
        node.write(lines_of_gpu(0, "fail * 15"), lines_of_gpu(1))
        await until(lambda: lost() == ["hami-gpu-0"])
        node.write(lines_of_gpu(0, "fail * 15"), lines_of_gpu(1, "fail * 15"))
        await until(lambda: lost() == ["hami-gpu-0", "hami-gpu-1"])
        node.write(lines_of_gpu(0), lines_of_gpu(1))
        await until(lambda: lost() == [])


@can_mount_dead
async def test_a_plugin_directory_of_another_driver_that_hangs(process: Process, api: ApiServer) -> None:
    """What others have mounted beside ours, such as a CSI driver's volume, keeps no GPU from being published."""
    theirs = process.plugin_dir.parent / "csi.example.com"
    theirs.mkdir(parents=True)
    with dead_mount(theirs):
        await process.start()
        await until(lambda: api.all("resourceslices"))
        ended = await process.stop(within=18)
    assert ended == 0


@can_mount_dead
async def test_sigterm_ends_it_beside_a_file_system_that_hangs(process: Process, api: ApiServer) -> None:
    """What can't be ended is left behind, with exit code 0: else nobody could update the daemon but by a reboot."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        prepares = []
        with dead_mount(process.plugin_dir / "claims"):
            for number in range(3):
                ref = allocated(api, f"train-{number}", memory="4000Mi")
                prepares.append(asyncio.create_task(plugin.prepare([ref])))
            await until(lambda: api.requests["get", "resourceclaims"] >= 3)
            ended = await process.stop(within=18)  # the DaemonSet grants 20
        await asyncio.gather(*prepares, return_exceptions=True)
        assert ended == 0
