"""Takes away what the daemon leaves on a node, once nothing uses it.

Only names that are ours are touched, no link is followed, and what else is in our folders stays, with the folder.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.claim import UID
from hami_kubeletplugin.api.errors import AlreadyServing, HamiError, StillInUse, StorageError
from hami_kubeletplugin.api.settings import Places
from hami_kubeletplugin.claims.metadata_files import FOLDER
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.kubelet.sockets import PLACES, driver_lock, registration_socket
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_NAMED: Final = 10
_HAMI_LIBRARY: Final = "libvgpu.so"
"""In HAMi's device plugin's own installation; then the preload file is its, too."""
_OWN: Final = re.compile(
    r"\.?(dra2?|next)(\.sock)?|device-names\.json|gpus\.json|conditions\.json|lock\.(wanted|next)|(.*\.json)?\.tmp|lock"
)
"""Files in the plugin's directory; the lock last."""
_LIBRARIES: Final = re.compile(r"(libvgpu\.so|hami-region-hook|nvidia-cdi-hook)\.[0-9a-f]{16}(\.tmp)?")
_METADATA: Final = re.compile(r"[0-9a-f-]{36}\..*\.json(\.tmp)?")

_SPEC: Final = 1024 * 1024
"""Bytes of a CDI spec that are looked at."""

Step = tuple[Path, Callable[[], None] | None]
"""What goes, and how; None: a folder, if nothing else is in it, and it is none that was mounted for us."""


async def uninstall(settings: Places, *, claims: bool, dry_run: bool) -> list[Path]:
    """Remove all of it, and return what was there.

    Args:
        settings: Whose, and where.
        claims: Also what belongs to claims that are prepared: after `kubeadm reset` nobody unprepares them.
        dry_run: Remove nothing.

    HAMi-core's files stay, and that is said, while claims of another driver name use them.

    Raises:
        StillInUse: A daemon serves this driver, or claims are prepared; says which.
        StorageError: Something can't be removed; what comes before it is gone.
    """
    if not settings.plugin_dir.is_dir():  # not made for the lock alone
        return _go(settings, claims=claims, dry_run=dry_run)
    try:
        async with driver_lock(settings.plugin_dir, 0):
            return _go(settings, claims=claims, dry_run=dry_run)
    except AlreadyServing as error:
        raise StillInUse(f"nothing was removed: {error}") from error


def _go(settings: Places, *, claims: bool, dry_run: bool) -> list[Path]:
    if not claims:
        _check_unused(settings)
    gone: list[Path] = []
    for path, remove in [*_steps(settings)]:
        try:
            if remove is None and _stays(path, gone if dry_run else ()):
                continue
            if not dry_run:
                (remove or path.rmdir)()
        except OSError as error:
            raise StorageError(f"{path}: can't be removed: {error.strerror}; {files.remedy(error)}") from error
        gone.append(path)
    return gone


def _stays(folder: Path, gone: Collection[Path]) -> bool:
    """Whether something is left in a folder, or it was mounted for us."""
    return mounts.is_mounted(folder) or any(folder / name not in gone for name in files.names(folder))


def _check_unused(settings: Places) -> None:
    records = Records(settings.plugin_dir / "claims")
    uids = {*records.uids(), *SpecFiles(settings.cdi_dir, settings.driver_name).uids()}
    if not uids:
        return
    said = []
    for uid in sorted(uids)[:_NAMED]:
        try:
            record = records.load(uid)
        except HamiError:
            record = None
        said.append(_named(record) if record else f"claim {uid}")
    more = f" and {len(uids) - _NAMED} more" if len(uids) > _NAMED else ""
    raise StillInUse(
        f"nothing was removed: {len(uids)} claims are prepared on this node: {', '.join(said)}{more}. Delete their pods while "
        "the daemon runs; if their containers are gone for good, as after `kubeadm reset`, say --claims"
    )


def _named(record: Prepared) -> str:
    pods = ", ".join(f"{pod.namespace}/{pod.name}" for pod in record.pods)
    return f"{record.ref.full_name} of pod {pods}" if pods else record.ref.full_name


