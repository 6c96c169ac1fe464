"""Socket files and the lock that guards them.

A driver has two sockets, and one lock that is held before either is bound, so that two daemons never serve at once:

    <plugin dir>/lock                     flock; holds the pid of its holder
    <plugin dir>/lock.wanted              there while somebody waits for it: who serves the name for its claims alone gives way
    <plugin dir>/lock.next                flock of who is next in line, among those that wait
    <plugin dir>/next.sock                where that one is asked to take over: see `handover`
    <plugin dir>/dra.sock                 what the kubelet calls
    <registry dir>/<driver>-reg.sock      what the kubelet's plugin watcher finds

There are two places for the last two, since a successor is registered beside who still serves: the other one is `dra2.sock` and
`<driver>_2-reg.sock` (a driver's name has no underscore). Were sockets replaced, the kubelet would know no driver for a second.

Contract: k8s.io/kubernetes pkg/kubelet/pluginmanager/pluginwatcher. A socket that appears registers, one that goes
unregisters, names that start with a dot are ignored.
"""

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

from hami_kubeletplugin.api.errors import AlreadyServing, ServingError, SocketPathTooLong
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

SUN_PATH_MAX = 107
"""Bytes of a UNIX socket's path: sockaddr_un.sun_path is 108 with its NUL."""

_LOCK_POLL = 0.1


PLACES = (0, 1)
"""Those for sockets."""


def dra_socket(plugin_dir: Path, place: int = 0) -> Path:
    """The path of the socket that serves DRA, absolute, since the kubelet has another working directory.

    Raises:
        SocketPathTooLong: The plugin directory is too long.
    """
    path = plugin_dir.absolute() / ("dra2.sock" if place else "dra.sock")
    if excess := _excess(path):
        raise SocketPathTooLong(
            f"{path} has {SUN_PATH_MAX + excess} bytes, a UNIX socket path at most {SUN_PATH_MAX}: make --plugin-dir "
            f"(or the driver name in it) at least {excess} bytes shorter"
        )
    return path


def registration_socket(registry_dir: Path, driver: str, place: int = 0) -> Path:
    """The path of the registration socket, by the driver's name or, where that is too long, by its hash.

    Raises:
        SocketPathTooLong: The registry directory leaves no room for the hashed name either.
    """
    if place:
        driver = f"{driver}_2"
    named = registry_dir.absolute() / f"{driver}-reg.sock"
    if not _excess(named):
        return named
    digest = hashlib.sha256(driver.encode()).digest()[:16]
    hashed = named.with_name(f"dra-{base64.urlsafe_b64encode(digest).decode().rstrip('=')}-reg.sock")
    if excess := min(_excess(named), _excess(hashed)):
        raise SocketPathTooLong(
            f"{named} has {SUN_PATH_MAX + _excess(named)} bytes, a UNIX socket path at most {SUN_PATH_MAX}: make "
            f"--registry-dir at least {excess} bytes shorter"
        )
    return hashed


def _excess(path: Path) -> int:
    return max(0, len(os.fsencode(path)) - SUN_PATH_MAX)


