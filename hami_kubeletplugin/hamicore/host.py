"""HAMi-core's files on the host: from the image to where containers mount them.

    <hami_dir>/lib/libvgpu.so.<digest>         named by its content, 0755; never changed once containers may have it mapped
    <hami_dir>/lib/hami-region-hook.<digest>   what the container runtime runs to renew a region; named by its content, 0755
    <hami_dir>/ld.so.preload                   names the library by its path in the container, 0644
    <hami_dir>/lock                            1777, the container's /tmp/vgpulock, for libraries that need it: see `lock_dir`
    <hami_dir>/cache                           what the claims' containers write into: see `claim_dir`

All of it is root's alone (0700): containers have what they need mounted, and nobody else on the node can reach what containers
write, a program with a setuid bit among it, or another's limits.

Libraries and hooks of earlier versions stay: running containers have them mounted, a started pod may still be about to use one,
and nobody can tell cheaply which. They cost about 2 MB for each update of the daemon; a drained node may delete them.
Everything here blocks: call it in a thread.
"""

import hashlib
import re
import stat
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files, selinux
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.settings import ClaimFiles
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.contract import CONTAINER_LIBRARY
from hami_kubeletplugin.hamicore.directories import directory
from hami_kubeletplugin.hamicore.region import Layout
from hami_kubeletplugin.hamicore.shipped import Library, Shipped
from hami_kubeletplugin.hanging import MayHang
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

_PRELOAD: Final = f"{CONTAINER_LIBRARY}\n".encode()

_DIGITS: Final = 16
"""So many digits of a digest tell the files of all versions apart."""

_PATIENCE: Final = 10.0
"""Seconds until a file, or the whole of an installation, is said to hang: some megabytes have to come onto the disk."""

