"""Whether the NVIDIA container runtime of this node gives containers GPUs that no claim gave them.

It does so, by default, for any container that has it as its runtime and `NVIDIA_VISIBLE_DEVICES` in its environment. Contract:
NVIDIA/nvidia-container-toolkit api/config/v1/config.go and toml.go. Blocks.
"""

import os
import stat
import tomllib
from pathlib import Path
from typing import Final

SETTING: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_CONFIGS: Final = (
    "etc/nvidia-container-runtime/config.toml",  # the packages' own
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",  # the GPU operator's
)
_LIMIT: Final = 256 * 1024


def host_root(driver_root: Path, host_driver_root: Path | None) -> Path:
    """Where the daemon sees the host's root directory, if it sees it. Pure.

    Args:
        driver_root: Where it sees that of the driver.
        host_driver_root: Where that is on the host; None: the same path.
    """
    below = (host_driver_root or driver_root).parts[1:]
    parts = driver_root.parts
    if below and parts[-len(below) :] == below:
        parts = parts[: -len(below)]
    return Path(*parts)


def open_configs(root: Path) -> list[str] | None:
    """Configurations, as they are called on the host, that let unprivileged containers choose GPUs by a variable.

    Args:
        root: The host's root directory.

    Returns:
        None if no configuration can be seen that could be understood: then there is no such runtime, or nobody knows.
    """
    answers = {f"/{name}": accepted for name in _CONFIGS if (accepted := _accepts(root / name)) is not None}
    return [name for name, accepted in answers.items() if accepted] if answers else None


def _accepts(path: Path) -> bool | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(_LIMIT)
        return tomllib.loads(content.decode()).get(SETTING, True) is not False
    except (
        OSError,
        ValueError,
        RecursionError,
    ):  # ValueError: neither UTF-8 nor TOML; the runtime doesn't start with it either
        return None