class SocketFile:
    """A socket file of ours that is bound under a hidden name and then shown under its own by a rename.

    gRPC unlinks whatever lies at the path it bound when the server stops, also a successor's socket. Under the hidden name it
    finds nothing, and the shown file is ours to remove. The rename replaces a stale file of a killed process, and whoever
    finds the socket can connect at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hidden = path.with_name("." + path.name.removesuffix(".sock"))
        self._identity: tuple[int, int, int] | None = None

    @property
    def bind_address(self) -> str:
        """The gRPC address to bind before `show`; percent-encoded, as gRPC decodes it."""
        return f"unix:{quote(os.fsencode(self._hidden))}"

    def prepare(self) -> None:
        """Check that nothing but a stale socket is in the way.

        Raises:
            ServingError: There is something else at the path, or the directory is not usable.
        """
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            mode = stat.S_IFSOCK
        except OSError as error:
            raise ServingError(f"can't use {self.path}: {error.strerror}") from error
        if not stat.S_ISSOCK(mode):
            raise ServingError(f"{self.path} is in the way and not a socket: move it away")
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise ServingError(
                f"can't create {self.path}: no directory that this process may write to; check the hostPath mount, and that "
                "the daemon runs as root"
            )

    def show(self) -> None:
        """Give the bound socket its name.

        Raises:
            ServingError: It could not be renamed.
        """
        try:
            self._hidden.rename(self.path)
            self._identity = _identity(self.path)
        except OSError as error:
            raise ServingError(f"can't create {self.path}: {error.strerror}") from error

    def intact(self) -> bool:
        """Whether the file at the path is the one that we showed."""
        return self._identity is not None and _identity(self.path) == self._identity

    def remove(self) -> None:
        """Remove the file if it is still ours; a file that is gone already is fine."""
        if self.intact():
            self.path.unlink(missing_ok=True)
        self._identity = None


def _identity(path: Path) -> tuple[int, int, int] | None:
    # An inode number is used again at once on some file systems; the time of creation tells two sockets apart.
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


class DriverLock:
    """The lock of one driver on one node. Make one with `driver_lock`; a server asks for it as proof."""

    def __init__(self, plugin_dir: Path, name: str = "lock") -> None:
        self.path = plugin_dir.absolute() / name
        self._wanted = self.path.with_name(f"{name}.wanted")
        self._fd = -1
        self.poll = _LOCK_POLL
        """Seconds between tries to get it."""

    @property
    def holder(self) -> str:
        """Who holds it, in words, as its file says."""
        return _holder(self.path)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody else waits for it."""
        return self._wanted.exists()

    async def _acquire(self, within: float, waits: Callable[[], None] = lambda: None) -> None:
        deadline = asyncio.get_running_loop().time() + within
        waiting = False
        while not await self.take():
            if asyncio.get_running_loop().time() >= deadline:
                raise AlreadyServing(
                    f"another daemon ({self.holder}) serves this driver on this node: it still holds {self.path} after "
                    f"{within:g} s; stop it, or give one of the two another --driver-name"
                )
            if not waiting:
                with contextlib.suppress(OSError):
                    self._wanted.touch(0o600)
                log.info("waiting for the predecessor to stop", holder=self.holder, lock=str(self.path))
                waiting = True
                waits()
            await asyncio.sleep(self.poll)

    async def renew(self) -> None:
        """Take the lock again if somebody deleted its file, under which another daemon could start.

        Raises:
            AlreadyServing: Another daemon did.
        """
        if not await asyncio.to_thread(self._is_current):
            log.warning("the lock file was deleted, taking it again", lock=str(self.path))
            self.release()
            await self._acquire(0)

    async def take(self) -> bool:
        """Take it if nobody else holds it; whether we do.

        Raises:
            ServingError: The file can't be opened.
        """
        if self._fd < 0:
            self._fd = await asyncio.to_thread(self._open)
        try:
            # Never blocks; not in a thread, where a cancelled caller would leave a lock that nobody knows of.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._is_current():  # deleted between open and flock
            self.release()
            return False
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its holder's name too
            self._wanted.unlink(missing_ok=True)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{own_name()}\n".encode(), 0)
        return True

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ServingError(
                f"can't open the lock {self.path}: {error.strerror}; check the hostPath mount of --plugin-dir, and that the "
                "daemon runs as root"
            ) from error

    def _is_current(self) -> bool:
        try:
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Let others take it; nothing where we don't hold it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def own_name() -> str:
    """How this process is called in a lock that it holds."""
    return f"{os.getpid()} {socket.gethostname()}"


def serving(plugin_dir: Path) -> str | None:
    """The name of the process that serves a driver on this node now; None if there is none, or it can't be told."""
    try:
        with (plugin_dir / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip()
    except OSError:
        pass
    return None


def _holder(path: Path) -> str:
    try:
        pid, host = path.read_text().split()
    except (OSError, ValueError):
        return "of unknown pid"
    return f"pid {pid} on {host}"


@contextlib.asynccontextmanager
async def driver_lock(
    plugin_dir: Path, within: float, *, lock: DriverLock | None = None, waits: Callable[[], None] = lambda: None
) -> AsyncIterator[DriverLock]:
    """Hold the driver's lock for the time of the block. The plugin directory is made if it is missing.

    Args:
        plugin_dir: Where the lock file lies. The file stays: deleting it would let two daemons hold two locks.
        within: Seconds to wait for a predecessor that is still stopping.
        lock: That of this directory, if it is known already.
        waits: Called if there is one.

    Raises:
        AlreadyServing: Another process holds it; names its pid.
        ServingError: The file can't be opened.
    """
    lock = lock or DriverLock(plugin_dir)
    try:
        await lock._acquire(within, waits)  # noqa: SLF001 - only here and in `handover`
        yield lock
    finally:
        lock.release()
