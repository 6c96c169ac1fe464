"""What NVML knows of the use of GPUs, at most as often as it may be asked. Contract: nvml.h.

It costs a call or two for each GPU, and opening NVML where nobody keeps it open. So it is asked only when somebody wants to
know, not more than once in a while, and nobody waits for it for long: a driver can hang.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hami_kubeletplugin.api.errors import HamiError, NvmlCallFailed
from hami_kubeletplugin.gpu import nvml as codes
from hami_kubeletplugin.gpu.nvml import Nvml
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.usage.model import OfGpu

log = get_logger()

_PROCESSES: Final = 4096
"""Of each GPU."""
_BACK: Final = 5.0
"""Seconds: older answers about what a process computes are none about now."""
_LONGEST: Final = 1 << 50


@dataclass(frozen=True, slots=True)
class OfProcess:
    """What one process has of one GPU; None is not known.

    Attributes:
        memory: Bytes.
        busy: Percent of its compute.
    """

    memory: int | None
    busy: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """What NVML said.

    Attributes:
        gpus: By index.
        processes: By GPU UUID and PID, of the node; a GPU that doesn't tell is not there.
    """

    gpus: tuple[OfGpu, ...] = ()
    processes: Mapping[str, Mapping[int, OfProcess]] = field(default_factory=dict)


def ask(nvml: Nvml) -> Sample:
    """Ask all GPUs. One that can't be asked is left out.

    Raises:
        DriverMissing, NvmlCallFailed: The node as a whole could not be asked.
    """
    gpus, processes = [], {}
    for index in range(nvml.require("nvmlDeviceGetCount")):
        where = f"GPU {index}"
        try:
            handle = nvml.require("nvmlDeviceGetHandleByIndex", index, where=where)
            gpu = _gpu(nvml, handle, index, where)
            gpus.append(gpu)
            if (found := _processes(nvml, handle, where)) is not None:
                processes[gpu.uuid] = found
        except NvmlCallFailed:  # health says so
            continue
    return Sample(tuple(gpus), processes)


def _gpu(nvml: Nvml, handle: Any, index: int, where: str) -> OfGpu:
    memory = nvml.query("nvmlDeviceGetMemoryInfo", handle, where=where)
    rates = nvml.query("nvmlDeviceGetUtilizationRates", handle, where=where)
    return OfGpu(
        index=index,
        uuid=str(nvml.require("nvmlDeviceGetUUID", handle, where=where)),
        name=str(nvml.require("nvmlDeviceGetName", handle, where=where)),
        memory=int(memory.total) if memory else 0,
        memory_used=int(memory.used) if memory else None,
        utilization=min(int(rates.gpu), 100) if rates else None,
        memory_utilization=min(int(rates.memory), 100) if rates else None,
    )


def _processes(nvml: Nvml, handle: Any, where: str) -> Mapping[int, OfProcess] | None:
    """None if the GPU doesn't tell of processes at all. One that computes and draws is in two lists, with the same memory."""
    lists = [
        nvml.query(call, handle, where=where)
        for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    ]
    if lists[0] is None:
        return None
    busy = _busy(nvml, handle, where)
    memory: dict[int, int | None] = {}
    for process in [one for some in lists for one in (some or ())[:_PROCESSES]]:
        size = process.usedGpuMemory
        known = [
            each for each in (memory.get(int(process.pid)), None if size is None else int(size)) if each is not None
        ]
        memory[int(process.pid)] = min(max(known), _LONGEST) if known else None
    return {
        pid: OfProcess(memory.get(pid, 0), busy.get(pid, 0) if busy is not None else None)
        for pid in (memory.keys() | (busy or {}).keys())
    }


def _busy(nvml: Nvml, handle: Any, where: str) -> Mapping[int, int] | None:
    """Percent by PID, as of its newest sample; None if the GPU doesn't tell."""
    since = int((time.time() - _BACK) * 1_000_000)
    try:
        samples = nvml.query("nvmlDeviceGetProcessUtilization", handle, since, where=where)
    except NvmlCallFailed as error:
        if error.code in {
            0,
            codes.ERROR_NOT_FOUND,
        }:  # nobody has computed since; the bindings raise a success without any, too
            return {}
        raise
    if samples is None:
        return None
    newest: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for one in samples[:_PROCESSES]:
        # Drivers have been seen to answer with millions of percent.
        if one.smUtil <= 100:
            newest[int(one.pid)] = max(newest[int(one.pid)], (int(one.timeStamp), int(one.smUtil)))
    return {pid: percent for pid, (_, percent) in newest.items()}


class Sampler:
    """Samples, of some moments ago if it was asked just before.

    Args:
        sessions: NVML.
        age: Gives the seconds for which a sample is good.
        patience: Seconds to wait for one.
        stale: Seconds for which one is better than none, while the next one takes longer than that.
    """

    def __init__(
        self, sessions: Sessions, age: Callable[[], float], *, patience: float = 2.5, stale: float = 30.0
    ) -> None:
        self._sessions, self._age, self._patience, self._stale = sessions, age, patience, stale
        self._asking: asyncio.Task[None] | None = None
        self._last: Sample | None = None
        self._at = -math.inf
        self._said = Once[str]()

    async def sample(self) -> Sample | None:
        """What NVML says; None if it doesn't. A question that takes too long goes on, for who comes next."""
        if self._old < self._age():
            return self._last
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="NVML's sample")
        done, _ = await asyncio.wait({self._asking}, timeout=self._patience)
        return self._last if done or self._old < self._stale else None

    @property
    def _old(self) -> float:
        return time.monotonic() - self._at

    async def _ask(self) -> None:
        try:
            self._last = await self._sessions.use(ask)
            self._said.ended("failure")
        except HamiError:  # the driver is gone, or hangs: health says so
            self._last = None
        except Exception as error:
            self._last = None
            if self._said.is_new("failure", str(error)):
                log.warning("what NVML says of the use of GPUs can't be had now", error=str(error), exc_info=error)
        self._at = time.monotonic()
