"""The order of GPUs, with the whole daemon as a process."""

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.process.daemon import Process, allocated
from tests.waiting import until

DRIVER = "gpu.hami.io"
USUAL = [f"hami-gpu-{minor}" for minor in range(8)]


def order(api: ApiServer) -> list[str]:
    """The devices as the scheduler goes through them."""
    return [device["name"] for item in api.all("resourceslices") for device in item["spec"]["devices"]]


def device_of(api: ApiServer, ref: ClaimRef) -> str:
    """Where the scheduler put a claim."""
    (claim,) = (claim for claim in api.all("resourceclaims") if claim["metadata"]["uid"] == ref.uid)
    return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])


async def test_spread(process: Process, api: ApiServer) -> None:
    """A GPU with a claim goes to the end, in one write, until the claim is unprepared.

    A daemon that comes after a kill knows it from the records, and writes nothing.
    """
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--gpu-order", "spread")
        await until(lambda: order(api) == USUAL)
        plugin = await kubelet.plugin(DRIVER)
        ref = allocated(api, "train", memory="4000Mi")
        assert device_of(api, ref) == USUAL[0]
        assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)
        await until(lambda: order(api) == [*USUAL[1:], USUAL[0]])
        assert device_of(api, allocated(api, "second", memory="4000Mi")) == USUAL[1]
        await process.kill()
        writes, watches = api.writes, api.requests["watch", "resourceslices"]
        await process.start("--gpu-order", "spread")
        await until(lambda: sum("registered" in event["event"] for event in process.events()) >= 2)
        await until(lambda: api.requests["watch", "resourceslices"] > watches)
        plugin = await kubelet.plugin(DRIVER)
        assert order(api) == [*USUAL[1:], USUAL[0]]
        assert await plugin.unprepare([ref]) == {ref.uid: None}
        await until(lambda: order(api) == USUAL)
        assert api.writes == writes + 1


async def test_binpack_is_the_default(process: Process, api: ApiServer) -> None:
    """Without the option claims change nothing in the slice, and what an earlier run with it left is put right at the start."""
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--gpu-order", "spread")
        await until(lambda: order(api) == USUAL)
        plugin = await kubelet.plugin(DRIVER)
        ref = allocated(api, "train", memory="4000Mi")
        await plugin.prepare([ref])
        await until(lambda: order(api) != USUAL)
        assert await process.stop() == 0
        await process.start()
        await until(lambda: order(api) == USUAL)