_LIBRARY: Final = re.compile(rf"libvgpu\.so\.[0-9a-f]{{{_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Renewal:
    """What it takes to have a pristine region at each start of a container.

    Attributes:
        layout: The library's layout of a region.
        hook: Host path of the program that renews it.
    """

    layout: Layout
    hook: Path


@dataclass(frozen=True, slots=True)
class Installed:
    """Host paths that a container mounts, and what is known of the library.

    Attributes:
        library, preload: Host paths.
        lock_dir: Host path; None if the library needs none that is common to the node's containers.
        version: The library's version, with our patches if it has any; None if unknown.
        renewal: How regions are made; None if they can't be, so that limits are in variables only.
        digest: SHA-256 of the library, hexadecimal.
        in_memory: Whether what containers write into is to be in memory: see `claim_dir`.
        maps_gpus: See `Release.maps_gpus`.
        checked: What the hook compares those files with when a container starts, one word each.
    """

    library: Path
    preload: Path
    lock_dir: Path | None
    version: str | None = None
    renewal: Renewal | None = None
    digest: str = ""
    in_memory: bool = False
    maps_gpus: bool = False
    checked: tuple[str, ...] = ()


class HostFiles:
    """Keeps HAMi-core's files on the host as the image says. Thread-safe.

    Args:
        shipped: What the image has.
        hami_dir: Where they go; the same path for the container runtime.
        claim_files: Where what containers write into is to be.
        counts: Told when files were put back.
    """

    def __init__(
        self, shipped: Shipped, hami_dir: Path, claim_files: ClaimFiles = "disk", counts: Counts = UNCOUNTED
    ) -> None:
        self._shipped, self._hami_dir, self._claim_files, self._counts = shipped, hami_dir, claim_files, counts
        self._files = MayHang("HAMi-core's file", StorageError, patience=_PATIENCE)
        self._state: tuple[Installed, dict[str, files.Fingerprint | None]] | None = None
        self._said = Once[str]()

    @property
    def installed(self) -> Installed | None:
        """What was last found to be there, or made; None if that failed. Never blocks."""
        state = self._state
        return state[0] if state else None

    def check(self) -> Installed:
        """What each prepare asks for: the files are there as they were installed, or they are made so.

        Costs some `stat` calls when nothing happened to them. A file that is missing, cut short or touched is put back from
        the image; library and hook as new files, since containers may have the damaged one mapped.

        Raises:
            StorageError: As `install`, or a file hangs. The next call tries again.
        """
        state = self._state
        if state is None:
            self.check_mount()
        elif self._prints(state[1]) == state[1]:
            return state[0]
        if state:
            log.warning("HAMi-core's files were changed: installing them again", directory=str(self._hami_dir))
        installed = self.install()
        if state:
            self._counts.repaired("library")
        return installed

    def check_shipped(self) -> None:
        """See, without writing, that what the image has could be installed.

        Raises:
            StorageError: It couldn't.
        """
        self.check_mount()
        self._shipped.library()

    def check_mount(self) -> None:
        """See that what lies on the host can be run from there.

        Raises:
            StorageError: It can't, and containers would not start, or without the library; or it hangs.
        """
        self._prints(())

    def _prints(self, paths: Iterable[str]) -> dict[str, files.Fingerprint | None]:
        """The files as they are, and first that their folder is one that programs can be run from; all at one go."""
        folder = str(self._hami_dir)

        def look(path: str) -> files.Fingerprint | None:
            if path != folder:
                return files.fingerprint(Path(path))
            self._refuse_noexec()
            return None

        prints = self._files.each(look, [folder, *paths])
        del prints[folder]
        return prints

    def _refuse_noexec(self) -> None:
        if mounts.forbids_programs(self._hami_dir):
            raise StorageError(
                f"HAMi-core can't be used from {self._hami_dir}: its file system is mounted noexec. "
                "Remount it on the node (mount -o remount,exec), or choose another folder with --hami-dir"
            )

    def install(self) -> Installed:
        """Bring the files to the host; what is right already is left alone.

        Raises:
            StorageError: As `Shipped.library`, or the host's directory can't be written. No container may start then, since it
                would run without limits.
        """
        (installed,) = self._files.each(lambda _: self._install(), [str(self._hami_dir)]).values()
        return installed

    def _install(self) -> Installed:
        """One at a time: calls at the same time wait for each other by the directory's name."""
        self._state = None
        library = self._shipped.library()
        hook = self._hook(library)
        try:
            installed = self._write(library, hook)
        except OSError as error:
            raise StorageError(
                f"HAMi-core can't be installed below {self._hami_dir}: {error}. "
                "Make that directory writable for the daemon and free space on it"
            ) from error
        paths = (installed.library, installed.preload, *([installed.renewal.hook] if installed.renewal else []))
        prints = {str(path): files.fingerprint(path) for path in paths}
        if None in prints.values():
            raise StorageError(f"HAMi-core's files below {self._hami_dir} vanish at once; find out who removes them")
        self._state = installed, prints
        return installed

    def _write(self, library: Library, hook: bytes | None) -> Installed:
        """Have all files there, the library's directory first."""
        folder = self._hami_dir / "lib"
        renewal = None
        if hook is not None and library.release.layout is not None:
            renewal = Renewal(library.release.layout, folder / f"hami-region-hook.{_digest(hook)}")
        path, preload = folder / f"libvgpu.so.{library.release.digest[:_DIGITS]}", self._hami_dir / "ld.so.preload"
        installed = Installed(
            path,
            preload,
            self._hami_dir / "lock" if library.release.locks_node else None,
            library.release.name,
            renewal,
            library.release.digest,
            self._in_memory(),
            library.release.maps_gpus,
            (checked(path, library.content), checked(preload, _PRELOAD)),
        )
        directory(folder, 0o755)
        for path in (self._hami_dir, folder):
            files.remove_temporaries(path)
        place(installed.library, library.content, 0o755)
        place(installed.preload, _PRELOAD, 0o644)
        for path in (installed.library, installed.preload):
            selinux.relabel(path)
        if renewal is not None and hook is not None:
            place(renewal.hook, hook, 0o755)
        return installed

    def _in_memory(self) -> bool:
        """Have the claims' folder, and see whether small file systems can be mounted in it; says once why not."""
        cache = self._hami_dir / "cache"
        directory(self._hami_dir, 0o700)
        directory(cache, 0o700)
        selinux.relabel(cache)
        reason = mounts.lacking(cache) if self._claim_files != "disk" else None
        if reason and self._claim_files == "memory":
            raise StorageError(f"--claim-files=memory: {reason}")
        self._say(
            "on disk",
            reason,
            "what containers write into is on the node's disk, which they can fill, and not in memory",
        )
        return self._claim_files != "disk" and reason is None

    def _hook(self, library: Library) -> bytes | None:
        """The program that renews regions, if the library's can be made; says once why not."""
        hook = self._shipped.hook()
        if library.release.version is None:
            reason: str | None = f"{library.path} has no entry in versions.json (SHA-256 {library.release.digest})"
        elif library.release.layout is None:
            reason = f"nobody knows how this build of HAMi-core {library.release.version} lays regions out; a newer driver may"
        else:
            reason = hook if isinstance(hook, str) else None
        self._say(
            "no regions",
            reason,
            "limits are in variables only: a process without its environment is unlimited, since no regions can be made",
        )
        return hook if reason is None and isinstance(hook, bytes) else None

    def _say(self, what: str, reason: str | None, words: str) -> None:
        """Warn once for each reason, until there is none any more."""
        if reason is None:
            self._said.ended(what)
        elif self._said.is_new(what, reason):
            log.warning(words, reason=reason)


def is_library(name: str) -> bool:
    """Whether a file in `<hami_dir>/lib` is called like a library, of whatever version."""
    return _LIBRARY.fullmatch(name) is not None


def place(path: Path, content: bytes, mode: int) -> None:
    """Put a whole file under `path` at once. An equal one stays; another is replaced by a new inode, never written to."""
    if _holds(path, content, mode):
        return
    files.make_way(path)
    files.write(path, content, durable=True, mode=mode)


def _holds(path: Path, content: bytes, mode: int) -> bool:
    try:
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == mode and path.read_bytes() == content
    except FileNotFoundError:
        return False


def checked(path: Path, content: bytes) -> str:
    """What the hook compares a file with: see native/installed_file.h."""
    return f"{zlib.adler32(content):08x}:{len(content)}:{path}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
