"""What containers were given and use, all together: nothing counts twice. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from hami_kubeletplugin.usage.model import OfContainer, OnGpu

Part = tuple[OfContainer, OnGpu]
"""What one container has of one GPU through one claim."""


def parts(containers: Iterable[OfContainer]) -> Iterator[Part]:
    """All of them."""
    return ((of, on) for of in containers for on in of.gpus)


def shares(containers: Iterable[OfContainer]) -> Iterator[Part]:
    """What containers were given, each share once, so that sums are what the scheduler gave out.

    What several containers have together is said of one: of the last of the first pod, so not of an init container if another
    one has it too. What one has through several claims is said of one of them, as each says what it has through all.
    """
    of_container: dict[tuple[str, str, int, str, str], list[Part]] = {}
    for of, on in parts(containers):
        place = (of.pod, of.pod_uid, -(of.container_index or 0), of.container, on.uuid)
        of_container.setdefault(place, []).append((of, on))
    counted: set[tuple[str, int, str]] = set()
    for _, its in sorted(of_container.items(), key=lambda item: item[0]):
        keys = {(of.claim.uid, of.use, on.uuid) for of, on in its}
        if counted.isdisjoint(keys):
            yield its[0]
        counted |= keys


def held(containers: Iterable[OfContainer]) -> Mapping[str, tuple[int, int]]:
    """Bytes, and percent, that containers are known to use, by GPU UUID; each container counts once, whatever its claims."""
    each = {
        (of.pod_uid, of.container, gpu.uuid): (gpu.used.total if gpu.used else 0, gpu.utilization or 0)
        for of in containers
        for gpu in of.gpus
    }
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for (_, _, uuid), (memory, busy) in each.items():
        sums[uuid] = sums[uuid][0] + memory, min(sums[uuid][1] + busy, 100)
    return sums
