"""Region files of container uses, in the directory of their claim.

The region (`use-<i>.region`, 0666) is the file that a container has mounted, and it alone: its content is hostile. The template
(`use-<i>.<digest>.template`, 0644, never mounted) is what it must hold whenever a container starts, and named by that content, so
a CDI spec and the template that it names always fit together. What writes an existing region is the hook at a container's start
alone, since a container may be using it. Everything here blocks: call it in a thread.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.claim_dir import TEMPLATE, ClaimDir
from hami_kubeletplugin.hamicore.region import Region


def create_regions(folder: ClaimDir, regions: Mapping[str, Region]) -> None:
    """Make what is missing. A region that is there keeps its content; a template is made anew unless it holds what it must.

    Args:
        folder: The claim's.
        regions: Pristine contents by use.

    Raises:
        StorageError: A file can't be made, or something else is in its place.
    """
    if not regions:
        return
    folder.make()
    for use, region in regions.items():
        template, target = folder.template(use, region.digest), folder.region(use)
        if not _holds(template, region):
            _write(template, region, 0o644)
        if not _is_region(target):
            _write(target, region, 0o666)


def remove_templates(folder: ClaimDir, keep: Iterable[Path]) -> None:
    """Remove all templates of a claim but these: after a new CDI spec is written, nothing names the old ones.

    Raises:
        StorageError: One is still there.
    """
    kept = {path.name for path in keep}
    for name in files.names(folder.path):
        # What a killed process left half-written goes too.
        if name.endswith((TEMPLATE, files.TEMPORARY)) and name not in kept:
            files.remove(folder.path / name)


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

    def fill(descriptor: int) -> None:
        os.ftruncate(descriptor, region.size)
        for offset, data in region.parts:
            if os.pwrite(descriptor, data, offset) != len(data):
                raise StorageError(f"{path}: can't be written whole: free some space on that disk")

    try:
        files.make_way(path)
    except OSError as error:
        raise StorageError(f"{path}: can't be written: {error.strerror}; {files.remedy(error)}") from error
    files.replace(path, fill, durable=False, mode=mode)
