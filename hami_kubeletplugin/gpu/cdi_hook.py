"""Which `nvidia-cdi-hook` the container runtime is to run: the toolkit's on the host, or the one that the image brought there."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import HamiError, HardwareError
from hami_kubeletplugin.hanging import MayHang

NAME: Final = "nvidia-cdi-hook"
FOLDERS: Final = (
    "/usr/bin",  # packages of distributions
    "/usr/local/nvidia/toolkit",  # the GPU operator
    "/usr/local/bin",
    "/usr/local/glibc/usr/bin",  # Talos
)
"""Where the toolkit is on hosts, by precedence; all of them below /usr, of which the daemon sees the host's."""


def hook_for(wanted: str, host_root: Path, own: Callable[[], str]) -> Callable[[], str]:
    """What to ask for its path on the host, each time that it matters: a toolkit may come, or go.

    Args:
        wanted: As `--nvidia-cdi-hook` has it: a path, `own` or `auto`.
        host_root: Where the host's root directory is seen.
        own: Has the image's on the host, and says where.

    The result raises HardwareError: there is neither the toolkit's nor one of our own.
    """
    if wanted not in {"auto", "own"}:
        return lambda: wanted
    files = MayHang("the host's", HardwareError)

    def find() -> str:
        found = files.each(lambda _: on_host(host_root), [NAME])[NAME] if wanted == "auto" else None
        if found is not None:
            return found
        try:
            return own()
        except HamiError as error:
            looked = f"{NAME} is in none of {', '.join(FOLDERS)} on the host, and " if wanted == "auto" else ""
            raise HardwareError(f"{looked}{error}") from error

    return find


def on_host(host_root: Path) -> str | None:
    """The toolkit's, as it is called on the host: the first in its usual places that is a program. Blocks.

    A link that leads outside of what is seen counts as one: what it leads to is the host's matter.
    """
    for folder in FOLDERS:
        path = Path(folder, NAME)
        try:
            found = os.lstat(host_root / path.relative_to("/"))
        except OSError:
            continue
        if stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_mode & 0o111):
            return str(path)
    return None
