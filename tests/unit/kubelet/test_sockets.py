"""Socket paths, the driver's lock, and what a killed daemon leaves behind."""

import asyncio
import errno
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import AlreadyServing, ServingError, SocketPathTooLong
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from hami_kubeletplugin.kubelet.sockets import SocketFile, dra_socket, driver_lock, registration_socket
from tests.unit.kubelet.fakes import Serve, ref
from tests.waiting import until

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
CHARACTERS = st.characters(codec="utf-8", exclude_characters="/\0")
DIRECTORIES = st.text(CHARACTERS, min_size=1, max_size=110).map(lambda name: Path("/") / f"d{name}")


@given(DIRECTORIES, NAMES)
def test_registration_paths_fit_and_are_the_drivers_own(directory: Path, driver: str) -> None:
    """Any registration path has at most 107 bytes, lies in the registry and isn't hidden; else the error has numbers."""
    named = directory / f"{driver}-reg.sock"
    try:
        path = registration_socket(directory, driver)
    except SocketPathTooLong as error:
        excess = re.search(r"at least (\d+) bytes shorter", str(error))
        assert excess
        assert len(os.fsencode(named)) > 107
        shorter = Path("/" + "d" * (len(os.fsencode(directory)) - int(excess[1]) - 1))
        assert registration_socket(shorter, driver).parent == shorter
        return
    assert len(os.fsencode(path)) <= 107
    assert path.parent == directory
    assert path.name.endswith("-reg.sock")
    assert not path.name.startswith(".")
    assert (path == named) == (len(os.fsencode(named)) <= 107)
    assert path != registration_socket(directory, driver + "x" if len(driver) < 63 else driver[:-1] + "-x")


@given(DIRECTORIES)
def test_dra_paths_fit_or_say_by_how_much_not(directory: Path) -> None:
    """A plugin directory of up to 98 bytes is fine, a longer one is refused with the exact excess."""
    size = len(os.fsencode(directory))
    if size + len("/dra.sock") <= 107:
        assert dra_socket(directory) == directory / "dra.sock"
    else:
        with pytest.raises(SocketPathTooLong, match=rf"has {size + 9} bytes.*at least {size + 9 - 107} bytes"):
            dra_socket(directory)


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    """A relative directory is made absolute: the kubelet has another working directory."""
    monkeypatch.chdir(short)
    assert dra_socket(Path("plugin")) == short / "plugin" / "dra.sock"
    assert registration_socket(Path("registry"), DRIVER) == short / "registry" / "gpu.hami.io-reg.sock"


async def test_odd_characters_in_a_path(serve: Serve, settings: Settings, short: Path) -> None:
    """Spaces, percent signs and non-ASCII in the directories do not keep the kubelet from finding us."""
    odd = settings.model_copy(update={"plugin_dir": short / "a b%41?#ü", "registry_dir": short / "r %2f"})
    async with FakeKubelet(odd.registry_dir) as kubelet, serve(odd):
        plugin = await kubelet.plugin(DRIVER)
        assert list(await plugin.prepare([ref(1)])) == ["uid-1"]
        assert (odd.plugin_dir / "dra.sock").is_socket()


async def test_two_daemons_never_serve_at_once(short: Path) -> None:
    """The second daemon is refused with the pid of the first, and gets the lock once the first is gone."""
    async with driver_lock(short, 0):
        with pytest.raises(AlreadyServing, match=rf"pid {os.getpid()} on .* still holds .*/lock"):
            async with driver_lock(short, 0):
                pass
    async with driver_lock(short, 0):
        pass


async def test_waits_for_a_predecessor_that_is_still_stopping(short: Path) -> None:
    """A new daemon waits up to its time-out for the old one, and goes on as soon as that is gone."""
    taken = asyncio.Event()

    async def successor() -> None:
        async with driver_lock(short, 60):
            taken.set()

    async with driver_lock(short, 0):
        with capture_logs() as logs:
            waiting = asyncio.create_task(successor())
            await until(lambda: [entry for entry in logs if "waiting for the predecessor" in entry["event"]])
        assert not taken.is_set()
    await asyncio.wait_for(waiting, 20)


