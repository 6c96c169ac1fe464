"""GPUs and containers of this node as people and programs at a terminal see them. Pure, but for the screen."""

import dataclasses
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from typing import Final

from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.api.quoting import printable
from hami_kubeletplugin.program import table
from hami_kubeletplugin.usage.model import OfContainer, OfGpu, OfNode, OnGpu
from hami_kubeletplugin.usage.shares import shares

CLEAR: Final = "\x1b[H\x1b[J"
"""Of a terminal (ECMA-48): go to the upper left, and erase from there."""
_UNKNOWN: Final = "?"
_LEAST: Final = 20
"""Columns, and rows, of a terminal that says it has fewer, as some do that don't know."""


def as_json(found: OfNode) -> str:
    """All of it, with the names of `usage.model`: bytes, but limits in MiB; percent; what is not known is null."""
    return json.dumps(
        dataclasses.asdict(found)
        | {"containers": [dataclasses.asdict(of) | {"differs": of.differs} for of in found.containers]},
        indent=2,
    )


def text(found: OfNode) -> str:
    """All of it as two tables."""
    when = time.strftime("%H:%M:%S", time.localtime(found.at))
    gpus = [_gpu(gpu, found) for gpu in found.gpus]
    containers = [_row(of, gpu, found) for of in _sorted(found.containers) for gpu in of.gpus]
    first = table([_GPU, *_shown(gpus)]) if gpus else "no GPU can be seen"
    second = table([_CONTAINER, *_shown(containers)]) if containers else "no container has a GPU"
    return f"{when}\n\n{first}\n\n{second}"


def screen(found: OfNode) -> str:
    """The same, cut to the terminal."""
    size = shutil.get_terminal_size()
    width, height = max(size.columns, _LEAST), max(size.lines, _LEAST)
    lines = text(found).splitlines()
    if len(lines) >= height:
        more = len(lines) - height + 2
        lines = [*lines[: height - 2], f"... {more} more lines: --once shows all"]
    return CLEAR + "\n".join(line[:width] for line in lines) + "\n"


_GPU: Final = ("GPU", "MODEL", "UUID", "MEMORY", "ALLOCATED", "USED", "CORES", "BUSY")
_CONTAINER: Final = (
    *("POD", "CONTAINER", "GPU", "LIMIT", "USED", "OF LIMIT", "CORES", "BUSY"),
    *("NOTE", "PROCESSES", "LAST KERNEL"),  # what a narrow terminal may cut off comes last
)


def _gpu(gpu: OfGpu, found: OfNode) -> Sequence[str]:
    allocated = allocated_of(gpu.uuid, found.containers)
    return (
        str(gpu.index),
        gpu.name,
        gpu.uuid,
        _mib(gpu.memory),
        f"{allocated.memory_mib}Mi",
        _UNKNOWN if gpu.memory_used is None else _mib(gpu.memory_used),
        f"{allocated.cores}%",
        _percent(gpu.utilization),
    )


def allocated_of(uuid: str, containers: Iterable[OfContainer]) -> Limit:
    """What prepared claims have of a GPU. A share that several containers have, or one through several claims, counts once."""
    return sum((on.limit for _, on in shares(containers) if on.uuid == uuid), Limit(0))


def _sorted(containers: Iterable[OfContainer]) -> list[OfContainer]:
    return sorted(containers, key=lambda of: (of.namespace, of.pod, of.container, of.claim.name))


def _row(of: OfContainer, gpu: OnGpu, found: OfNode) -> Sequence[str]:
    numbers = {known.uuid: str(known.index) for known in found.gpus}
    used = gpu.used.total if gpu.used else None
    limit = gpu.limit.memory_mib * MIB
    return (
        f"{of.namespace}/{of.pod}",
        of.container,
        numbers.get(gpu.uuid, gpu.device),
        f"{gpu.limit.memory_mib}Mi" if limit else "-",
        _UNKNOWN if used is None else _mib(used),
        _UNKNOWN if used is None else f"{used * 100 // limit}%" if limit else "-",
        f"{gpu.limit.cores}%" if gpu.limit.cores else "-",
        _percent(gpu.utilization),
        _note(of, gpu),
        _UNKNOWN if of.processes is None else str(of.processes),
        "-" if of.last_kernel is None else f"{_age(found.at - of.last_kernel)} ago",
    )


def _note(of: OfContainer, gpu: OnGpu) -> str:
    """What people have to know to read the line; first what somebody has to look after."""
    if gpu.region is not None and gpu.region != gpu.limit:
        return f"LIMIT CHANGED to {_limit(gpu.region)}"
    if of.whole:
        return "not limited"
    return "seen by NVML" if of.source == "nvml" else ""


def _limit(limit: Limit) -> str:
    memory = f"{limit.memory_mib}Mi" if limit.memory_mib else "no memory limit"
    return f"{memory}, {f'{limit.cores}%' if limit.cores else 'no core limit'}"


def _mib(size: int) -> str:
    return f"{size // MIB}Mi"


def _percent(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value}%"


def _age(seconds: float) -> str:
    whole = max(int(seconds), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def _shown(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Whoever chose what is in them."""
    return [[printable(cell) for cell in row] for row in rows]
