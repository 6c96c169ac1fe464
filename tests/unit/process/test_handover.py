"""One daemon takes over from another, as in a rolling update with maxSurge."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.process.daemon import Process, allocated
from tests.unit.process.test_daemon import DRIVER, registered
from tests.waiting import until


def said(process: Process, event: str) -> int:
    """How often daemons have logged it."""
    return sum(each["event"] == event for each in process.events())


@contextlib.asynccontextmanager
async def replaced(process: Process) -> AsyncIterator[asyncio.subprocess.Process]:
    """The first daemon, which still serves; `process` has become its successor, which stands by."""
    first = process._process
    assert first
    before = said(process, "standing by")
    await process.start()
    try:
        await until(lambda: said(process, "standing by") > before)
        yield first
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()


async def test_no_call_fails_while_one_takes_over_from_another(process: Process, api: ApiServer) -> None:
    """Claims come and go all the while: each call is answered, each claim is prepared; twice, in both places for sockets."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        refs = [allocated(api, f"train-{number}", memory="100Mi") for number in range(40)]
        for place in (("dra2.sock",), ("dra.sock",)):
            stop = asyncio.Event()

            async def work(number: int, stop: asyncio.Event = stop) -> int:
                done = 0
                while not stop.is_set():
                    for ref in refs[number::4]:
                        [answer] = (await (await kubelet.plugin(DRIVER)).prepare([ref])).values()
                        assert not isinstance(answer, str), answer
                        assert await (await kubelet.plugin(DRIVER)).unprepare([ref]) == {ref.uid: None}
                        done += 1
                return done

            async with replaced(process) as first, asyncio.TaskGroup() as tasks:
                working = [tasks.create_task(work(number)) for number in range(4)]
                first.send_signal(signal.SIGTERM)
                assert await first.wait() == 0
                await until(lambda: said(process, "starting") == said(process, "stopped") + 1)
                stop.set()
            assert sum(task.result() for task in working) >= len(refs)
            assert tuple(path.name for path in process.plugin_dir.glob("dra*.sock")) == place
            assert len([*process.registry.iterdir()]) == 1
    assert said(process, "the successor is registered") == 2


async def test_who_stands_by_writes_nothing(process: Process, api: ApiServer) -> None:
    """A daemon that stands by changes no file, no slice and shows no metrics; when it is told to end, the other goes on."""

    def files() -> dict[str, int]:
        there = [*process.plugin_dir.rglob("*"), *process.cdi.rglob("*"), *(process.root / "vgpu").rglob("*")]
        new = {"next.sock", "lock.next", "lock.wanted"}
        return {str(path): path.lstat().st_mtime_ns for path in there if path.is_file() and path.name not in new}

    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="100Mi")
        prepared = await plugin.prepare([ref])
        before, slices = files(), api.all("resourceslices")
        async with replaced(process) as first:
            assert (files(), api.all("resourceslices")) == (before, slices)
            assert await process.stop() == 0
            assert first.returncode is None
            assert await plugin.prepare([ref]) == prepared
            assert [path.name for path in process.registry.iterdir()] == ["gpu.hami.io-reg.sock"]


@pytest.mark.parametrize("lacks", ["--hami-core", "--cdi-dir"])
async def test_who_could_not_prepare_takes_nothing_over(process: Process, api: ApiServer, lacks: str) -> None:
    """A successor that could prepare no claims doesn't stand by, says why, and is not registered before the other has ended."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        first = process._process
        assert first
        await process.start(lacks, "/proc/nowhere")
        await until(lambda: any("claims can't be prepared" in each["event"] for each in process.events()))
        first.send_signal(signal.SIGTERM)
        assert await first.wait() == 0
        assert said(process, "the successor is registered") == 0


async def test_what_a_killed_successor_leaves_is_cleared_away(process: Process, api: ApiServer) -> None:
    """A daemon that took over is killed: the next one serves in the first place, and the sockets in the second one are gone."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        async with replaced(process) as first:
            first.send_signal(signal.SIGTERM)
            await until(lambda: said(process, "starting") == 2)
        await process.kill()
        assert (process.plugin_dir / "dra2.sock").is_socket()
        await process.start()
        await until(lambda: said(process, "registered with the kubelet") == 3)
        ref = allocated(api, "train", memory="100Mi")
        [answer] = (await (await kubelet.plugin(DRIVER)).prepare([ref])).values()
        assert not isinstance(answer, str)
        assert [path.name for path in process.plugin_dir.glob("dra*.sock")] == ["dra.sock"]
        assert [path.name for path in process.registry.iterdir()] == ["gpu.hami.io-reg.sock"]


async def test_who_would_end_at_once_takes_nothing_over(process: Process, api: ApiServer) -> None:
    """With claims of another driver name in its directory a daemon ends: so it doesn't stand by as if it could serve them."""
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        await plugin.prepare([allocated(api, "train", memory="100Mi")])
        first = process._process
        assert first
        await process.start("--driver-name", "gpu.example.com")
        await until(lambda: any("records" in each.get("lacking", ()) for each in process.events()))
        assert said(process, "standing by") == 0
        first.send_signal(signal.SIGTERM)
        assert await first.wait() == 0
        assert said(process, "the successor is registered") == 0


async def test_standing_by_is_tried_again(process: Process, api: ApiServer) -> None:
    """Something in the way of the socket at which a successor is asked: it says so, and stands by when that is gone."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        first = process._process
        assert first
        (process.plugin_dir / ".next.sock").mkdir()
        await process.start()
        await until(lambda: said(process, "can't stand by; it is tried again") == 1)
        (process.plugin_dir / ".next.sock").rmdir()
        await until(lambda: said(process, "standing by") == 1)
        first.kill()
        await first.wait()