def _steps(settings: Places) -> Iterator[Step]:
    """In the order in which it goes: what others see first, the lock last."""
    plugin, hami = settings.plugin_dir, settings.hami_dir
    specs = SpecFiles(settings.cdi_dir, settings.driver_name)
    for uid in specs.uids():
        yield from _file(specs.path(uid))
    for place in PLACES:
        try:
            path = registration_socket(settings.registry_dir, settings.driver_name, place)
        except HamiError:  # too long for a socket, so there is none
            continue
        yield from _file(path, kind=stat.S_ISSOCK)
        yield from _file(path.with_name(f".{path.name.removesuffix('.sock')}"), kind=stat.S_ISSOCK)
    if (spec := _other_user(settings, specs)) is None:
        yield from _hami(hami)
    else:
        log.warning(
            "HAMi-core's files stay: claims of another driver name use them", directory=str(hami), spec=str(spec)
        )
    yield from _claims(plugin)
    for name in sorted(files.names(plugin), key=lambda name: (name == "lock", name)):
        if _OWN.fullmatch(name):
            yield from _file(plugin / name, kind=lambda mode: stat.S_ISREG(mode) or stat.S_ISSOCK(mode))
    yield from _empty(plugin)


def _other_user(settings: Places, specs: SpecFiles) -> Path | None:
    """A CDI spec that isn't ours and names HAMi-core's files."""
    ours = {specs.path(uid).name for uid in specs.uids()}
    for name in files.names(settings.cdi_dir):
        path = settings.cdi_dir / name
        if name not in ours and _is(path, stat.S_ISREG):
            try:
                with path.open("rb") as file:
                    if f"{settings.hami_dir}/".encode() in file.read(_SPEC):
                        return path
            except FileNotFoundError:  # its claim has just ended
                continue
            except OSError as error:
                raise StorageError(f"{path}: can't be read: {error.strerror}; {files.remedy(error)}") from error
    return None


def _hami(hami: Path) -> Iterator[Step]:
    """HAMi-core's files on the host."""
    if _is(hami / "cache", stat.S_ISDIR):
        for name in files.names(hami / "cache"):
            if UID.fullmatch(name) and _is(hami / "cache" / name, stat.S_ISDIR):
                yield hami / "cache" / name, ClaimDir(hami, name).remove
        yield from _empty(hami / "cache")
    if _is(hami / "lock", stat.S_ISDIR):
        yield hami / "lock", lambda: _remove_lock(hami / "lock")
    if _is(hami / "lib", stat.S_ISDIR):
        yield from _files_in(hami / "lib", _LIBRARIES)
    if not files.exists(hami / _HAMI_LIBRARY):
        yield from _file(hami / "ld.so.preload")
    yield from _empty(hami)


def _claims(plugin: Path) -> Iterator[Step]:
    """Records, also those that were set aside, and what containers can read of their GPUs."""
    if _is(plugin / "claims", stat.S_ISDIR):
        yield from _files_in(plugin / "claims" / "damaged", re.compile(r".*"))
        yield from _files_in(plugin / "claims", re.compile(r".*\.json(\.tmp|\.aside)?"))
    yield from _files_in(plugin / FOLDER, _METADATA)


def _files_in(folder: Path, names: re.Pattern[str]) -> Iterator[Step]:
    if _is(folder, stat.S_ISDIR):
        for name in files.names(folder):
            if names.fullmatch(name):
                yield from _file(folder / name)
        yield from _empty(folder)


def _file(path: Path, *, kind: Callable[[int], bool] = stat.S_ISREG) -> Iterator[Step]:
    if _is(path, kind):
        yield path, lambda: path.unlink(missing_ok=True)


def _empty(folder: Path) -> Iterator[Step]:
    if _is(folder, stat.S_ISDIR):
        yield folder, None


def _remove_lock(folder: Path) -> None:
    mounts.unmount(folder)
    shutil.rmtree(folder)  # follows no link


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether it is there, and what it should be; a link isn't."""
    try:
        return kind(os.lstat(path).st_mode)
    except OSError:
        return False
