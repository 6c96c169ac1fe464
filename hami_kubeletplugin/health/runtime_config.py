"""Configuration of container runtimes, read where the runtime reads it: in its own root directory. Bounded; blocks.

Contracts: containerd cmd/containerd/server/config (imports); cri-o pkg/config.
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

CONTAINERD: Final = "/etc/containerd/config.toml"
CRIO: Final = "/etc/crio/crio.conf"
CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""containerd's section, from version 3 of its configuration on and before."""
DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
"""What both read unless told otherwise."""
_IMPORTED: Final = "/etc/containerd/conf.d/*.toml"
"""Imported by default, in some versions."""
_FILES: Final = 64
_BYTES: Final = 256 * 1024
_LINKS: Final = 40
"""As many as Linux follows."""


def crio_files(root: Path) -> list[Mapping[str, Any]]:
    """CRI-O's configuration: its file, and those of its folder."""
    paths = [CRIO, *matching(root, f"{CRIO}.d/*")]
    return [file for path in paths if (file := tables(root, path)) is not None]


def table(file: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A table below others; empty if there is none."""
    for name in names:
        inner = file.get(name)
        file = inner if isinstance(inner, dict) else {}
    return file


def containerd_files(root: Path, config: str) -> Iterator[Mapping[str, Any]]:
    """A configuration of containerd, and those that it imports."""
    first = tables(root, config)
    if first is None:
        return
    yield first
    imports = first.get("imports", [])
    for pattern in [*(imports if isinstance(imports, list) else []), _IMPORTED]:
        for path in matching(root, os.path.join(os.path.dirname(config), str(pattern))):
            if (imported := tables(root, path)) is not None:
                yield imported


def matching(root: Path, pattern: str) -> list[str]:
    """Paths in another root directory, as they are called there; so many of them at most."""
    folder, name = os.path.split(pattern)
    found = glob.iglob(glob.escape(str(inside(root, folder))) + f"/{name}")
    return sorted(f"{folder}/{os.path.basename(path)}" for path in islice(found, _FILES))


def tables(root: Path, path: str) -> Mapping[str, Any] | None:
    """A file's tables; None if it can't be read or understood."""
    try:
        descriptor = os.open(inside(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return tomllib.loads(file.read(_BYTES).decode())
    except (OSError, ValueError, RecursionError):  # ValueError: neither UTF-8 nor TOML
        return None


def inside(root: Path, path: str) -> Path:
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


def same(one: Path, other: Path) -> bool:
    """Whether both are the same file or directory; not where either can't be seen."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def process(proc: Path, pid: int) -> tuple[str, Sequence[str]]:
    """A process's name and command line; empty if it can't be seen."""
    try:
        folder = proc / str(pid)
        name = (folder / "comm").read_text(errors="replace").strip()
        with (folder / "cmdline").open("rb") as file:
            words = file.read(_BYTES).decode(errors="replace").split("\0")
    except OSError:
        return "", ()
    return name, words


def beside(proc: Path, parent: int, name: str) -> Iterator[int]:
    """PIDs of the processes with a name that see the mounts that a process sees."""
    mounts = proc / str(parent) / "ns/mnt"
    return (pid for pid in named(proc, name) if same(proc / str(pid) / "ns/mnt", mounts))


def named(proc: Path, name: str) -> Iterator[int]:
    """PIDs of the processes with a name."""
    with suppress(OSError):
        for entry in os.listdir(proc):
            with suppress(OSError):
                if entry.isdigit() and (proc / entry / "comm").read_text(errors="replace").strip() == name:
                    yield int(entry)


def absolute(proc: Path, pid: int, path: str) -> str:
    """A path as a process means it; one that starts at its working directory is as it is if that can't be seen."""
    with suppress(OSError):
        return os.path.join(os.readlink(proc / str(pid) / "cwd"), path)
    return path


def option(words: Sequence[str], *names: str) -> str | None:
    """What a command line says for an option, as two words or with `=`."""
    for word, following in pairwise([*words, ""]):
        if word in names:
            return following
        option, equals, value = word.partition("=")
        if equals and option in names:
            return value
    return None
