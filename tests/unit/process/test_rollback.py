"""An upgrade that is rolled back: a newer daemon, then this one, as processes on the same folder."""

import json
import shutil
import sys

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet, Plugin
from tests.unit.process.daemon import Process, allocated
from tests.waiting import until

DRIVER = "gpu.hami.io"
NEWER = (
    sys.executable,
    "-c",
    """
from hami_kubeletplugin import cli
from hami_kubeletplugin.claims import record_schema, records
dump = record_schema.dump
record_schema.dump = lambda claim: {"made_of": dump(claim), "colour": "blue"}
records.VERSION = 2
cli.main()
""",
)
"""A daemon of the future: its records have another shape, and say so."""


async def serving(process: Process, api: ApiServer, kubelet: FakeKubelet) -> Plugin:
    """Once it is registered and has published."""
    await until(lambda: api.all("resourceslices"))
    return await kubelet.plugin(DRIVER)


async def test_a_rolled_back_upgrade_keeps_its_claims(process: Process, api: ApiServer) -> None:
    """Claims that the newer daemon prepared are prepared, restored and unprepared by the older one; it starts none anew."""
    async with FakeKubelet(process.registry) as kubelet:
        await process.start(program=NEWER)
        plugin = await serving(process, api, kubelet)
        refs = [allocated(api, name, memory="4000Mi") for name in ("stays", "goes", "vanished")]
        before = await plugin.prepare(refs)
        records = {ref.uid: process.plugin_dir / "claims" / f"{ref.uid}.json" for ref in refs}
        assert [json.loads(path.read_bytes())["version"] for path in records.values()] == [2, 2, 2]
        specs = {path.name: path.read_bytes() for path in process.cdi.iterdir()}
        assert await process.stop() == 0
        await kubelet.gone(DRIVER)

        shutil.rmtree(process.cdi)  # as a reboot does
        stays, goes, vanished = refs
        api.remove("resourceclaims", "vanished", "default")
        await process.start("--stale-interval", "0.5", "--stale-grace", "0")
        plugin = await serving(process, api, kubelet)
        kept = {name: content for name, content in specs.items() if vanished.uid not in name}
        await until(lambda: {path.name: path.read_bytes() for path in process.cdi.glob("*.json")} == kept)
        await until(lambda: not records[vanished.uid].exists())
        assert {ref.uid: (await plugin.prepare([ref]))[ref.uid] for ref in (stays, goes)} == {
            ref.uid: before[ref.uid] for ref in (stays, goes)
        }
        assert [json.loads(records[ref.uid].read_bytes())["version"] for ref in (stays, goes)] == [1, 1]
        assert await plugin.unprepare([goes]) == {goes.uid: None}
        assert not records[goes.uid].exists()
