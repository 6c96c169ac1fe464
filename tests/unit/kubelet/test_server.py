"""Registration, start, repair and stop of the server, seen through a fake kubelet."""

import asyncio
import os
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
import structlog

from hami_kubeletplugin.api.errors import AlreadyServing, ServingError, SocketPathTooLong
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from hami_kubeletplugin.gpu.device_health import Reported
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import driver_lock
from tests.unit.kubelet.fakes import Claims, Serve, ref
from tests.waiting import until


def sockets(settings: Settings) -> list[str]:
    """Files of ours that are left, hidden ones included."""
    directories = settings.plugin_dir, settings.registry_dir
    return sorted(path.name for directory in directories if directory.exists() for path in directory.iterdir())


async def test_registers_with_the_versions_newest_first(serve: Serve, settings: Settings) -> None:
    """The kubelet sees the driver under its name with v1 before v1beta1 and both health services, and is told so."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings) as server:
        plugin = await kubelet.plugin(DRIVER)
        await until(server.registration.registered.is_set)
        assert plugin.supported_versions == (
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        )
        assert plugin.version == "v1.DRAPlugin"
        assert server.registration.refusal is None
        assert sockets(settings) == ["dra.sock", "gpu.hami.io-reg.sock", "lock"]


async def test_stop_unregisters_and_leaves_only_the_lock_file(serve: Serve, settings: Settings) -> None:
    """After a stop the kubelet knows the driver no more, and no socket is left."""
    async with FakeKubelet(settings.registry_dir) as kubelet:
        async with serve(settings) as server:
            await kubelet.plugin(DRIVER)
        await kubelet.gone(DRIVER)
        assert not server.registration.registered.is_set()
        assert sockets(settings) == ["lock"]


async def test_a_refusal_is_remembered_and_logged_with_the_kubelets_words(serve: Serve, settings: Settings) -> None:
    """A kubelet that knows none of our versions says no; its text is kept and logged as an error."""
    with structlog.testing.capture_logs() as logs:
        async with FakeKubelet(settings.registry_dir, versions=["v9.DRAPlugin"]), serve(settings) as server:
            await until(lambda: server.registration.refusal)
    assert server.registration.refusal is not None
    assert "v9.DRAPlugin" in server.registration.refusal
    assert not server.registration.registered.is_set()
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["error"] for entry in errors] == [server.registration.refusal]


async def test_waits_for_the_kubelets_directory(
    serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kubelet the daemon lives, says so once, and registers when the directory appears."""
    looks: list[bool] = []
    look = KubeletServer._keep_registration

    async def counted(self: KubeletServer) -> bool:
        looks.append(await look(self))
        return looks[-1]

    monkeypatch.setattr(KubeletServer, "_keep_registration", counted)
    with structlog.testing.capture_logs() as logs:
        async with serve(settings) as server:
            await until(lambda: sum("registry directory" in entry["event"] for entry in logs) == 1)
            await until(lambda: looks == [False] * 4)
            async with FakeKubelet(settings.registry_dir) as kubelet:
                await kubelet.plugin(DRIVER)
            await until(server.registration.registered.is_set)
    assert sum("registry directory" in entry["event"] for entry in logs) == 1


