"""Region files of container uses, in the directory of their claim: `<hami_dir>/cache/<claim uid>/`.

    use-<i>.region                 0666; a container has this file, and it alone, mounted: its content is hostile
    use-<i>.<digest>.template      0644; what the region must hold whenever a container starts; never mounted

A template is named by its content, so a CDI spec and the template that it names always fit together. What writes an existing
region is the hook at a container's start alone, since a container may be using it. Everything here blocks: call it in a thread.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.caches import claim_dir, make_claim_dir
from hami_kubeletplugin.hamicore.region import Region

_TEMPLATE: Final = ".template"


@dataclass(frozen=True, slots=True)
class RegionFiles:
    """Host paths of the region of one container use."""

    target: Path
    template: Path


def region_files(hami_dir: Path, uid: str, use: str, region: Region) -> RegionFiles:
    """Where they are.

    Args:
        hami_dir: HAMi-core's directory on the host.
        uid: UID of the claim that the region belongs to.
        use: What tells the container uses of one claim apart; a file name.
        region: The pristine content.

    Raises:
        ClaimError: The UID could lead out of the directory.
    """
    folder = claim_dir(hami_dir, uid)
    return RegionFiles(folder / f"{use}.region", folder / f"{use}.{region.digest}{_TEMPLATE}")


def create_regions(hami_dir: Path, uid: str, regions: Mapping[str, Region]) -> None:
    """Make what is missing. A region that is there keeps its content; a template is made anew unless it holds what it must.

    Args:
        hami_dir: As above.
        uid: As above.
        regions: Pristine contents by use.

    Raises:
        ClaimError: As `region_files`.
        StorageError: A file can't be made, or something else is in its place.
    """
    if not regions:
        return
    make_claim_dir(hami_dir, uid)
    for use, region in regions.items():
        paths = region_files(hami_dir, uid, use, region)
        if not _holds(paths.template, region):
            _write(paths.template, region, 0o644)
        if not _is_region(paths.target):
            _write(paths.target, region, 0o666)


def remove_templates(hami_dir: Path, uid: str, keep: Iterable[Path]) -> None:
    """Remove all templates of a claim but these: after a new CDI spec is written, nothing names the old ones.

    Raises:
        ClaimError: As `region_files`.
        StorageError: One is still there.
    """
    folder = claim_dir(hami_dir, uid)
    kept = {path.name for path in keep}
    for name in files.names(folder):
        # What a killed process left half-written goes too.
        if name.endswith((_TEMPLATE, files.TEMPORARY)) and name not in kept:
            files.remove(folder / name)


def _is_region(path: Path) -> bool:
    """Whether a region is there that any uid may use; another kind of file is no region and is not followed."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return False
        if stat.S_IMODE(found.st_mode) != 0o666:  # whoever has it mounted may change that, on the same inode
            path.chmod(0o666)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: can't be used: {error.strerror}; {files.remedy(error)}") from error
    return True


def _holds(path: Path, region: Region) -> bool:
    """Whether a template is whole. After a power cut it may have its name and size, but not its bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(handle)
        whole = stat.S_ISREG(found.st_mode) and (stat.S_IMODE(found.st_mode), found.st_size) == (0o644, region.size)
        return whole and all(os.pread(handle, len(data), offset) == data for offset, data in region.parts)
    except OSError:
        return False
    finally:
        os.close(handle)


def _write(path: Path, region: Region, mode: int) -> None:
    """Make a sparse file appear whole. Not durable: after a power cut it is made anew from the claim's record.

    Raises:
        StorageError: The former one, if any, is still there.
    """
    temporary = path.with_name(path.name + files.TEMPORARY)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.rmdir()  # an empty directory: what container runtimes make of a mount source that is missing
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(handle, mode)
            os.ftruncate(handle, region.size)
            for offset, data in region.parts:
                if os.pwrite(handle, data, offset) != len(data):
                    raise StorageError(f"{path}: can't be written whole: free some space on that disk")
        finally:
            os.close(handle)
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise StorageError(f"{path}: can't be written: {error.strerror}; {files.remedy(error)}") from error
