"""The whole daemon as a process."""

import asyncio
import os
import signal

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet, Plugin
from tests.unit.process.daemon import NODE, Process, allocated, asked_again
from tests.waiting import until

DRIVER = "gpu.hami.io"


async def registered(process: Process, api: ApiServer, kubelet: FakeKubelet) -> Plugin:
    """Start, and wait until registered and published."""
    await process.start()
    await until(lambda: api.all("resourceslices"))
    return await kubelet.plugin(DRIVER)


async def test_sigterm_unregisters_and_exits_0(process: Process, api: ApiServer) -> None:
    """SIGTERM ends the daemon with exit code 0; its sockets are gone, its slices stay for its successor."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        assert await process.stop() == 0
        await kubelet.gone(DRIVER)
    assert list(process.registry.iterdir()) == []
    assert not (process.plugin_dir / "dra.sock").exists()
    assert len(api.all("resourceslices")) == 1


async def test_sigterm_lets_a_prepare_finish(process: Process, api: ApiServer) -> None:
    """A prepare that is under way when SIGTERM comes is answered, and the exit code is 0."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="4000Mi")
        api.latency = 1.0
        prepare = asyncio.create_task(plugin.prepare([ref]))
        await until(lambda: api.requests["get", "resourceclaims"])
        assert await process.stop() == 0
        assert not isinstance((await prepare)[ref.uid], str)


async def test_sighup_loses_nothing(process: Process, api: ApiServer) -> None:
    """SIGHUP changes nothing: the daemon goes on serving what it has prepared."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="4000Mi")
        before = await plugin.prepare([ref])
        assert process._process
        process._process.send_signal(signal.SIGHUP)
        await until(lambda: any("SIGHUP" in event["event"] for event in process.events()))
        assert await plugin.prepare([ref]) == before


async def test_a_killed_daemon_leaves_nothing_lost(process: Process, api: ApiServer) -> None:
    """After kill -9 and a new start the same claim gets the same answer, and unprepare leaves nothing."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="4000Mi", cores="30")
        before = await plugin.prepare([ref])
        await process.kill()
        await process.start()
        await until(lambda: sum("registered" in event["event"] for event in process.events()) >= 2)
        plugin = await kubelet.plugin(DRIVER)
        assert await plugin.prepare([ref]) == before
        assert await plugin.unprepare([ref]) == {ref.uid: None}
    assert list(process.cdi.iterdir()) == []
    assert list((process.plugin_dir / "claims").glob("*.json")) == []


async def test_two_daemons(process: Process, api: ApiServer) -> None:
    """A second daemon for the same driver and node ends with exit code 1 and names the first one's pid."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        first = process._process
        assert first
        second = await process.start("--lock-timeout", "0.2")
        async with asyncio.timeout(10):
            assert await second.wait() == 1
        assert f"{first.pid}" in process.log.read_text().splitlines()[-1]
        process._process = first


async def test_sigterm_ends_the_wait_for_a_predecessor(process: Process, api: ApiServer) -> None:
    """A daemon that still waits for another one to stop goes at once when it gets SIGTERM, with exit code 0."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        first = process._process
        await process.start("--lock-timeout", "60")
        await until(lambda: any("predecessor" in event["event"] for event in process.events()))
        assert await process.stop(within=5) == 0
        process._process = first


async def test_api_server_away_at_start(process: Process, api: ApiServer) -> None:
    """Without an API server the daemon registers all the same, and publishes when the server comes."""
    await api.down()
    async with FakeKubelet(process.registry) as kubelet:
        await process.start()
        await kubelet.plugin(DRIVER)
        assert api.all("resourceslices") == []
        await api.up()
        await until(lambda: api.all("resourceslices"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 403, "resource": "resourceslices"}, "resourceslices"),
        ({"status": 403, "resource": "nodes"}, "nodes"),
    ],
)
async def test_forbidden(process: Process, api: ApiServer, fault: dict[str, object], words: str) -> None:
    """What RBAC forbids is named in the log, and the daemon stays up and publishes once it is allowed."""
    api.fail(**fault)  # type: ignore[arg-type]
    async with FakeKubelet(process.registry) as kubelet:
        await process.start()
        await kubelet.plugin(DRIVER)
        await until(lambda: any(words in str(event.get("error", "")) for event in process.events()))
        api.mend()
        await until(lambda: api.all("resourceslices"))


async def test_node_object_missing(process: Process, api: ApiServer) -> None:
    """A node that the API server does not know is named in the log; slices come when it is there."""
    api.remove("nodes", NODE)
    async with FakeKubelet(process.registry):
        await process.start()
        await until(lambda: any(NODE in str(event.get("error", "")) for event in process.events()))
        api.put("nodes", {"metadata": {"name": NODE}})
        await until(lambda: api.all("resourceslices"))


