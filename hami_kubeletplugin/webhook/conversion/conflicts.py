"""What a GPU container brings along that meets HAMi-core's variables and files: warned about, or refused. Pure.

A container runtime applies CDI's variables after those of image and pod, and CDI's mounts after the pod's, save that mounts with
deeper paths come later (container-device-interface, pkg/cdi/container-edits.go). So the driver's own win over whatever is at
their paths or above; what is refused lies inside of them, or beside: it would harm.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.hamicore.contract import (
    CONTAINER_CACHE_DIR,
    CONTAINER_LIBRARY,
    CONTAINER_LOCK_DIR,
    CONTAINER_OVERRIDES,
    CONTAINER_PRELOAD,
    CONTAINER_REGION,
)
from hami_kubeletplugin.webhook.conversion.annotations import FALSE
from hami_kubeletplugin.webhook.conversion.demand import Container

_WINS: Final = "has no effect: the driver's own value wins"
_CLAIM: Final = "has no effect: the limit is that of the container's claim"
_VARIABLES: Final[Mapping[str, str]] = {
    names.CUDA_VISIBLE_DEVICES: f"{_WINS}, and the claim's GPUs are numbered 0, 1, ...",
    names.CUDA_DEVICE_ORDER: f"{_WINS}, PCI_BUS_ID, by which the limits are numbered",
    names.NVIDIA_VISIBLE_DEVICES: f"{_WINS}, and the container has the GPUs of its claim and no others",
    names.CUDA_DEVICE_MEMORY_SHARED_CACHE: f"{_WINS}, the path of HAMi-core's region",
    names.CUDA_REDIRECT: f"{_WINS}, the path of HAMi-core's library",
    names.LD_PRELOAD: (
        "names what is loaded before HAMi-core: an allocator does no harm, but with a library that has functions of CUDA, or "
        "dlsym, the limit does not hold"
    ),
}
_ON_A_SHARE: Final = (
    "has no effect on a share of a GPU: the limit stays. Ask for the whole GPU, with no gpumem and no gpucores, which has none; "
    "for monitoring there are claims with adminAccess"
)
_BY_START: Final[Mapping[str, str]] = {names.CUDA_DEVICE_MEMORY_LIMIT: _CLAIM, names.CUDA_DEVICE_SM_LIMIT: _CLAIM}

_FOLDERS: Final = (CONTAINER_LOCK_DIR, CONTAINER_CACHE_DIR)
_OURS: Final = (CONTAINER_PRELOAD, CONTAINER_LIBRARY, CONTAINER_REGION, *_FOLDERS)
_INSIDE: Final = tuple(f"{own}/" for own in _OURS)
_ABOVE: Final = frozenset(str(folder) for own in _OURS for folder in PurePosixPath(own).parents)
_LONGEST_PATH: Final = 4095
"""Characters that Linux takes (PATH_MAX, less its NUL)."""


def conflicts(container: Container, where: str, *, whole: bool = False) -> tuple[str, ...]:
    """What happens to the variables and volumes of a GPU container that meet HAMi-core's own, in words.

    Args:
        container: A core/v1 Container that gets a GPU.
        where: Its field path, for messages.
        whole: Its GPUs are wholly its own, so that there is no limit: HAMi-core is not there.

    Raises:
        AdmissionError: A volume would lift the limit, or the container could not start.
    """
    return (*_variables(container, f"{where}.env", whole=whole), *_volumes(container, where))


def _variables(container: Container, where: str, *, whole: bool) -> Iterator[str]:
    for number, variable in fields.mappings(container.get("env")):
        name = str(variable.get("name"))
        effect = _VARIABLES.get(name) or next((_BY_START[start] for start in _BY_START if name.startswith(start)), None)
        if name == names.CUDA_DISABLE_CONTROL and not whole and str(variable.get("value")) not in FALSE:
            effect = _ON_A_SHARE
        if effect:
            yield f"{where}[{number}]: {quoted(name)} {effect}"


def _volumes(container: Container, where: str) -> Iterator[str]:
    for number, mount in fields.mappings(container.get("volumeMounts")):
        if warning := _mount(mount.get("mountPath"), f"{where}.volumeMounts[{number}].mountPath"):
            yield warning
    for number, device in fields.mappings(container.get("volumeDevices")):
        path = _path(device.get("devicePath"), f"{where}.volumeDevices[{number}].devicePath")
        if path == CONTAINER_OVERRIDES or path in _OURS or path in _ABOVE or path.startswith(_INSIDE):
            raise AdmissionError(
                f"{where}.volumeDevices[{number}].devicePath: {quoted(device['devicePath'])} is where HAMi-core's files are "
                "in a GPU container; use another path"
            )


def _mount(given: Any, where: str) -> str | None:
    path = _path(given, where)
    if path == CONTAINER_OVERRIDES:
        raise AdmissionError(
            f"{where}: {quoted(given)}: HAMi-core takes variables out of that file, so a volume there could lift the limit of a "
            "GPU container; use another path"
        )
    if path.startswith(_INSIDE):
        own = next(own for own in _OURS if path.startswith(f"{own}/"))
        raise AdmissionError(
            f"{where}: {quoted(given)} is inside of {own}, which is HAMi-core's in a GPU container: "
            f"{'no limit could be kept' if own in _FOLDERS else 'it is a file, so the container could not start'}; "
            "use another path"
        )
    if path in _OURS:
        return f"{where}: {quoted(given)} is taken by HAMi-core's own, so nothing of this volume is there"
    if path not in _ABOVE:
        return None
    return (
        f"{where}: {quoted(given)}: the limit holds, since HAMi-core's files are mounted over this volume; where a read-only "
        "volume lacks them the container can't start"
    )


def _path(given: Any, where: str) -> str:
    """Where it leads to, links aside; empty for what the API server will refuse."""
    if not isinstance(given, str) or not given:
        return ""
    if len(given) > _LONGEST_PATH:
        raise AdmissionError(f"{where}: {len(given)} characters, and Linux takes {_LONGEST_PATH} of a path: shorten it")
    # Two slashes at the beginning would stay.
    return normpath(f"///{given}")
