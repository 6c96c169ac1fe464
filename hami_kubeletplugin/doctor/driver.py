"""The driver: NVML, the GPUs that it tells of, and the device nodes without which no container can use them."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, StorageError
from hami_kubeletplugin.doctor.place import Hardware, Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.gpu.nvml import LIBRARY, library_below

_NO_GPU: Final = "No GPU of this node is published, and no pod with GPUs can start here."
_MAJORS: Final = {"nvidia": 195, "nvidia-frontend": 195}
_CONTROL: Final = {"nvidiactl": ("nvidia", 255), "nvidia-uvm": ("nvidia-uvm", 0)}
"""Device nodes that CUDA needs, the name of their major number in /proc/devices, and their minor number."""
_PUBLISHED: Final = ("GPU published", "GPUs published")
"""What begins so is about GPUs that can be had."""
_MAKE: Final = "nvidia-modprobe -u -c 0"


class Node(NamedTuple):
    """A character device."""

    major: int
    minor: int


def driver(place: Place) -> Iterator[Finding]:
    """NVML and the GPUs."""
    settings = place.settings
    library = str(settings.nvml_library or library_below(settings.driver_root) or f"{LIBRARY} as the loader finds it")
    try:
        found = place.hardware()
    except HardwareError as error:
        missing = isinstance(error, DriverMissing)
        yield Finding(
            check="driver",
            level=Level.error,
            what=str(error),
            why=_NO_GPU,
            mend="nvidia-smi || modprobe nvidia" if missing else "nvidia-smi; dmesg | grep -E 'NVRM|Xid' | tail",
        )
        return
    yield from judged(found, library, simulated=settings.simulate)


def judged(found: Hardware, library: str, *, simulated: str | None) -> Iterator[Finding]:
    """What NVML told. Pure.

    Args:
        found: The GPUs.
        library: Where NVML's library was found, in words.
        simulated: What is simulated instead.
    """
    gpus = found.inventory.gpus
    if simulated is not None:
        yield Finding(check="driver", level=Level.hint, what=f"{len(gpus)} GPUs are simulated (--simulate {simulated})")
        return
    if gpus:
        first = gpus[0]
        cuda = ".".join(map(str, first.cuda_driver_version or ())) or "unknown"
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        what = f"driver {first.driver_version}, CUDA {cuda}, NVML from {library}; {len(gpus)} GPUs: {names}"
        yield Finding(check="driver", level=Level.ok, what=what)
    else:
        yield Finding(
            check="driver",
            level=Level.warning,
            what=f"the driver (NVML from {library}) has no GPU that can be served",
            why=_NO_GPU,
            mend="nvidia-smi -L",
        )
    for event, facts in found.remarks:
        about = ", ".join(f"{name} {value}" for name, value in facts)
        mig = "MIG" in event
        if event.startswith(_PUBLISHED):
            yield Finding(check="driver", level=Level.hint, what=f"{event} ({about})")
            continue
        yield Finding(
            check="driver",
            level=Level.warning,
            what=f"{event} ({about})",
            why="What is left out is not published, so no pod gets it.",
            mend="nvidia-smi -mig 0 -i INDEX" if mig else "nvidia-smi; dmesg | grep -E 'NVRM|Xid' | tail",
        )


def device_nodes(place: Place) -> Iterator[Finding]:
    """The files in /dev."""
    if place.settings.simulate is not None:
        yield Finding(check="device-nodes", level=Level.ok, what="simulated GPUs need none")
        return
    gpus, folder = list(place.gpus().values()), place.devices
    wanted = {**dict.fromkeys(_CONTROL), **{f"nvidia{gpu.minor}": None for gpu in gpus}}
    yield from nodes_judged(folder, {name: _node(folder / name) for name in wanted}, _majors(place.proc), gpus)
    caps = _capabilities(folder / "nvidia-caps")
    if caps:
        yield Finding(
            check="device-nodes", level=Level.ok, what=f"{caps} nodes of capabilities in {folder}/nvidia-caps"
        )


def nodes_judged(
    folder: Path, found: Mapping[str, Node | None], majors: Mapping[str, int], gpus: Sequence[Gpu]
) -> Iterator[Finding]:
    """Whether the nodes are there and are what their names say. Pure.

    Args:
        folder: Where they are.
        found: By name; None: not there, or no character device.
        majors: The kernel's major numbers by name.
        gpus: The GPUs.
    """
    wanted = dict(_CONTROL) | {f"nvidia{gpu.minor}": ("nvidia", gpu.minor) for gpu in gpus}
    wrong = False
    for name, (kind, minor) in wanted.items():
        node, major = found.get(name), majors.get(kind, _MAJORS.get(kind))
        if node is None:
            wrong = True
            yield Finding(
                check="device-nodes",
                level=Level.error,
                what=f"the device node {folder}/{name} is not there",
                why="CUDA can't start without it, so claims are refused, or programs in containers find no GPU.",
                mend=_MAKE if name in _CONTROL else f"nvidia-modprobe -c {minor}",
            )
        elif (major is not None and node.major != major) or node.minor != minor:
            wrong = True
            yield Finding(
                check="device-nodes",
                level=Level.error,
                what=f"{folder}/{name} is device {node.major}:{node.minor}, and the kernel has it as "
                f"{'?' if major is None else major}:{minor}",
                why="Containers get another device than the one that is meant, or none that works.",
                mend=f"rm {folder}/{name} && nvidia-modprobe -u -c {minor if name not in _CONTROL else 0}",
            )
    if not wrong:
        yield Finding(check="device-nodes", level=Level.ok, what=f"{', '.join(wanted)} are in {folder}")


def _node(path: Path) -> Node | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} can't be looked at: {error.strerror}") from error
    return Node(os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None


def _majors(proc: Path) -> dict[str, int]:
    try:
        lines = (proc / "devices").read_text().partition("Block devices")[0].splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {each[1]: int(each[0]) for each in fields if len(each) == 2 and each[0].isdigit()}


def _capabilities(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
