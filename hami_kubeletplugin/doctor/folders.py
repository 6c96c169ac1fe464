"""The file systems of our folders: mount options, leases, space, and labels of SELinux."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.hamicore.mounts import parsed
from hami_kubeletplugin.health.runtime_config import inside
from hami_kubeletplugin.selinux import CONTAINERS, is_on

_MIB: Final = 1 << 20
_NONE_LEFT: Final = (8 * _MIB, 64)
_FEW_LEFT: Final = (64 * _MIB, 1024)
"""Bytes and inodes. A claim takes some files of a few KiB, and 2 MB on the disk where nothing can be mounted."""
_CONTAINERS_TYPE: Final = CONTAINERS.split(":")[2]
_LABELS: Final = 64
_MOUNTS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount.

    Attributes:
        point: Where.
        kind: Its file system.
        options: Of the mount and of the file system.
        shared: Whether mounts below it are passed on to others.
    """

    point: str
    kind: str
    options: frozenset[str]
    shared: bool


def folders(place: Place) -> Iterator[Finding]:
    """Mount options and leases of HAMi-core's directory."""
    folder = place.settings.hami_dir
    point = mount_of(_mounts(place.proc), os.path.realpath(folder / "cache"))
    if point is not None:
        yield from mount_judged(folder, point, place.settings.claim_files)
    yield lease_judged(folder, _lease(folder / "ld.so.preload"))


def mount_of(mounts: Iterator[Mount], path: str) -> Mount | None:
    """The mount that a path is on: of those above it the last one of the deepest. Pure."""
    found: Mount | None = None
    for each in mounts:
        above = f"{path}/".startswith(f"{each.point.rstrip('/')}/")
        if above and (found is None or len(each.point) >= len(found.point)):
            found = each
    return found


def mount_judged(folder: Path, mount: Mount, claim_files: str) -> Iterator[Finding]:
    """Whether programs can be run from there, and what is mounted there reaches the container runtime. Pure."""
    where = f"{folder} (--hami-dir) is on {mount.point} ({mount.kind})"
    if "ro" in mount.options:
        yield Finding(
            check="folders",
            level=Level.error,
            what=f"{where}, which is mounted read-only",
            why="HAMi-core can't be installed there, nor a region be made: claims are refused.",
            mend=f"mount -o remount,rw {mount.point}",
        )
    if "noexec" in mount.options:
        yield Finding(
            check="folders",
            level=Level.error,
            what=f"{where}, which is mounted noexec",
            why="The hook can't be run from there, nor the library be loaded: claims are refused.",
            mend=f"mount -o remount,exec {mount.point}",
        )
    if "nosuid" in mount.options:
        yield Finding(
            check="folders",
            level=Level.hint,
            what=f"{where}, which is mounted nosuid",
            why="That is fine, but under SELinux a program from there stays in the domain of who runs it.",
        )
    if claim_files != "disk" and not mount.shared:
        yield Finding(
            check="folders",
            level=Level.warning,
            what=f"{where}, whose mounts are not passed on",
            why="What containers write is on the node's disk then, which they can fill, instead of in memory of their own.",
            mend="# in the pod: mountPropagation: Bidirectional for that volume; on the host:\nmount --make-rshared /",
        )
    if not mount.options & {"ro", "noexec"}:
        yield Finding(check="folders", level=Level.ok, what=f"{where}, from which programs can be run")


def lease_judged(folder: Path, error: str | None) -> Finding:
    """Whether the file system of HAMi-core's directory has leases. Pure."""
    if error is None:
        return Finding(check="folders", level=Level.ok, what=f"the file system of {folder} has leases")
    if error == "":
        return Finding(
            check="folders", level=Level.hint, what=f"leases can't be tried: {folder}/ld.so.preload is not there yet"
        )
    return Finding(
        check="folders",
        level=Level.warning,
        what=f"the file system of {folder} (--hami-dir) gives no leases: {error}",
        why="By a lease the hook sees that nobody uses a region before it renews it; without, containers don't start unless "
        "regions are in memory.",
        mend="# put --hami-dir on a local file system (ext4, xfs, btrfs, tmpfs), not on NFS or FUSE",
    )


