"""A node on which the driver had another name."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.enforcement import NoEnforcement
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from hami_kubeletplugin.gpu.conditions import Conditions, What
from hami_kubeletplugin.gpu.edits import NoDriverEdits
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.kube.claim_api import ClaimClient
from hami_kubeletplugin.kube.config import load
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kubelet.other_names import OtherNames, Parts
from hami_kubeletplugin.kubelet.sockets import driver_lock
from tests import CHECKOUT
from tests.unit.process.daemon import NODE, PROGRAM, Process, allocated
from tests.waiting import until

OLD, NEW = "old.example.com", "gpu.hami.io"


def options(process: Process, name: str) -> tuple[str, ...]:
    """For a daemon of that name, with a directory of its own."""
    return "--driver-name", name, "--plugin-dir", str(process.root / "plugins" / name)


@pytest.fixture
async def prepared(process: Process, api: ApiServer) -> ClaimRef:
    """A claim that a daemon with the old name has prepared; it has gone, and so have its slices."""
    async with FakeKubelet(process.registry) as kubelet:
        await process.start(*options(process, OLD))
        plugin = await kubelet.plugin(OLD)
        await until(lambda: api.all("resourceslices"))
        ref = allocated(api, "train", memory="4000Mi")
        assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)
        assert await process.stop() == 0
    for each in api.all("resourceslices"):
        api.remove("resourceslices", each["metadata"]["name"])
    return ref


def left(process: Process, ref: ClaimRef) -> list[str]:
    """What is on the node of a claim."""
    return sorted(path.name for path in process.root.rglob(f"*{ref.uid}*"))


async def test_the_new_name_says_what_the_old_one_left(process: Process, api: ApiServer, prepared: ClaimRef) -> None:
    """Claims and pods are named, `claims` counts them, and the GPU that they hold isn't published, or it was given out twice."""
    await process.start(*options(process, NEW))
    await until(lambda: api.all("resourceslices"))
    (said,) = [event for event in process.events() if event.get("pods") and "call" not in event]
    assert (said["driver"], said["claims"], said["pods"]) == (OLD, ["default/train"], ["default/train"])
    assert len(api.all("resourceslices")[0]["spec"]["devices"]) == 7
    program = await asyncio.create_subprocess_exec(
        PROGRAM,
        "claims",
        *options(process, NEW),
        env={"PATH": os.environ["PATH"], **CHECKOUT},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await program.communicate()
    assert out.decode().splitlines()[1:] == []
    again = f"hami-kubeletplugin claims --driver-name {OLD} --plugin-dir {process.root / 'plugins' / OLD}"
    assert error.decode().splitlines() == [f"1 more of driver {OLD}: {again}"]


async def test_another_name_in_the_same_directory(process: Process, api: ApiServer, prepared: ClaimRef) -> None:
    """It ends the daemon, in one line, before it harms anything."""
    before = left(process, prepared)
    second = await process.start("--plugin-dir", str(process.root / "plugins" / OLD))
    async with asyncio.timeout(10):
        assert await second.wait() == 1
    assert f"prepared as driver {OLD}" in process.log.read_text().splitlines()[-1]
    assert left(process, prepared) == before


class Renamed(OtherNames):
    """What serves the claims of other names, in this process, with short waits."""

    def __init__(self, parts: Parts, abandoned: float) -> None:
        self.conditions, self.published, self._looks = Conditions(), set[str](), 0
        super().__init__(parts, self.conditions, self.published.__contains__, look=0.02, abandoned=abandoned)

    async def look(self) -> None:
        """Counted."""
        await super().look()
        self._looks += 1

    async def looks(self, number: int) -> None:
        """Wait until it has looked that often, and has done what follows of all looks but the last."""
        before = self._looks
        await until(lambda: self._looks > before + number)


@asynccontextmanager
async def renamed(process: Process, abandoned: float = 0.1) -> AsyncIterator[Renamed]:
    """One that runs."""
    settings = Settings(
        node_name=NODE,
        plugin_dir=process.root / "plugins" / NEW,
        registry_dir=process.registry,
        cdi_dir=process.cdi,
        hami_dir=process.root / "vgpu",
    )
    shipped = Shipped(process.library, None, "2.31", region_hook=Path("/nowhere"))
    host = HostFiles(shipped, settings.hami_dir, "disk")
    inventory = await SimulatedSource("a100x8", NODE).discover()
    access = load(process.kubeconfig)
    claim_api = ClaimClient(access)
    async with KubeClient(access) as api:
        parts = Parts(
            settings,
            "boot",
            api,
            claim_api,
            lambda _: inventory,
            NoDriverEdits(),
            {"hami-core": HamiCore(host, settings.hami_dir), "none": NoEnforcement()},
        )
        names = Renamed(parts, abandoned)
        task = asyncio.create_task(names.run())
        try:
            yield names
            assert not task.done(), task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            claim_api.close()


async def test_claims_of_the_old_name_are_served(process: Process, api: ApiServer, prepared: ClaimRef) -> None:
    """They can be prepared again, as after a reboot, and unprepared; then nothing is left, and the name is let go."""
    async with FakeKubelet(process.registry) as kubelet, renamed(process) as it:
        plugin = await kubelet.plugin(OLD)
        assert [each.what for several in it.conditions.all.get().values() for each in several] == [What.GIVEN_OUT_TWICE]
        assert not isinstance((await plugin.prepare([prepared]))[prepared.uid], str)
        assert await plugin.unprepare([prepared]) == {prepared.uid: None}
        await kubelet.gone(OLD)
        assert left(process, prepared) == []
        await until(lambda: not it.conditions.all.get())
        async with driver_lock(process.root / "plugins" / OLD, 5):
            pass


async def test_a_name_that_another_daemon_serves(process: Process, api: ApiServer, prepared: ClaimRef) -> None:
    """It is never touched while its lock is held, by a daemon that runs, nor while its slices are there."""
    async with FakeKubelet(process.registry) as kubelet, renamed(process) as it:
        async with driver_lock(process.root / "plugins" / OLD, 5):
            await it.looks(20)
        it.published.add(OLD)
        await it.looks(20)
        assert list(process.registry.iterdir()) == []
        it.published.clear()
        await kubelet.plugin(OLD)


async def test_the_old_daemon_comes_back(process: Process, api: ApiServer, prepared: ClaimRef) -> None:
    """It gets its name back within its wait for the lock, with all claims, and keeps it."""
    async with FakeKubelet(process.registry) as kubelet, renamed(process, abandoned=1.0):
        await kubelet.plugin(OLD)
        started = time.monotonic()
        await process.start(*options(process, OLD))
        await until(lambda: sum("registered with the kubelet" in event["event"] for event in process.events()) >= 2)
        assert time.monotonic() - started < 15  # else it would have given up
        plugin = await kubelet.plugin(OLD)
        assert await plugin.unprepare([prepared]) == {prepared.uid: None}
        assert left(process, prepared) == []
