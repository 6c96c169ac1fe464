"""Which kinds of GPU the cluster has, from the ResourceSlices of our driver on all nodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.informer import list_and_watch
from hami_kubeletplugin.kube.resource_api import KubeClient, Listed, kept
from hami_kubeletplugin.webhook.conversion.template import GpuSize

_BEYOND: Final = 1 << 63
"""No quantity gets here; a template that named one would be refused."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one slice says, without repeats: a node with 16 equal GPUs says one thing."""

    sizes: frozenset[GpuSize]
    slots: frozenset[int]


class PublishedSizes:
    """The GPUs that can be shared. Ask at any time; what the API server said last counts.

    Args:
        client: Open for as long as `run` runs.
        driver: Driver name.
    """

    def __init__(self, client: KubeClient, driver: str) -> None:
        self._client, self._driver = client, driver
        self._slices: dict[str, _Seen] = {}
        self._known: tuple[GpuSize, ...] = ()
        self._slots: frozenset[int] = frozenset()
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
        return await kept(self._client.slice_pages(self._driver), lambda item: (item["metadata"]["name"], _seen(item)))

    def replace(self, listed: Listed[tuple[str, _Seen]]) -> None:
        """Take a list in."""
        self._slices = dict(listed.items)
        self._synced = True
        self._sum_up()

    def take(self, event: Event) -> None:
        """Take an event of the watch in."""
        if event.type == "BOOKMARK":
            return
        name = event.object["metadata"]["name"]
        if event.type == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = _seen(event.object)
        self._sum_up()

    def _sum_up(self) -> None:
        self._known = tuple(sorted(frozenset[GpuSize]().union(*(seen.sizes for seen in self._slices.values()))))
        self._slots = frozenset[int]().union(*(seen.slots for seen in self._slices.values()))


def _seen(slice_: Object) -> _Seen:
    devices = list(_shared_devices(slice_))
    sizes = (GpuSize(_model(device), size) for device in devices if (size := _memory_mib(device)))
    return _Seen(frozenset(sizes), frozenset(slot for device in devices if (slot := _smallest_share(device))))


def _shared_devices(slice_: Object) -> Iterator[Any]:
    for device in fields.sequence(fields.at(slice_, "spec", "devices")):
        if fields.at(device, "allowMultipleAllocations") is True:
            yield device


def _model(device: Any) -> str:
    return str(fields.at(device, "attributes", names.PRODUCT_NAME, "string") or "")


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