def space(place: Place) -> Iterator[Finding]:
    """Free bytes and inodes of our folders."""
    settings = place.settings
    for option, folder in (
        ("--hami-dir", settings.hami_dir),
        ("--plugin-dir", settings.plugin_dir),
        ("--cdi-dir", settings.cdi_dir),
    ):
        try:
            found = os.statvfs(folder)
        except OSError as error:
            yield Finding(
                check="space",
                level=Level.warning,
                what=f"{folder} ({option}) can't be looked at: {error.strerror}",
                why="The daemon makes it when it starts.",
            )
            continue
        yield space_judged(
            f"{folder} ({option})", found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None
        )


def space_judged(folder: str, free: int, inodes: int | None) -> Finding:
    """Whether there is room for claims. Pure.

    Args:
        folder: In words.
        free: Bytes.
        inodes: Files that can still be made; None where the file system has no such bound.
    """
    left = f"{folder} has {free // _MIB} MiB" + ("" if inodes is None else f" and {inodes} inodes") + " left"
    for level, (least, fewest) in ((Level.error, _NONE_LEFT), (Level.warning, _FEW_LEFT)):
        if free < least or (inodes is not None and inodes < fewest):
            return Finding(
                check="space",
                level=level,
                what=left,
                why="Without room no claim can be prepared, and no limit be written at the start of a container.",
                mend=f"df -h {folder.split(maxsplit=1)[0]}; df -i {folder.split(maxsplit=1)[0]}; crictl rmi --prune",
            )
    return Finding(check="space", level=Level.ok, what=left)


def selinux(place: Place) -> Iterator[Finding]:
    """Whether SELinux lets containers write their regions."""
    state = None
    if is_on(_text(place.proc / "filesystems") or "", _text(place.proc / "self/attr/current") or ""):
        state = _text(inside(place.host, "/sys/fs/selinux/enforce")) or ""
    folder = place.settings.hami_dir
    cache = folder / "cache"
    paths = [cache, *islice(_below(cache), _LABELS)] if state is not None else []
    yield from selinux_judged(state, {path: _label(path) for path in paths}, folder)


def selinux_judged(state: str | None, labels: Mapping[Path, str | None], folder: Path) -> Iterator[Finding]:
    """What the labels mean. Pure.

    Args:
        state: What the kernel says of enforcing; empty: it can't be seen, so it may be; None: there is no SELinux.
        labels: Of what containers write, and its folders.
        folder: HAMi-core's directory.
    """
    if state is None or state == "0":
        what = "SELinux is off" if state is None else "SELinux only tells (permissive)"
        yield Finding(check="selinux", level=Level.ok, what=what)
        return
    is_so = "SELinux is enforcing" if state else "SELinux is on (whether it is enforcing can't be seen)"
    wrong = [path for path, label in labels.items() if label is None or _CONTAINERS_TYPE not in label.split(":")]
    if wrong:
        yield Finding(
            check="selinux",
            level=Level.error,
            what=f"{is_so}, and {wrong[0]} is labelled {labels[wrong[0]] or 'nothing'}"
            + (f", as are {len(wrong) - 1} more" if len(wrong) > 1 else ""),
            why=f"Containers can write only what is {_CONTAINERS_TYPE}: programs that use the GPU would fail at their region.",
            mend=f"semanage fcontext -a -t {_CONTAINERS_TYPE} '{folder}(/.*)?'\nrestorecon -R {folder}",
        )
    else:
        yield Finding(
            check="selinux",
            level=Level.ok,
            what=f"{is_so}, and what containers write is {_CONTAINERS_TYPE}",
        )


def _mounts(proc: Path) -> Iterator[Mount]:
    try:
        with (proc / "self/mountinfo").open("rb") as file:
            content = file.read(_MOUNTS)
    except OSError:
        return
    for _, _, point, rest in parsed(content):
        before, _, behind = rest.decode(errors="replace").partition(" - ")
        fields = behind.split(" ")
        options = frozenset([*before.split(" ")[0].split(","), *(["ro"] if "ro" in fields[-1].split(",") else [])])
        yield Mount(os.fsdecode(point), fields[0], options, " shared:" in f" {before}")


def _lease(path: Path) -> str | None:
    """Why there is no lease on a file; empty if there is no such file. None: there is one, and it is given back at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(descriptor)
    return None


def _below(folder: Path) -> Iterator[Path]:
    """What is in it, and one level below."""
    for path in _entries(folder):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _entries(path)


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(each.path) for each in islice(entries, _LABELS)]
    except OSError:
        return []


def _label(path: Path) -> str | None:
    try:
        return os.getxattr(path, "security.selinux", follow_symlinks=False).rstrip(b"\0").decode(errors="replace")
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