async def test_library_missing(process: Process, api: ApiServer) -> None:
    """Without HAMi-core's library a claim is refused, with the path; when it is there the next prepare works."""
    content = process.library.read_bytes()
    process.library.unlink()
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="4000Mi")
        assert str(process.library) in str((await plugin.prepare([ref]))[ref.uid])
        process.library.write_bytes(content[: len(content) // 2])
        assert str(process.library) in str((await plugin.prepare([ref]))[ref.uid])
        process.library.write_bytes(content)
        assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)


async def test_driver_comes_and_goes(process: Process, api: ApiServer) -> None:
    """Without a driver nothing is published, which is said once; its coming is noticed, and when it went a prepare says so."""
    node = process.root / "node.yaml"
    node.write_text("profile: a100x8\ndriver: missing\n")
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--simulate", str(node), "--rescan-interval", "0.1", "--prepare-timeout", "1")
        plugin = await kubelet.plugin(DRIVER)
        assert api.all("resourceslices") == []
        node.write_text("profile: a100x8\n")
        await until(lambda: api.all("resourceslices"))
        assert sum("can't be read" in event["event"] for event in process.events()) == 1
        ref = allocated(api, "train", memory="4000Mi")
        node.write_text("profile: a100x8\ndriver: missing\n")
        await until(lambda: not api.all("resourceslices"))
        assert "driver" in str((await plugin.prepare([ref]))[ref.uid])


async def test_a_gpu_that_vanishes(process: Process, api: ApiServer) -> None:
    """A claim on a GPU that is gone is refused by the device's name; the others go on."""
    node = process.root / "node.yaml"
    node.write_text("profile: a100x8\n")
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--simulate", str(node), "--rescan-interval", "0.1")
        plugin = await kubelet.plugin(DRIVER)
        await until(lambda: api.all("resourceslices"))
        ref = allocated(api, "train", memory="4000Mi")
        node.write_text("profile: a100x8\nabsent: [0]\n")
        await until(lambda: len(api.all("resourceslices")[0]["spec"]["devices"]) == 7)
        assert "hami-gpu-0" in str((await plugin.prepare([ref]))[ref.uid])
        other = allocated(api, "other", memory="4000Mi")
        assert not isinstance((await plugin.prepare([other]))[other.uid], str)


async def test_odd_things_in_the_way_at_the_start(process: Process, api: ApiServer) -> None:
    """What is in the way of specs or records is said, and refuses each prepare; the daemon is there to unprepare."""
    process.cdi.write_text("a file")
    (process.plugin_dir / "claims" / "odd.json.tmp").mkdir(parents=True)
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        said = [str(event.get("error")) for event in process.events() if event["level"] == "error"]
        assert any(str(process.cdi) in error for error in said)
        assert any("odd.json.tmp" in error for error in said)
        ref = allocated(api, "train", memory="4000Mi")
        assert str(process.cdi) in str((await plugin.prepare([ref]))[ref.uid])
        process.cdi.unlink()
        assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)
        assert await plugin.unprepare([ref]) == {ref.uid: None}


async def test_a_plugin_directory_that_was_moved_away(process: Process, api: ApiServer) -> None:
    """Sockets, lock and records are made anew where they belong; what was prepared can be unprepared."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        before, after = allocated(api, "before", memory="4000Mi"), allocated(api, "after", memory="4000Mi")
        await plugin.prepare([before])
        process.plugin_dir.rename(process.root / "away")
        assert not isinstance((await asked_again(lambda: plugin.prepare([after])))[after.uid], str)
        await until(lambda: (process.plugin_dir / "dra.sock").exists() and (process.plugin_dir / "lock").exists())
        unprepared = await asked_again(lambda: plugin.unprepare([before, after]))
        assert unprepared == {before.uid: None, after.uid: None}
    assert list(process.cdi.iterdir()) == []


async def test_what_ends_the_daemon_is_one_line(process: Process, api: ApiServer) -> None:
    """A directory that was replaced by a file ends it with exit code 1 and the reason, without a traceback."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        process.plugin_dir.rename(process.root / "away")
        process.plugin_dir.write_text("a file")
        assert process._process
        async with asyncio.timeout(15):
            assert await process._process.wait() == 1
    assert "Traceback" not in process.log.read_text()
    assert str(process.plugin_dir) in process.log.read_text().splitlines()[-1]


async def test_harmed_files_are_mended(process: Process, api: ApiServer) -> None:
    """What somebody wipes or cuts short is right again within seconds, without a prepare: containers may start at any time."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="4000Mi")
        await plugin.prepare([ref])
        (spec,) = process.cdi.iterdir()
        (library,) = (process.root / "vgpu" / "lib").glob("libvgpu.so.*")
        files = {path: path.read_bytes() for path in (spec, library)}
        spec.unlink()
        library.unlink()
        await until(lambda: all(path.exists() for path in files))
        assert {path: path.read_bytes() for path in files} == files
        for path in files:
            os.truncate(path, 100)
        await until(lambda: {path: path.read_bytes() for path in files} == files)
