"""What the container runtime reads of CDI, against where the daemon writes it.

The runtime is looked for among the processes that see the mounts of process 1, ours, or those of the one that started us (in a
container the runtime's shim): any container could call a process of its own like one. Its files are read where it reads them.
Where none is seen, as without hostPID, the usual places of its configuration are looked at.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.doctor.programs import ran, version_in
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.health.runtime_config import (
    CONTAINERD,
    CRI,
    CRIO,
    DIRECTORIES,
    absolute,
    containerd_files,
    crio_files,
    inside,
    named,
    option,
    process,
    same,
    table,
)

PLACES: Final = (
    CONTAINERD,
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/k0s/containerd.toml",
    "/etc/cri/conf.d/00-base.part",  # Talos
)
"""Where distributions have containerd's configuration."""
_MOST: Final = 4
_WHY: Final = "Containers with GPUs don't start, or start without GPU and limits (containerd before 2.2)."


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime.

    Attributes:
        name: `containerd` or `CRI-O`.
        config: Its configuration on the host.
        files: What is in it and in what it imports, as far as it could be read.
        there: Whether the file is there.
        version: Its own; None: not known.
        root: Where its root directory is seen.
        seen: Whether it runs; else its file is all that was found.
    """

    name: str
    config: str
    files: Sequence[Mapping[str, Any]]
    there: bool
    version: tuple[int, int] | None
    root: Path = Path("/")
    seen: bool = True

    @property
    def sections(self) -> list[Mapping[str, Any]]:
        """Those about CDI."""
        if self.name == "CRI-O":
            return [table(file, "crio", "runtime") for file in self.files]
        return [section for file in self.files for name in CRI if (section := table(file, "plugins", name))]


def cdi(place: Place) -> Iterator[Finding]:
    """The folder of CDI specs, and the runtime."""
    yield from folder_judged(place.settings.cdi_dir)
    found = list(runtimes(place))
    directory = place.settings.cdi_dir
    for runtime in found:
        yield from judged(runtime, directory, partial(_is_same, runtime.root, directory))
    if not found:
        yield Finding(
            check="cdi",
            level=Level.unknown,
            what="no containerd and no CRI-O can be seen here, and none of their configurations",
            why="Whether it reads CDI specs where the daemon writes them is not known. The daemon sees it with hostPID.",
            mend="containerd config dump | grep -E 'cdi_spec_dirs|enable_cdi'",
        )


def folder_judged(folder: Path) -> Iterator[Finding]:
    """Whether specs can be written."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        yield Finding(
            check="cdi",
            level=Level.error,
            what=f"{folder} (--cdi-dir) can't be used: {error.strerror}",
            why="No claim can be prepared.",
            mend=f"mkdir -p {folder}",
        )
        return
    if found.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            check="cdi",
            level=Level.error,
            what=f"{folder} (--cdi-dir) can't be written",
            why="No claim can be prepared.",
            mend=f"mount -o remount,rw {folder}",
        )


