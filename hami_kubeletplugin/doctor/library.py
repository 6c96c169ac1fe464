"""HAMi-core's files: what the image ships, what is on the host, and whether the hook runs."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.doctor.programs import Ran, ran
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.hamicore import elf
from hami_kubeletplugin.hamicore.contract import CONTAINER_LIBRARY
from hami_kubeletplugin.hamicore.mounts import forbids_programs
from hami_kubeletplugin.hamicore.shipped import Library, Shipped

_NAMED: Final = re.compile(r"(libvgpu\.so|hami-region-hook)\.([0-9a-f]{16})")
_PUT_BACK: Final = (
    "kubectl -n hami-system delete pod -l app.kubernetes.io/name=hami-kubeletplugin --field-selector spec.nodeName="
)
_STATE: Final = json.dumps(
    {"ociVersion": "1.0.2", "id": "doctor", "status": "created", "pid": 1, "bundle": "/"}
).encode()
_LARGEST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class File:
    """A file of ours on the host.

    Attributes:
        mode: Its permission bits.
        content: All of it.
    """

    mode: int
    content: bytes


def hami_core(place: Place) -> Iterator[Finding]:
    """The library in the image and on the host."""
    settings = place.settings
    shipped = Shipped(
        settings.hami_core, settings.hami_core_version, settings.glibc_floor, region_hook=settings.region_hook
    )
    if settings.hami_core.exists():
        yield from shipped_judged(shipped.library(), shipped.hook())
    else:
        yield Finding(
            check="hami-core",
            level=Level.hint,
            what=f"{settings.hami_core} (--hami-core) is not here: what the image ships is seen in the daemon's pod only",
        )
    yield from installed_judged(settings.hami_dir, _installed(settings.hami_dir), settings.node_name)


def shipped_judged(library: Library, hook: bytes | str) -> Iterator[Finding]:
    """What is known of the library that containers get. Pure."""
    release = library.release
    floor = elf.needed_glibc(library.content)
    needs = f", needs glibc {floor[0]}.{floor[1]}" if floor else ""
    regions = release.layout is not None and isinstance(hook, bytes)
    layout = f", regions laid out as {release.layout.name}" if release.layout else ""
    if release.version is None or release.layout is None:
        unknown = (
            f"{library.path} is in no versions.json beside it"
            if release.version is None
            else f"{release}: its layout is not known"
        )
        yield Finding(
            check="hami-core",
            level=Level.warning,
            what=f"{unknown} (SHA-256 {release.digest})",
            why="Its regions can't be made, so limits are in variables only: a process without its environment is unlimited.",
            mend="# use an image that hack/image made, or complete versions.json: docs/operating.md",
        )
    elif isinstance(hook, str):
        yield Finding(
            check="hami-core",
            level=Level.warning,
            what=f"regions can't be made: {hook}",
            why="Limits are in variables only: a process without its environment is unlimited.",
            mend="# set HAMI_REGION_HOOK to the program that the image ships",
        )
    if regions:
        yield Finding(check="hami-core", level=Level.ok, what=f"{library.path} is {release}{layout}{needs}")
    if not release.maps_gpus:
        yield Finding(
            check="hami-core",
            level=Level.hint,
            what=f"{release} is a library without our patches",
            why="With several GPUs in one container its limits only hold for programs that leave CUDA_VISIBLE_DEVICES and "
            "CUDA_DEVICE_ORDER alone (docs/limits.md).",
        )


def installed_judged(folder: Path, found: Mapping[str, File | str], node: str) -> Iterator[Finding]:
    """Whether what containers mount is whole: files are called by their content. Pure.

    Args:
        folder: HAMi-core's directory on the host.
        found: Its files by name below it, or why they can't be read.
        node: This node.
    """
    wrong = []
    for name, file in found.items():
        named = _NAMED.fullmatch(Path(name).name)
        if isinstance(file, str):
            wrong.append(f"{folder / name} can't be read: {file}")
        elif named and hashlib.sha256(file.content).hexdigest()[:16] != named[2]:
            wrong.append(f"{folder / name} has other content than it was installed with")
        elif named and file.mode != 0o755:
            wrong.append(f"{folder / name} has mode {file.mode:04o} instead of 0755")
        elif name == "ld.so.preload" and file.content.decode(errors="replace").split() != [CONTAINER_LIBRARY]:
            wrong.append(f"{folder / name} does not name {CONTAINER_LIBRARY}, and nothing else")
        elif name == "ld.so.preload" and file.mode != 0o644:
            wrong.append(f"{folder / name} has mode {file.mode:04o} instead of 0644")
    for what in wrong:
        yield Finding(
            check="hami-core",
            level=Level.error,
            what=what,
            why="Containers would run without limits, so they don't start. A running daemon puts its own files back in seconds.",
            mend=f"{_PUT_BACK}{node}",
        )
    if not any(name.startswith("lib/libvgpu") for name in found) or "ld.so.preload" not in found:
        yield Finding(
            check="hami-core",
            level=Level.warning,
            what=f"HAMi-core is not installed in {folder} (--hami-dir)",
            why="A daemon that has run on this node has put it there; containers mount it from there.",
            mend="kubectl -n hami-system get pods -l app.kubernetes.io/name=hami-kubeletplugin -o wide",
        )
    elif not wrong:
        yield Finding(
            check="hami-core", level=Level.ok, what=f"the {len(found)} files in {folder} are as they were installed"
        )


def region_hook(place: Place) -> Iterator[Finding]:
    """Whether the hook runs, as the container runtime runs it."""
    folder = place.settings.hami_dir / "lib"
    newest = _newest(folder)
    if forbids_programs(place.settings.hami_dir):
        yield Finding(
            check="region-hook",
            level=Level.error,
            what=f"{place.settings.hami_dir} (--hami-dir) is on a file system that is mounted noexec",
            why="The hook can't be run from there, nor the library be loaded: claims are refused.",
            mend=f"mount -o remount,exec $(findmnt -n -o TARGET -T {place.settings.hami_dir})",
        )
    if newest is not None:
        yield hook_judged(newest, ran([newest, "--claim", "hami-system/doctor"], stdin=_STATE))
    else:
        yield Finding(
            check="region-hook",
            level=Level.hint,
            what=f"there is no hook in {folder}",
            why="Either no daemon has run here yet, or HAMi-core is one whose regions can't be made: see hami-core.",
        )


def hook_judged(path: Path, answer: Ran) -> Finding:
    """What a run without any region came to. Pure."""
    if answer.status == 0:
        return Finding(check="region-hook", level=Level.ok, what=f"{path} runs")
    said = answer.said or f"status {answer.status}"
    return Finding(
        check="region-hook",
        level=Level.error,
        what=f"{path} can't be run: {said}",
        why="Each start of a container with a limit runs it, and fails if it does.",
        mend=f"chmod 755 {path}; ls -lZ {path}",
    )


def _installed(folder: Path) -> dict[str, File | str]:
    names = [f"lib/{name}" for name in _names(folder / "lib") if _NAMED.fullmatch(name)]
    return {name: found for name in [*names, "ld.so.preload"] if (found := _file(folder / name)) is not None}


def _file(path: Path) -> File | str | None:
    try:
        with path.open("rb") as file:
            return File(os.fstat(file.fileno()).st_mode & 0o7777, file.read(_LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)


def _newest(folder: Path) -> Path | None:
    """The hook that was installed last: those of earlier versions stay, for containers that were prepared with them."""
    hooks = [folder / name for name in _names(folder) if name.startswith("hami-region-hook.")]
    return max(hooks, key=lambda path: path.stat().st_mtime, default=None)


def _names(folder: Path) -> list[str]:
    try:
        return files.names(folder)
    except StorageError:
        return []
