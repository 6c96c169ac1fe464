"""Region files of container uses, in the directory of their claim.

A region (`use-<i>.region`, 0666) is the file that a container has mounted, and it alone: its content is hostile. What it must
hold whenever a container starts stands in the CDI spec, as arguments of the hook that writes it there. Nobody else writes an
existing region, since a container may be using it. Everything here blocks: call it in a thread.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hami_kubeletplugin import files, selinux
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.directories import remove_attributes
from hami_kubeletplugin.hamicore.region import Region


def create_regions(folder: ClaimDir, regions: Mapping[str, Region]) -> None:
    """Make what is missing. A region that is there keeps its content.

    Args:
        folder: The claim's.
        regions: Pristine contents by use.

    Raises:
        StorageError: A file can't be made, or something else is in its place.
    """
    for use, region in regions.items():
        path = folder.region(use)
        if not _is_region(path):
            in_memory = folder.make()
            _write(path, region, reserve=not in_memory)


def _is_region(path: Path) -> bool:
    """Whether a region is there that any uid may use; another kind of file is no region and is not followed.

    An empty directory goes: container runtimes make one where a mount's source is missing.
    """
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            files.make_way(path)
            return False
        # Whoever has it mounted may change these, on the same inode.
        remove_attributes(path)
        if stat.S_IMODE(found.st_mode) != 0o666:
            path.chmod(0o666)
        selinux.relabel(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: can't be used: {error.strerror}; {files.remedy(error)}") from error
    return True


def _write(path: Path, region: Region, *, reserve: bool) -> None:
    """Make a file appear whole. Not durable: after a power cut the hook writes it again.

    Args:
        path: The file.
        region: Its content.
        reserve: Have all its blocks now. On a disk that others fill, a process that comes to a hole of its region would get
            SIGBUS; in a tmpfs of its own nobody else fills it, and memory that is not used is not to be paid.

    Raises:
        StorageError: The former one, if any, is still there.
    """

    def fill(descriptor: int) -> None:
        selinux.relabel(descriptor)
        if reserve:
            os.posix_fallocate(descriptor, 0, region.size)
        else:
            os.ftruncate(descriptor, region.size)
        for offset, data in region.parts:
            if os.pwrite(descriptor, data, offset) != len(data):
                raise StorageError(f"{path}: can't be written whole: free some space on that disk")

    files.replace(path, fill, durable=False, mode=0o666)
