"""SELinux: what containers have mounted carries the label of containers' files, or they could neither read nor write it.

Contract: container-selinux's policy. A container's processes are `container_t`, at a level with categories of its own
(`s0:c1,c2`); of the host's files they may use those of type `container_file_t` whose level is within theirs, and `s0` is within
each. That is the label that container runtimes give to shared volumes (`:z`). Everything here blocks: call it in a thread.
"""

import errno
import functools
import os
from pathlib import Path
from typing import Final

CONTAINERS: Final = "system_u:object_r:container_file_t:s0"
"""The label of files for all containers of a node."""
_ATTRIBUTE: Final = "security.selinux"
_FILESYSTEMS: Final = Path("/proc/filesystems")
_OWN: Final = Path("/proc/thread-self/attr/current")


def is_on(filesystems: str, own: str) -> bool:
    """Whether the kernel has SELinux on, with a policy loaded. Pure.

    Not by /sys/fs/selinux, which container runtimes don't show to containers.

    Args:
        filesystems: What is in /proc/filesystems.
        own: The label of a process; other security modules have other forms there.
    """
    known = {line.split()[-1] for line in filesystems.splitlines() if line.strip()}
    return "selinuxfs" in known and len(own.rstrip("\0\n").split(":")) >= 3


@functools.cache
def label() -> str | None:
    """The label for what containers have mounted; None without SELinux. It is on or off for as long as the node is up."""
    try:
        return CONTAINERS if is_on(_FILESYSTEMS.read_text(), _OWN.read_text()) else None
    except OSError:
        return None


def relabel(target: int | Path) -> None:
    """Give a file or directory that label, unless it has it; without SELinux nothing.

    Args:
        target: An open one, or a path, of which a link is not followed.

    Raises:
        OSError: It has another one, and can't be given this one: no container could use it.
    """
    if (wanted := label()) is None:
        return
    follow = isinstance(target, int)
    found = _found(target, follow=follow)
    if found == wanted:
        return
    try:
        os.setxattr(target, _ATTRIBUTE, wanted.encode() + b"\0", follow_symlinks=follow)
    except OSError as error:
        raise OSError(
            error.errno,
            f"its SELinux label is {found or 'missing'}, by which no container could use it, and can't be made {wanted}: "
            f"{error.strerror}; is container-selinux installed?",
            None if isinstance(target, int) else os.fspath(target),
        ) from error


def _found(target: int | Path, *, follow: bool) -> str:
    try:
        return os.getxattr(target, _ATTRIBUTE, follow_symlinks=follow).rstrip(b"\0").decode(errors="replace")
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.ENOTSUP}:
            return ""
        raise
