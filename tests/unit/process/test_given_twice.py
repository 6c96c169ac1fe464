"""A GPU that was given out twice, and a claim that the kubelet forgot, seen by the daemon as a process."""

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.process.daemon import Process, allocated
from tests.waiting import until

DRIVER = "gpu.hami.io"


async def test_a_forgotten_claim_makes_room_for_the_one_that_waits(process: Process, api: ApiServer) -> None:
    """Refused with its name; it is looked at for that at once, not at the next round, and is found to be gone."""
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--stale-interval", "3600", "--stale-grace", "0")
        plugin = await kubelet.plugin(DRIVER)
        await until(lambda: api.all("resourceslices"))
        first, second = (allocated(api, name) for name in ("first", "second"))  # by a scheduler that doesn't count
        assert not isinstance((await plugin.prepare([first]))[first.uid], str)
        api.remove("resourceclaims", "first", "default")
        assert "default/first holds the rest" in str((await plugin.prepare([second]))[second.uid])
        await until(lambda: not (process.plugin_dir / "claims" / f"{first.uid}.json").exists())
        assert not isinstance((await plugin.prepare([second]))[second.uid], str)
