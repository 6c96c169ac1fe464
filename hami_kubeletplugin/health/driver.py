"""What is asked of NVML about GPUs' health. Called in an open session. Contract: nvml.h."""

import ctypes
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api.errors import NvmlCallFailed
from hami_kubeletplugin.gpu import nvml as codes
from hami_kubeletplugin.gpu.nvml import Nvml
from hami_kubeletplugin.health.states import Answer, Life

XID: Final = 0x8
EVENTS: Final = XID | 0x2 | 0x100 | 0x800 | 0x4000 | 0x8000
"""Xid, double-bit ECC error, change of MIG mode, memory that can't be retired, GPU unavailable, another recovery action."""

_RECOVERY_ACTION: Final = 230
_REMAP_PENDING: Final = 144
_REMAP_FAILURE: Final = 145
_AT_ONCE: Final = 64
"""Events that are taken from the driver in one go: more have to wait, so that a storm of them does not keep NVML."""

_PIECE: Final = 0.1
"""Seconds that one call waits for an event; so long others wait for NVML, each scrape among them."""


@dataclass(frozen=True, slots=True)
class Poll:
    """The answers of all GPUs.

    Attributes:
        answers: By UUID; of those that were asked for, and of others that are there.
        shape: Changes when slices may have to: with GPUs that come, go, fail or switch their MIG mode, and the driver's version.
        listening: Whether the session gets events of any GPU.
    """

    answers: Mapping[str, Answer]
    shape: tuple[object, ...]
    listening: bool


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the driver told of a GPU.

    Attributes:
        uuid: Of the GPU.
        kind: One of `EVENTS`.
        xid: Its number, if it is one.
        action: The recovery action just after it; None if the driver doesn't say.
    """

    uuid: str
    kind: int
    xid: int = 0
    action: int | None = None


def poll(nvml: Nvml, known: Collection[str], sysfs: Path, *, listen: bool) -> Poll:
    """Ask each GPU how it is.

    Args:
        nvml: The session.
        known: UUIDs of GPUs that ought to be there.
        sysfs: Where sysfs is mounted.
        listen: Have their events come to this session.

    Raises:
        DriverMissing, NvmlCallFailed: The node as a whole could not be asked.
    """
    shape: list[object] = [nvml.require("nvmlSystemGetDriverVersion"), bound(sysfs)]
    load = _load(sysfs)
    answers: dict[str, Answer] = {}
    nameless = NvmlCallFailed(
        "nvmlDeviceGetHandleByUUID", codes.ERROR_GPU_NOT_FOUND, "the driver doesn't list the GPU", "this GPU"
    )
    for index in range(nvml.require("nvmlDeviceGetCount")):
        try:
            handle = nvml.require("nvmlDeviceGetHandleByIndex", index, where=f"GPU {index}")
            uuid = str(nvml.require("nvmlDeviceGetUUID", handle, where=f"GPU {index}"))
        except NvmlCallFailed as error:
            nameless = error
            shape.append(error.code)
            continue
        try:
            mig = nvml.query("nvmlDeviceGetMigMode", handle, where=uuid)
            monitored = _registered(nvml, handle, uuid) if listen else None
            answers[uuid] = _answer(nvml, handle, uuid, load, monitored)
            shape.append((uuid, mig))
        except NvmlCallFailed as error:
            answers[uuid] = Answer(error=error.code, said=str(error))
            shape.append((uuid, error.code))
    for uuid in set(known) - answers.keys():
        answers[uuid] = Answer(error=nameless.code, said=str(nameless))
    return Poll(answers, tuple(shape), listen and bool(nvml.registered))


def events(nvml: Nvml, seconds: float, enough: Callable[[], bool] = lambda: False) -> list[Event] | None:
    """What happens within this time; returns as soon as something has. None if no poll has had events come to this session.

    Args:
        nvml: The session.
        seconds: So long.
        enough: Whether to stop waiting; asked some ten times a second.

    Raises:
        DriverMissing, NvmlCallFailed: The driver doesn't tell any more.
    """
    if not nvml.registered:
        return None
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        found = list(_events(nvml, max(1, int(min(left, _PIECE) * 1000))))
        if found or left <= _PIECE or enough():
            return found


def _events(nvml: Nvml, milliseconds: int) -> Iterator[Event]:
    for _ in range(_AT_ONCE):
        try:
            told = nvml.require("nvmlEventSetWait_v2", nvml.event_set, milliseconds)
        except NvmlCallFailed as error:
            if error.code == codes.ERROR_TIMEOUT:
                return
            raise
        milliseconds = 0
        uuid = nvml.registered.get(_address(told.device))
        if uuid is None:
            continue
        if told.eventType != XID:
            yield Event(uuid, int(told.eventType))
            continue
        try:
            action = _fields(nvml, told.device, uuid).get(_RECOVERY_ACTION)
        except NvmlCallFailed:
            action = None  # a GPU that can't be asked at such a moment; the next poll says more
        yield Event(uuid, XID, int(told.eventData), action)


def _answer(nvml: Nvml, handle: Any, uuid: str, load: int | None, monitored: bool | None) -> Answer:
    nvml.require(
        "nvmlDeviceGetMemoryInfo", handle, where=uuid
    )  # what a GPU that is lost, or has to be reset, can't tell
    fields = _fields(nvml, handle, uuid)
    energy = _told(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle, where=uuid)
    pending, failure = fields.get(_REMAP_PENDING), fields.get(_REMAP_FAILURE)
    return Answer(
        action=fields.get(_RECOVERY_ACTION),
        remap_pending=None if pending is None else bool(pending),
        remap_failure=None if failure is None else bool(failure),
        life=Life(load, None if energy is None else int(energy)),
        monitored=monitored,
    )


def _fields(nvml: Nvml, handle: Any, uuid: str) -> dict[int, int]:
    """The fields that the GPU tells."""
    wanted = [_RECOVERY_ACTION, _REMAP_PENDING, _REMAP_FAILURE]
    values = _told(nvml, "nvmlDeviceGetFieldValues", handle, wanted, where=uuid) or ()
    return {int(value.fieldId): int(value.value.uiVal) for value in values if value.nvmlReturn == 0}


def _told(nvml: Nvml, call: str, *arguments: Any, where: str) -> Any | None:
    """The result of a call; None if it fails with anything but what means the GPU: older drivers know less."""
    try:
        return nvml.query(call, *arguments, where=where)
    except NvmlCallFailed as error:
        if error.code in {codes.ERROR_GPU_IS_LOST, codes.ERROR_RESET_REQUIRED}:
            raise
        return None


def _registered(nvml: Nvml, handle: Any, uuid: str) -> bool:
    """Have the GPU's events come to this session, if that isn't so yet; whether they do."""
    if nvml.registered.get(_address(handle)) == uuid:
        return True
    try:
        kinds = EVENTS & (nvml.query("nvmlDeviceGetSupportedEventTypes", handle, where=uuid) or 0)
        if not kinds & XID:
            return False
        nvml.require("nvmlDeviceRegisterEvents", handle, kinds, nvml.event_set, where=uuid)
    except NvmlCallFailed:
        return False
    nvml.registered[_address(handle)] = uuid
    return True


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def bound(sysfs: Path) -> tuple[str, ...]:
    """PCI addresses of what the kernel's driver has taken: a session that is open doesn't learn of GPUs that come."""
    try:
        return tuple(sorted(entry.name for entry in (sysfs / "bus/pci/drivers/nvidia").iterdir() if ":" in entry.name))
    except OSError:
        return ()


def _load(sysfs: Path) -> int | None:
    """Which load of the kernel's module it is: sysfs never uses a number of an inode again."""
    try:
        return (sysfs / "module/nvidia").stat().st_ino
    except OSError:
        return None
