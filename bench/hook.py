"""What a container's start costs more: the hook that renews its region, as a runtime runs it."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.process import REGION_HOOK
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.host import checked
from hami_kubeletplugin.hamicore.region import LAYOUTS, region
from hami_kubeletplugin.hamicore.regions import create_regions

_FILES = (700_000, 27)
"""Bytes of HAMi-core's library as the image has it, and of the file that has it loaded."""
_UID = "00000000-0000-0000-0000-000000000000"
_STATE = {
    "ociVersion": "1.2.1",
    "id": "x" * 64,
    "status": "creating",
    "pid": 4_194_304,
    "bundle": "/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + "x" * 64,
    "annotations": {"io.kubernetes.cri.sandbox-uid": _UID, **{f"io.kubernetes.cri.{n}": "x" * 64 for n in range(8)}},
}


def renewals(folders: Sequence[Path], count: int) -> list[list[float]]:
    """Milliseconds of runs of the hook, for a region in each of these folders, and of a program that does nothing, in turns."""
    commands = [*map(_hook, folders), ["/bin/true"]]
    taken: list[list[float]] = [[] for _ in commands]
    for _ in range(count):
        for command, found in zip(commands, taken, strict=True):
            found.append(_run(command))
    return taken


def _hook(at: Path) -> list[str]:
    """Its command line, as a CDI spec has it, for a new region below a folder."""
    made = region(LAYOUTS["1.2"], {f"GPU-{_UID}": Limit(10_000, 30)})
    folder = ClaimDir(at, _UID)
    create_regions(folder, {"use-0": made})
    content = (word for offset, data in made.pieces for word in ("--content", f"{offset}:{data.hex()}"))
    place = ("--region", str(folder.region("use-0")), "--size", str(made.size))
    files = (word for size in _FILES for word in ("--file", _file(at / f"file-{size}", bytes(size))))
    return [str(REGION_HOOK), *place, *content, *files, "--claim", "bench/claim", "--pod", _UID]


def _file(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    path.chmod(0o755)
    return checked(path, content)


def _run(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, input=json.dumps(_STATE).encode(), env={}, check=True, timeout=10)
    return (time.perf_counter() - started) * 1000