async def test_a_full_disk_does_not_keep_the_lock_from_us(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid in the lock file is a courtesy; without room for it the daemon serves all the same, as unprepare needs none."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    async with driver_lock(short, 0):
        with pytest.raises(AlreadyServing):
            async with driver_lock(short, 0):
                pass


async def test_cancelled_while_waiting_leaves_the_lock_free(short: Path) -> None:
    """A daemon that is stopped while it waits for the lock holds nothing afterwards."""

    async def successor() -> None:
        async with driver_lock(short, 60):
            pass

    async with driver_lock(short, 0):
        with capture_logs() as logs:
            waiting = asyncio.create_task(successor())
            await until(lambda: [entry for entry in logs if "waiting for the predecessor" in entry["event"]])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with driver_lock(short, 0):
        pass


async def test_a_lock_that_was_deleted_and_taken_by_another_is_lost(short: Path) -> None:
    """If somebody deletes the lock file and a second daemon takes it, the first one notices and must stop."""
    async with driver_lock(short, 0) as first:
        (short / "lock").unlink()
        async with driver_lock(short, 0):
            with pytest.raises(AlreadyServing):
                await first.renew()


async def test_a_plugin_directory_that_cannot_be_made(short: Path) -> None:
    """A file where a directory has to be is named, with the option to check."""
    (short / "file").write_text("")
    with pytest.raises(
        ServingError, match=r"/file/plugin/lock: Not a directory; check the hostPath mount of --plugin-dir"
    ):
        async with driver_lock(short / "file" / "plugin", 0):
            pass


def test_a_socket_of_the_same_name_is_not_ours(short: Path) -> None:
    """A socket that replaced ours is told apart even if the file system gives it the same inode number, and is not removed."""
    path = short / "x.sock"

    def bind(at: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(at))

    ours = SocketFile(path)
    ours.prepare()
    bind(short / ".x")
    ours.show()
    assert ours.intact()
    path.unlink()
    bind(path)
    assert not ours.intact()
    ours.remove()
    assert path.exists()


DAEMON = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.unit.kubelet.fakes import PUBLISHED, Claims
from hami_kubeletplugin.observe.observable import Observable
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import driver_lock

async def main():
    at = Path(sys.argv[1])
    settings = Settings(node_name="node-1", registry_dir=at / "registry", plugin_dir=at / "plugin")
    async with driver_lock(settings.plugin_dir, 0) as lock:
        await KubeletServer(settings, Claims(), Observable(PUBLISHED), lock).run()

asyncio.run(main())
"""


async def test_a_killed_daemon_is_replaced_at_once(serve: Serve, settings: Settings, short: Path) -> None:
    """After kill -9 the sockets are stale and the lock is free: the next daemon replaces them and the kubelet prepares again."""
    async with FakeKubelet(settings.registry_dir) as kubelet:
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DAEMON, str(short), str(Path(__file__).parent)
        )
        try:
            killed = await kubelet.plugin(DRIVER, within=30)
            with pytest.raises(AlreadyServing, match=f"pid {daemon.pid} on"):
                async with driver_lock(settings.plugin_dir, 0):
                    pass
        finally:
            daemon.send_signal(signal.SIGKILL)
            await daemon.wait()
        assert (settings.plugin_dir / "dra.sock").is_socket()
        assert (settings.registry_dir / "gpu.hami.io-reg.sock").is_socket()
        async with serve(settings) as server:
            await until(server.registration.registered.is_set)
            plugin = await kubelet.plugin(DRIVER)
            assert plugin is not killed
            assert list(await plugin.prepare([ref(1)])) == ["uid-1"]
        assert sorted(path.name for path in settings.plugin_dir.iterdir()) == ["lock"]
        assert list(settings.registry_dir.iterdir()) == []
