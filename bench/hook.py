"""What a container's start costs more: the hook that renews its region, as a runtime runs it."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.process import REGION_HOOK
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.region import LAYOUTS, region
from hami_kubeletplugin.hamicore.regions import create_regions

_UID = "00000000-0000-0000-0000-000000000000"
_STATE = {
    "ociVersion": "1.2.1",
    "id": "x" * 64,
    "status": "creating",
    "pid": 4_194_304,
    "bundle": "/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + "x" * 64,
    "annotations": {"io.kubernetes.cri.sandbox-uid": _UID, **{f"io.kubernetes.cri.{n}": "x" * 64 for n in range(8)}},
}


def renewals(disk: Path, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each run of the hook, and of a program that does nothing, in turns."""
    made = region(LAYOUTS["1.2"], {f"GPU-{_UID}": Limit(10_000, 30)})
    folder = ClaimDir(disk, _UID)
    create_regions(folder, {"use-0": made})
    content = (word for at, data in made.pieces for word in ("--content", f"{at}:{data.hex()}"))
    command = [
        str(REGION_HOOK),
        "--region",
        str(folder.region("use-0")),
        "--size",
        str(made.size),
        *content,
        "--claim",
        "bench/claim",
        "--pod",
        _UID,
    ]
    hook, nothing = [], []
    for _ in range(count):
        hook.append(_run(command))
        nothing.append(_run(["/bin/true"]))
    return hook, nothing


def _run(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, input=json.dumps(_STATE).encode(), env={}, check=True, timeout=10)
    return (time.perf_counter() - started) * 1000