def judged(runtime: Runtime, directory: Path, is_ours: Callable[[str], bool]) -> Iterator[Finding]:
    """Whether a runtime reads the folder, and has CDI on. Pure.

    Args:
        runtime: It.
        directory: Where the daemon writes.
        is_ours: Whether a path of the host is that folder.
    """
    what, restart = f"{runtime.name} ({runtime.config})", f"systemctl restart {runtime.name.lower().replace('-', '')}"
    if runtime.there and not runtime.files:
        yield Finding(
            check="cdi",
            level=Level.unknown,
            what=f"{runtime.config} can't be read, or is not TOML",
            why=f"Whether {runtime.name} reads CDI specs is not known.",
            mend=f"grep -nE 'cdi_spec_dirs|enable_cdi' {runtime.config}",
        )
        return
    # One file may replace another's section or add to it, which differs by version: one that allows it is enough.
    sections = runtime.sections
    said = [each["cdi_spec_dirs"] for each in sections if isinstance(each.get("cdi_spec_dirs"), list)]
    folders = sorted({str(path) for each in said for path in each} or set(DIRECTORIES))
    if not any(map(is_ours, folders)):
        yield Finding(
            check="cdi",
            level=Level.error,
            what=f"{what} reads CDI specs in {', '.join(folders)} only, and not in {directory} (--cdi-dir)",
            why=_WHY,
            mend=f"# add {directory} to cdi_spec_dirs in {runtime.config}, or set HAMI_CDI_DIR to one of those\n{restart}",
        )
        return
    enabled = _enabled(runtime, sections)
    if enabled is False:
        yield Finding(
            check="cdi",
            level=Level.error,
            what=f"{what} has CDI switched off",
            why=_WHY,
            mend=f'# in {runtime.config}, below [plugins."{CRI[1]}"]: enable_cdi = true\n{restart}',
        )
    elif enabled is None:
        yield Finding(
            check="cdi",
            level=Level.unknown,
            what=f"{what} says nothing of enable_cdi, and which version it has is not known",
            why="Before containerd 2.0 CDI is off unless it says so.",
            mend=f"containerd --version; grep -n enable_cdi {runtime.config}",
        )
    else:
        version = f" {runtime.version[0]}.{runtime.version[1]}" if runtime.version else ""
        unseen = "" if runtime.seen else "; it is not seen running"
        yield Finding(
            check="cdi",
            level=Level.ok if runtime.seen else Level.hint,
            what=f"{runtime.name}{version} ({runtime.config}) has CDI on and reads {directory}{unseen}",
        )


def _enabled(runtime: Runtime, sections: Sequence[Mapping[str, Any]]) -> bool | None:
    if runtime.name == "CRI-O":  # it has no switch, since 1.23
        return True
    said = [each["enable_cdi"] for each in sections if "enable_cdi" in each]
    if said:
        return said[-1] is True
    if runtime.version is not None:
        return runtime.version >= (2, 0)
    # What has this section, or this version, is 2.0 or newer.
    newer = any(table(file, "plugins", CRI[0]) or file.get("version") == 3 for file in runtime.files)
    return True if newer else None


def _is_same(root: Path, directory: Path, path: str) -> bool:
    """Whether a path of the host is a folder of ours, which is mounted under its own path where the host's is not seen."""
    return same(inside(root, path), directory) or os.path.normpath(path) == str(directory)


def runtimes(place: Place) -> Iterator[Runtime]:
    """Those that run; else those whose configuration is there."""
    found = False
    for pid in islice(_running(place.proc, "containerd"), _MOST):
        found = True
        words = process(place.proc, pid)[1]
        config = absolute(place.proc, pid, option(words, "-c", "--config") or CONTAINERD)
        yield _containerd(_root(place, pid), config, version_of(place.proc / str(pid) / "exe"))
    for pid in islice(_running(place.proc, "crio"), 1):
        found = True
        yield _crio(_root(place, pid), version_of(place.proc / str(pid) / "exe"))
    if found:
        return
    for path in PLACES:
        if inside(place.host, path).is_file():
            yield _containerd(place.host, path, None, seen=False)
    if inside(place.host, CRIO).is_file():
        yield _crio(place.host, None, seen=False)


def _root(place: Place, pid: int) -> Path:
    its = place.proc / str(pid) / "root"
    return its if its.is_dir() else place.host


def _containerd(root: Path, config: str, version: tuple[int, int] | None, *, seen: bool = True) -> Runtime:
    there = inside(root, config).is_file()
    return Runtime("containerd", config, list(containerd_files(root, config)), there, version, root, seen)


def _crio(root: Path, version: tuple[int, int] | None, *, seen: bool = True) -> Runtime:
    return Runtime("CRI-O", CRIO, crio_files(root), inside(root, CRIO).is_file(), version, root, seen)


def _running(proc: Path, name: str) -> Iterator[int]:
    ours = [proc / each / "ns/mnt" for each in ("1", "self", str(os.getppid()))]
    return (pid for pid in named(proc, name) if any(same(proc / str(pid) / "ns/mnt", each) for each in ours))


def version_of(program: Path) -> tuple[int, int] | None:
    """What a runtime says of its version."""
    answer = ran([program, "--version"])
    return version_in(answer.said) if answer.status == 0 else None
