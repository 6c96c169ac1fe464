"""The whole daemon on a node whose GPUs fail and come back."""

import json
import subprocess
from typing import Any

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.gpu.fake_node import XID, FakeNode, lines_of_gpu
from tests.unit.process.daemon import Process, allocated, asked_again
from tests.unit.process.test_cli import call
from tests.waiting import until


async def test_gpus_that_nvml_finds_are_published(process: Process, api: ApiServer, node: FakeNode) -> None:
    """The daemon runs on the fake NVML as it does on a real one."""
    await process.start(on=node)
    await until(lambda: api.all("resourceslices"))
    (published,) = api.all("resourceslices")
    assert [device["name"] for device in published["spec"]["devices"]] == ["hami-gpu-0", "hami-gpu-1"]


async def test_a_fault_is_told_and_its_end_too(process: Process, api: ApiServer, node: FakeNode) -> None:
    """On an idle node: GPUs that wait for a reset, or are lost, stay in the slice; each has a line, and its end, too."""
    await process.start("--health-poll", "0.3", on=node)
    await until(lambda: api.all("resourceslices"))
    node.write(lines_of_gpu(0, "field 230 1"), lines_of_gpu(1, "fail * 15"))
    told = await until(lambda: conditions(process, 2))
    assert {(line["device"], line["what"], line["value"]) for line in told} == {
        ("hami-gpu-0", "recovery-action", "gpu-reset"),
        ("hami-gpu-1", "lost", ""),
    }
    assert all(line["level"] == "warning" and line["uuid"].startswith("GPU-") for line in told)
    assert any("nvidia-smi --gpu-reset -i 0000:10:00.0" in line["message"] for line in told)
    node.write(lines_of_gpu(0, "field 230 0"), lines_of_gpu(1))
    await until(lambda: len([line for line in process.events() if line["event"] == "GPU condition ended"]) == 2)
    (published,) = api.all("resourceslices")
    assert len(published["spec"]["devices"]) == 2
    await until(node.can_be_unloaded)


async def test_nvml_is_held_open_for_events_while_a_claim_is_prepared(
    process: Process, api: ApiServer, node: FakeNode
) -> None:
    """An Xid that counts is told then, though the driver can't name an action; after unprepare NVML is let go."""
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--health-poll", "0.3", on=node)
        plugin = await kubelet.plugin("gpu.hami.io")
        await until(lambda: api.all("resourceslices"))
        ref = allocated(api, "train", memory="4000Mi")
        await asked_again(lambda: plugin.prepare([ref]))
        await until(lambda: [c for _, c in node.calls() if "Register" in c] == ["nvmlDeviceRegisterEvents"] * 2)
        node.happen("GPU-00000000-0000-0000-0000-000000000000", XID, 48)
        (told,) = await until(lambda: conditions(process, 1))
        assert (told["device"], told["what"], told["value"]) == ("hami-gpu-0", "recovery-action", "unknown")
        assert "Xid 48" in told["message"]
        assert not node.can_be_unloaded()
        assert await plugin.unprepare([ref]) == {ref.uid: None}
        await until(node.can_be_unloaded)


def conditions(process: Process, count: int) -> list[dict[str, Any]]:
    """The lines on conditions that began, once there are so many."""
    lines = [line for line in process.events() if line["event"] == "GPU condition"]
    return lines if len(lines) >= count else []


async def test_devices_shows_what_a_running_daemon_knows(process: Process, node: FakeNode) -> None:
    """Conditions in the table and taints in JSON; what a daemon that is gone has left behind is not shown as the truth."""
    node.write(lines_of_gpu(0, "field 230 1"), lines_of_gpu(1))
    await process.start("--health-poll", "0.2", on=node)
    given = ("devices", *node.options, "--plugin-dir", process.plugin_dir)

    def shown(*more: str) -> subprocess.CompletedProcess[str]:
        return call(*given, *more, **node.environment)

    await until(lambda: "recovery-action=gpu-reset" in shown().stdout)
    devices = json.loads(shown("-o", "json", "--taints", "recovery-action=NoExecute").stdout)
    assert devices[0]["taints"] == [{"key": "gpu.hami.io/recovery-action", "value": "gpu-reset", "effect": "NoExecute"}]
    await process.kill()
    after = shown()
    assert [line.split()[-1] for line in after.stdout.splitlines()[1:]] == ["?", "?"]
    assert "no daemon runs on this node" in after.stderr
