"""Whether the container runtime reads CDI specs where we write them.

It is the runtime that runs the daemon's own container: the parent of a container's first process is containerd's shim, which says
at which address its containerd listens, or CRI-O's conmon. The configuration is read where the runtime reads it, in its own root
directory. That needs hostPID; whatever can't be seen or understood is no reason to say anything. Blocks.

Any container can call a process like the runtime. So only one that sees the same mounts as our shim counts, as what started it
does: a container has its own, and a file of a container could say anything, or hang.

Contracts: containerd cmd/containerd/server/config (imports), internal/cri/config; cri-o pkg/config; containerd-shim's -address.
"""

import glob
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api.errors import StorageError

PROC: Final = Path("/proc")
_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
"""What both read unless told otherwise."""
_IMPORTED: Final = "/etc/containerd/conf.d/*.toml"
"""Imported by default, in some versions."""
_ADDRESS: Final = "/run/containerd/containerd.sock"
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""containerd's section, from version 3 of its configuration on and before."""
_FILES: Final = 64
_BYTES: Final = 256 * 1024
_LINKS: Final = 40
"""As many as Linux follows."""


def check_cdi_directory(directory: Path, *, proc: Path = PROC, parent: int | None = None) -> None:
    """See that the runtime reads a directory, as far as that can be known.

    Args:
        directory: Where we write specs.
        proc: Where procfs is.
        parent: The process that started us.

    Raises:
        StorageError: It doesn't; containers with our devices would not start, or without GPU and limits.
    """
    for name, pid, sections in _runtimes(proc, os.getppid() if parent is None else parent):
        # One file may replace another's section or add to it, which differs by version: one that allows it is enough.
        read = {str(path) for section in sections for path in section.get("cdi_spec_dirs", _DIRECTORIES)}
        root = proc / str(pid) / "root"
        if read and not any(_same(_inside(root, path), directory) for path in read):
            raise StorageError(
                f"{name} reads CDI specs in {', '.join(sorted(read))} only, and not in {directory} (--cdi-dir), so containers "
                "with GPUs would not start: add it to cdi_spec_dirs in its configuration and restart it, or set --cdi-dir, and "
                "the DaemonSet's mount, to one of those"
            )


def _runtimes(proc: Path, parent: int) -> Iterator[tuple[str, int, list[Mapping[str, Any]]]]:
    """The runtime that runs us: its name, PID, and the sections about CDI in its configuration. At most one."""
    name, words = _process(proc, parent)
    if name.startswith("containerd-shim"):
        address = _option(words, "-address", "--address")
        for pid in _beside(proc, parent, "containerd"):
            options = _process(proc, pid)[1]
            config = _absolute(proc, pid, _option(options, "-c", "--config") or "/etc/containerd/config.toml")
            files = list(_containerd(proc / str(pid) / "root", config))
            told = (_table(file, "grpc").get("address") for file in files)
            if address == (_option(options, "-a", "--address") or next(filter(None, told), _ADDRESS)):
                sections = [_table(file, "plugins", section) for file in files for section in _CRI]
                yield "containerd", pid, [section for section in sections if section] or [{} for _ in files[:1]]
                return
    elif name in {"conmon", "conmonrs"}:
        for pid in islice(_beside(proc, parent, "crio"), 1):
            root = proc / str(pid) / "root"
            paths = ["/etc/crio/crio.conf", *_glob(root, "/etc/crio/crio.conf.d/*")]
            files = [file for path in paths if (file := _toml(root, path)) is not None]
            sections = [_table(file, "crio", "runtime") for file in files]
            yield (
                "CRI-O",
                pid,
                [section for section in sections if "cdi_spec_dirs" in section] or [{} for _ in files[:1]],
            )


def _table(file: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A table below others; empty if there is none."""
    for name in names:
        inner = file.get(name)
        file = inner if isinstance(inner, dict) else {}
    return file


def _containerd(root: Path, config: str) -> Iterator[Mapping[str, Any]]:
    """A configuration of containerd, and those that it imports."""
    first = _toml(root, config)
    if first is None:
        return
    yield first
    imports = first.get("imports", [])
    for pattern in [*(imports if isinstance(imports, list) else []), _IMPORTED]:
        for path in _glob(root, os.path.join(os.path.dirname(config), str(pattern))):
            if (imported := _toml(root, path)) is not None:
                yield imported


def _glob(root: Path, pattern: str) -> list[str]:
    """Paths in another root directory, as they are called there; so many of them at most."""
    folder, name = os.path.split(pattern)
    found = glob.iglob(glob.escape(str(_inside(root, folder))) + f"/{name}")
    return sorted(f"{folder}/{os.path.basename(path)}" for path in islice(found, _FILES))


def _toml(root: Path, path: str) -> Mapping[str, Any] | None:
    """A file's tables; None if it can't be read or understood."""
    try:
        descriptor = os.open(_inside(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return tomllib.loads(file.read(_BYTES).decode())
    except (OSError, ValueError, RecursionError):  # ValueError: neither UTF-8 nor TOML
        return None


def _inside(root: Path, path: str) -> Path:
    """Where a path of another root directory is, seen from ours: its links start at its own root, as /var/run's does."""
    parts = [part for part in reversed(path.split("/")) if part]
    found: list[str] = []
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            del found[-1:]
        elif part != ".":
            here = root.joinpath(*found, part)
            target = None
            with suppress(OSError):
                target = os.readlink(here)
            if target is None or (links := links + 1) > _LINKS:
                found.append(part)
                continue
            if target.startswith("/"):
                found.clear()
            parts.extend(word for word in reversed(target.split("/")) if word)
    return root.joinpath(*found)


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _process(proc: Path, pid: int) -> tuple[str, Sequence[str]]:
    """A process's name and command line; empty if it can't be seen."""
    try:
        folder = proc / str(pid)
        name = (folder / "comm").read_text(errors="replace").strip()
        with (folder / "cmdline").open("rb") as file:
            words = file.read(_BYTES).decode(errors="replace").split("\0")
    except OSError:
        return "", ()
    return name, words


def _beside(proc: Path, parent: int, name: str) -> Iterator[int]:
    """PIDs of the processes with a name that see the mounts that a process sees."""
    mounts = proc / str(parent) / "ns/mnt"
    return (pid for pid in _named(proc, name) if _same(proc / str(pid) / "ns/mnt", mounts))


def _named(proc: Path, name: str) -> Iterator[int]:
    """PIDs of the processes with a name."""
    with suppress(OSError):
        for entry in os.listdir(proc):
            with suppress(OSError):
                if entry.isdigit() and (proc / entry / "comm").read_text(errors="replace").strip() == name:
                    yield int(entry)


def _absolute(proc: Path, pid: int, path: str) -> str:
    """A path as a process means it; one that starts at its working directory is as it is if that can't be seen."""
    with suppress(OSError):
        return os.path.join(os.readlink(proc / str(pid) / "cwd"), path)
    return path


def _option(words: Sequence[str], *names: str) -> str | None:
    """What a command line says for an option, as two words or with `=`."""
    for word, following in pairwise([*words, ""]):
        if word in names:
            return following
        option, equals, value = word.partition("=")
        if equals and option in names:
            return value
    return None
