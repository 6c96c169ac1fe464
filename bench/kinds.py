"""How many pods a second get a node, for each kind of pod that people write, as Kubernetes comes and with its limits raised."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.control_plane import Rates
from bench.figures import Figure, say
from bench.process import Places
from bench.scheduling import RAISED, WHOLE, Wanted, idle_nodes

NODES: Final = 100
CROWD: Final = 200
GPUS: Final = 8 * NODES
SETTINGS: Final[Mapping[str, Rates | None]] = {"defaults": None, "raised": RAISED}
KINDS: Final[Mapping[str, tuple[int, Wanted]]] = {
    "plain": (0, Wanted()),
    "a share": (1, Wanted([{"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "10"}])),
    "a whole GPU": (1, Wanted([WHOLE])),
    "a percentage of the memory": (1, Wanted([{"nvidia.com/gpumem-percentage": "50"}])),
    "use-gputype": (1, Wanted([WHOLE], {"nvidia.com/use-gputype": "A100"})),
    "2 GPUs": (2, Wanted([{"nvidia.com/gpu": "2"}])),
    "2 GPUs, numa-bind": (2, Wanted([{"nvidia.com/gpu": "2"}], {"nvidia.com/numa-bind": "true"})),
    "4 GPUs, same-nvlink": (4, Wanted([{"nvidia.com/gpu": "4"}], {"gpu.hami.io/same-nvlink": "true"})),
    "8 GPUs": (8, Wanted([{"nvidia.com/gpu": "8"}])),
    "by the DeviceClass's own resource": (1, Wanted([{"deviceclass.resource.kubernetes.io/gpu.hami.io": "1"}])),
}
"""GPUs of a pod at the most, and what its author writes."""


async def measure(programs: Path, places: Places) -> list[Figure]:
    """Each kind of pod, for each setting: 200 at once, or as many as there are GPUs for.

    Args:
        programs: Folder of hack/cluster/build.
        places: For the control planes.
    """
    found = []
    for setting, rates in SETTINGS.items():
        for number, (kind, (gpus, wanted)) in enumerate(KINDS.items()):
            # One of its own for each: what controllers have still to do for pods that are gone would count.
            work = places.disk / f"{setting}-{number}"
            work.mkdir()
            count = min(CROWD, (GPUS - gpus) // gpus) if gpus else CROWD
            say(f"kinds: {kind}, {setting}")
            async with idle_nodes(programs, work, NODES, rates) as scheduling:
                await scheduling.rate(wanted, 1)  # a first one, which doesn't count
                found.append(
                    Figure(f"{kind}, {count} at once, {setting}", "pods/s", [await scheduling.rate(wanted, count)])
                )
    return found
