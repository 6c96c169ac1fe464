"""Which GPUs the cluster has, from the ResourceSlices of our driver on all nodes.

Of a slice its UUIDs are kept, and what its devices have in common with those of others, once for all nodes that are alike.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.informer import list_and_watch
from hami_kubeletplugin.kube.resource_api import KubeClient, Listed, kept
from hami_kubeletplugin.webhook.conversion.fleet import Kind, Node
from hami_kubeletplugin.webhook.conversion.template import GpuSize

_BEYOND: Final = 1 << 63
"""No quantity gets here; a template that named one would be refused."""


_MOST_NODES: Final = 64
"""Different ones. With more of them nothing is said about what none has: each pod is held against all."""
_T = TypeVar("_T")


class _Seen(NamedTuple):
    """What one slice says."""

    node: str
    kinds: Node
    slots: frozenset[int]
    uuids: tuple[str, ...]


class Sizes:
    """The GPUs that can be shared. Ask at any time; what was taken in last counts."""

    def __init__(self) -> None:
        self._slices: dict[str, _Seen] = {}
        self._known: tuple[GpuSize, ...] = ()
        self._slots: frozenset[int] = frozenset()
        self._nodes: frozenset[Node] = frozenset()
        self._slice_of: dict[str, str] = {}
        """UUID -> the name of the last slice that has it."""
        self._synced = False

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        return self._synced

    def known(self) -> Sequence[GpuSize]:
        """Each kind of GPU once, in order."""
        return self._known

    def slots(self) -> frozenset[int]:
        """The smallest values that a claim can have for `shares` on those GPUs."""
        return self._slots

    @property
    def nodes(self) -> frozenset[Node]:
        """The different nodes; see `fleet.Fleet`."""
        return self._nodes

    def has(self, uuid: str) -> bool:
        """Whether a GPU with that UUID is published."""
        return uuid in self._slice_of

    def replace(self, listed: Listed[tuple[str, _Seen]]) -> None:
        """Take a list in."""
        self._slices = dict(listed.items)
        self._slice_of = {uuid: name for name, seen in self._slices.items() for uuid in seen.uuids}
        self._synced = True
        self._sum_up()

    def take(self, event: Event) -> None:
        """Take an event of the watch in."""
        if event.type == "BOOKMARK":
            return
        name = event.object["metadata"]["name"]
        before = self._slices.pop(name, None)
        now = None if event.type == "DELETED" else _seen(event.object)
        for uuid in before.uuids if before else ():
            if self._slice_of.get(uuid) == name:
                del self._slice_of[uuid]
        if now is not None:
            self._slices[name] = now
            self._slice_of.update(dict.fromkeys(now.uuids, name))
        # Most events are no news: a taint, another order.
        if before is None or now is None or before[:3] != now[:3]:
            self._sum_up()

    def _sum_up(self) -> None:
        slices = self._slices.values()
        kinds = frozenset(seen.kinds for seen in slices)
        self._known = tuple(sorted({GpuSize(kind.model, kind.memory_mib) for each in kinds for kind, _ in each}))
        self._slots = frozenset[int]().union(*{seen.slots for seen in slices})
        by_node: dict[str, Node] = {}
        for seen in slices:
            by_node[seen.node] = (*by_node.get(seen.node, ()), *seen.kinds)
        nodes = frozenset(by_node.values())
        self._nodes = nodes if len(nodes) <= _MOST_NODES else frozenset()


class PublishedSizes(Sizes):
    """Those that the API server has.

    Args:
        client: Open for as long as `run` runs.
        driver: Driver name.
    """

    def __init__(self, client: KubeClient, driver: str) -> None:
        super().__init__()
        self._client, self._driver = client, driver

    async def run(self) -> None:
        """Follow the slices until cancelled."""
        await list_and_watch(
            "ResourceSlices",
            self.listed,
            lambda since: self._client.watch_slices(self._driver, None, since),
            self,
        )

    async def listed(self) -> Listed[tuple[str, _Seen]]:
        """What the API server has now, as `replace` takes it."""
        return await kept(self._client.slice_pages(self._driver), seen)


def seen(slice_: Object) -> tuple[str, _Seen]:
    """What is kept of a slice, as `Sizes.replace` takes it."""
    return slice_["metadata"]["name"], _seen(slice_)


def _seen(slice_: Object) -> _Seen:
    devices = list(_shared_devices(slice_))
    kinds = Counter(Kind(_model(device), size, _cores(device)) for device in devices if (size := _memory_mib(device)))
    return _Seen(
        str(fields.at(slice_, "spec", "nodeName") or slice_["metadata"]["name"]),
        _once(tuple(sorted(kinds.items()))),
        _once(frozenset(slot for device in devices if (slot := _smallest_share(device)))),
        tuple(
            uuid for device in devices if isinstance(uuid := fields.at(device, "attributes", names.UUID, "string"), str)
        ),
    )


@lru_cache(maxsize=_MOST_NODES)
def _once(value: _T) -> _T:
    """The same object for equal ones: most nodes of a cluster are alike."""
    return value


def _shared_devices(slice_: Object) -> Iterator[Any]:
    for device in fields.sequence(fields.at(slice_, "spec", "devices")):
        if fields.at(device, "allowMultipleAllocations") is True:
            yield device


def _model(device: Any) -> str:
    return str(fields.at(device, "attributes", names.PRODUCT_NAME, "string") or "")


def _cores(device: Any) -> int:
    return _whole(fields.at(device, "capacity", names.CORES, "value")) or 0


def _memory_mib(device: Any) -> int | None:
    """None also for what isn't whole MiB, which we don't publish and no selector would find."""
    memory = _whole(fields.at(device, "capacity", names.MEMORY, "value"))
    return memory // names.MIB if memory and memory % names.MIB == 0 else None


def _smallest_share(device: Any) -> int | None:
    values = fields.sequence(fields.at(device, "capacity", names.SHARES, "requestPolicy", "validValues"))
    return _whole(values[0]) if values else None


def _whole(text: Any) -> int | None:
    """A positive whole number; None for all else that a device of somebody else's making may say."""
    try:
        value = quantity.parse(str(text))
    except ValueError:
        return None
    return int(value) if 0 < value < _BEYOND and value.denominator == 1 else None
