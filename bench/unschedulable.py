"""Pods that fit nowhere: how long the scheduler takes to say so, and how long a pod without any GPU waits meanwhile."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, say
from bench.process import Places
from bench.scheduling import Refusal, busy_nodes

NODES: Final = 100
ROUNDS: Final = 3
SHARE: Final = {"nvidia.com/gpumem": "1000"}
NOWHERE: Final = {"nvidia.com/gpumem": "999999"}
"""No GPU has so much memory."""
KINDS: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "a GPU with too much memory": [NOWHERE],
    "8 GPUs, 7 free": [{"nvidia.com/gpu": "8"}],
    "9 GPUs on nodes of 8": [{"nvidia.com/gpu": "9"}],
    "7 GPUs and one of too much memory": [{"nvidia.com/gpu": "7"}, NOWHERE],
    "4 containers with a share, and one with too much": [*[SHARE] * 4, NOWHERE],
}
"""Limits of the containers, on nodes of 8 GPUs of which one is taken."""


async def measure(programs: Path, places: Places) -> list[Figure]:
    """Each kind of pod, in turns with one for a single GPU.

    Args:
        programs: Folder of hack/cluster/build.
        places: For the control plane.
    """
    work = places.disk / "control-plane"
    work.mkdir()
    found: dict[str, list[Refusal]] = {kind: [] for kind in KINDS}
    async with busy_nodes(programs, work, NODES) as scheduling:
        for _, (kind, limits) in itertools.product(range(ROUNDS), KINDS.items()):
            say(f"unschedulable: {kind}")
            found[kind].append(await scheduling.refused(limits))
    return [
        figure
        for kind, refusals in found.items()
        for figure in (
            Figure(f"{kind}: unschedulable", "s", [each.verdict for each in refusals], 0.5),
            Figure("    a plain pod meanwhile", "s", [each.bystander for each in refusals], 0.5),
        )
    ]