@pytest.mark.parametrize(
    "victim", ["registry", "registry/gpu.hami.io-reg.sock", "plugin", "plugin/dra.sock", "plugin/lock"]
)
async def test_what_somebody_deletes_comes_back(serve: Serve, settings: Settings, short: Path, victim: str) -> None:
    """A deleted socket, lock or directory is made again, and the kubelet can prepare as before."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings) as server:
        await kubelet.plugin(DRIVER)
        await until(server.registration.registered.is_set)
        path = short / victim
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if victim == "registry":
            await kubelet.gone(DRIVER)
            path.mkdir()
        await until(lambda: sockets(settings) == ["dra.sock", "gpu.hami.io-reg.sock", "lock"])
        plugin = await kubelet.plugin(DRIVER)
        assert list(await plugin.prepare([ref(1)])) == ["uid-1"]
        with pytest.raises(AlreadyServing):
            async with driver_lock(settings.plugin_dir, 0):
                pass
    assert sockets(settings) == ["lock"]


async def test_stop_finishes_a_prepare_in_flight(serve: Serve, settings: Settings, claims: Claims) -> None:
    """A stop while a claim is being prepared waits for it, and the kubelet still gets the answer before it is unregistered."""
    claims.hold = threading.Event()
    async with FakeKubelet(settings.registry_dir) as kubelet:
        async with serve(settings):
            plugin = await kubelet.plugin(DRIVER)
            health = plugin.watch_health()
            await anext(health)  # an open stream must not hold up the stop
            preparing = asyncio.create_task(plugin.prepare([ref(1)]))
            await until(claims.started.is_set)
            asyncio.get_running_loop().call_later(0.3, claims.hold.set)
            begin = time.monotonic()
        assert list(await preparing) == ["uid-1"]
        assert claims.finished == ["uid-1"]
        assert time.monotonic() - begin < 2
        assert [report async for report in health] == []
        await kubelet.gone(DRIVER)


async def test_stop_does_not_wait_forever(serve: Serve, settings: Settings, claims: Claims) -> None:
    """A prepare that hangs is cancelled after the grace period; the kubelet gets an error, not silence."""
    claims.hold = threading.Event()
    async with FakeKubelet(settings.registry_dir) as kubelet:
        async with serve(settings, stop_grace=0.2):
            plugin = await kubelet.plugin(DRIVER)
            preparing = asyncio.create_task(plugin.prepare([ref(1)]))
            await until(claims.started.is_set)
            begin = time.monotonic()
        assert time.monotonic() - begin < 2
        with pytest.raises(ServingError, match="NodePrepareResources"):
            await preparing
        assert claims.finished == []
        assert sockets(settings) == ["lock"]
    claims.hold.set()  # its thread may end


async def test_a_foreign_socket_at_our_path_survives_our_stop(serve: Serve, settings: Settings) -> None:
    """A socket that another process put at our path is not deleted when we go: it may be a successor's."""
    async with serve(settings):
        dra = settings.plugin_dir / "dra.sock"
        await until(dra.exists)
        dra.unlink()
        foreign = socket.socket(socket.AF_UNIX)
        foreign.bind(str(dra))
        # No await since the unlink, so that the server has no chance to repair it before it stops.
    assert dra.exists()
    foreign.close()


async def test_a_file_in_the_way_is_not_deleted(settings: Settings, claims: Claims, published: Reported) -> None:
    """A file that is no socket at the socket's path stops the start with its path, and stays."""
    settings.plugin_dir.mkdir()
    (settings.plugin_dir / "dra.sock").write_text("precious")
    async with driver_lock(settings.plugin_dir, 0) as lock:
        with pytest.raises(ServingError, match=r"dra\.sock is in the way and not a socket"):
            await KubeletServer(settings, claims, published, lock).run()
    assert (settings.plugin_dir / "dra.sock").read_text() == "precious"


async def test_a_plugin_directory_that_is_too_long_names_the_option(
    settings: Settings, claims: Claims, published: Reported
) -> None:
    """A path over 107 bytes is refused before anything is bound, with the numbers and what to change."""
    deep = settings.model_copy(update={"plugin_dir": settings.plugin_dir / ("x" * 100)})
    excess = len(os.fsencode(deep.plugin_dir / "dra.sock")) - 107
    async with driver_lock(deep.plugin_dir, 0) as lock:
        with pytest.raises(
            SocketPathTooLong, match=rf"at most 107: make --plugin-dir .* at least {excess} bytes shorter"
        ):
            KubeletServer(deep, claims, published, lock)


async def test_a_long_driver_name_registers_under_its_hash(serve: Serve, settings: Settings, short: Path) -> None:
    """Where the driver's name makes the registration path too long, a hashed name is used and the kubelet registers it."""
    driver = "a" * 63
    registry = short / ("r" * (40 - len(str(short))))
    long = settings.model_copy(update={"driver_name": driver, "registry_dir": registry})
    async with FakeKubelet(registry) as kubelet, serve(long):
        assert (await kubelet.plugin(driver)).driver == driver
        (shown,) = registry.iterdir()
        assert shown.name.startswith("dra-")
