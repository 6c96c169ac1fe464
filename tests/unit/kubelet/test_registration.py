"""A kubelet that doesn't register the driver at once: it is asked again, and people are told."""

import asyncio
import time
from pathlib import Path

import pytest
import structlog

from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from hami_kubeletplugin.kubelet import registration
from hami_kubeletplugin.kubelet.registration import Registration
from hami_kubeletplugin.kubelet.wire import pluginregistration_v1_pb2 as wire
from tests.unit.kubelet.fakes import Serve, ref
from tests.waiting import until


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of hundredths of a second."""
    monkeypatch.setattr(registration, "REFUSED", (0.02, 0.1))
    monkeypatch.setattr(registration, "UNASKED", (0.3, 0.6))


@pytest.mark.usefixtures("impatient")
async def test_a_kubelet_that_refused_once_is_asked_again(serve: Serve, settings: Settings) -> None:
    """A socket that the kubelet refused is shown anew until it takes it; the same words are an error once."""
    with structlog.testing.capture_logs() as logs:
        async with FakeKubelet(settings.registry_dir) as kubelet:
            kubelet.refusing = "busy"
            async with serve(settings) as server:
                await until(lambda: server.registration.refusals >= 3)
                assert "busy" in str(server.registration.trouble)
                kubelet.refusing = ""
                plugin = await kubelet.plugin(DRIVER)
                await until(server.registration.registered.is_set)
                assert not server.registration.trouble
                assert list(await plugin.prepare([ref(1)])) == ["uid-1"]
    assert [entry["error"] for entry in logs if entry["log_level"] == "error"] == ["busy"]


@pytest.mark.usefixtures("impatient")
async def test_a_kubelet_that_never_asks(serve: Serve, settings: Settings) -> None:
    """A socket that the kubelet overlooked is shown anew, with one warning; as soon as it asks all is as it should be."""
    with structlog.testing.capture_logs() as logs:
        async with FakeKubelet(settings.registry_dir) as kubelet:
            kubelet.deaf = True
            async with serve(settings) as server:
                await until(lambda: server.registration.trouble)
                assert "has not asked" in str(server.registration.trouble)
                assert not server.registration.registered.is_set()
                await until(lambda: sum("waiting for the kubelet" in entry["event"] for entry in logs) >= 3)
                kubelet.deaf = False
                await kubelet.plugin(DRIVER)
                await until(server.registration.registered.is_set)
                assert not server.registration.trouble
    assert sum("has not asked" in entry["event"] for entry in logs) == 1


@pytest.mark.usefixtures("impatient")
async def test_a_registered_socket_is_left_alone(serve: Serve, settings: Settings) -> None:
    """While the kubelet has the driver registered its socket stays the same, however long."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings) as server:
        await kubelet.plugin(DRIVER)
        await until(server.registration.registered.is_set)
        (path,) = settings.registry_dir.iterdir()
        before = path.lstat()
        await asyncio.sleep(0.7)
        assert (path.lstat().st_ino, path.lstat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_waits_grow() -> None:
    """After a refusal the socket is shown anew after 5, 10, 20 seconds and so on, at most 5 minutes; success starts anew."""
    now = 0.0
    kept = Registration("gpu.hami.io", Path("/x/dra.sock"), clock=lambda: now)

    def notify(error: str) -> None:
        kept._notify(wire.RegistrationStatus(plugin_registered=not error, error=error), None)  # type: ignore[arg-type]

    def waited() -> int:
        nonlocal now
        kept.shown()
        notify("no")
        begin = now
        while not kept.overdue():
            now += 1
        return int(now - begin)

    assert [waited() for _ in range(8)] == [5, 10, 20, 40, 80, 160, 300, 300]
    kept.shown()
    notify("")
    assert kept.registered_at is not None
    assert abs(kept.registered_at - time.time()) < 60
    now += 10_000
    assert not kept.overdue()
    assert waited() == 5
