"""What is shown of GPUs and containers: what is in use, beside what is given out. Pure.

A GPU is shown by the driver that gives it out. So a cluster has each GPU once, though two drivers are on a node, or a device
plugin with its own exporter: one of them publishes it, and by what it has prepared it shows on what it no longer publishes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.usage import UNUSED, Usage
from hami_kubeletplugin.gpu.capacity import Capacity, capacity
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.usage.model import OfContainer, OfGpu, OfNode, OnGpu
from hami_kubeletplugin.usage.shares import Part, parts, shares


@dataclass(frozen=True, slots=True)
class GivenGpu:
    """One GPU that we give out, or have given out.

    Attributes:
        gpu: Itself.
        index: NVML's.
        there: What there is of it, as published.
        held: What prepared claims hold of it; None if that can't be told.
        used: As NVML tells; None if it doesn't.
    """

    gpu: Gpu
    index: int
    there: Capacity
    held: Usage | None
    used: OfGpu | None


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown.

    Attributes:
        node: The node.
        at: UNIX time at which it was so.
        gpus: In bus order.
        containers: As they were found.
    """

    node: str
    at: float = 0.0
    gpus: tuple[GivenGpu, ...] = ()
    containers: tuple[OfContainer, ...] = ()

    def by_container(self) -> Iterable[Part]:
        """Once for each container and GPU: one with several claims has all of them in one region."""
        return _each_once(parts(self.containers), lambda of, on: (of.namespace, of.pod, of.container, on.uuid))

    def by_claim(self) -> Iterable[Part]:
        """Once for each claim, container and GPU."""
        return _each_once(
            parts(self.containers), lambda of, on: (of.namespace, of.claim.name, of.pod, of.container, on.uuid)
        )

    def shares(self) -> Iterator[Part]:
        """What containers were given, each share once."""
        return shares(self.containers)


def view(
    node: str,
    usage: OfNode,
    *,
    gpus: Iterable[Gpu],
    published: Collection[str],
    held: Mapping[str, Usage] | None,
    sharing: Sharing,
    index: Mapping[str, int],
) -> View:
    """Join what is known.

    Args:
        node: The node.
        usage: What is in use.
        gpus: The node's, in bus order.
        published: UUIDs of those that we publish.
        held: What prepared claims hold, by UUID; None if that can't be told.
        sharing: How much there is of a GPU.
        index: NVML's, by UUID, as far as it has ever told them.
    """
    told = {each.uuid: each for each in usage.gpus}
    given = tuple(
        GivenGpu(
            gpu,
            index.get(gpu.uuid, place),
            capacity(gpu, sharing),
            None if held is None else held.get(gpu.uuid, UNUSED),
            told.get(gpu.uuid),
        )
        for place, gpu in enumerate(gpus)
        if gpu.uuid in published or gpu.uuid in (held or ())
    )
    return View(node, usage.at, given, usage.containers)


def _each_once(found: Iterable[Part], labels: Callable[[OfContainer, OnGpu], tuple[str, ...]]) -> Iterable[Part]:
    """Of those with equal labels, as of two pods of one name of which one has yet to be cleared away, the one in use."""
    shown: dict[tuple[str, ...], Part] = {}
    for part in found:
        key = labels(*part)
        shown[key] = max(shown.get(key, part), part, key=_busy)
    return shown.values()


def _busy(part: Part) -> tuple[int, int]:
    of, on = part
    return of.processes or 0, 0 if on.used is None else on.used.total
