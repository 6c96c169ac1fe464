"""Which GPU a device's name means: one and the same for ever, whatever minors the driver gives out.

A GPU is called after its minor when it is first seen. Minors follow from the order in which the driver finds the GPUs, so after a
reboot two of them may be swapped, or all be moved by one that failed; and the scheduler may have allocated a device by its name
before that. So names are kept, by UUID, and none is ever given to another GPU.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import HardwareError, StorageError
from hami_kubeletplugin.api.names import device_name
from hami_kubeletplugin.gpu.model import Gpu, GpuSource, Inventory
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

Names = Mapping[str, str]
"""UUIDs by device name: all names that were ever given on this node."""


def name_all(gpus: Sequence[Gpu], given: Names) -> tuple[tuple[Gpu, ...], Names]:
    """The GPUs with their names, and all names that are given now. Pure.

    A GPU that has none yet gets its minor's; if that is another one's, the first that nobody ever had.
    """
    of = {uuid: name for name, uuid in given.items()}
    names = dict(given)
    for gpu in gpus:
        if gpu.uuid not in of and device_name(gpu.minor) not in names:
            of[gpu.uuid] = device_name(gpu.minor)
            names[of[gpu.uuid]] = gpu.uuid
    for gpu in gpus:
        if gpu.uuid not in of:
            of[gpu.uuid] = next(name for name in map(device_name, count()) if name not in names)
            names[of[gpu.uuid]] = gpu.uuid
    return tuple(replace(gpu, device_name=of[gpu.uuid]) for gpu in gpus), names


def read(path: Path) -> Names | None:
    """The names in a file; None if there is none, or it can't be used.

    Raises:
        StorageError: It is there and can't be read.
    """
    content = files.read(path)
    if content is None:
        return None
    try:
        names = json.loads(content)
    except (ValueError, RecursionError):
        names = None
    if isinstance(names, dict) and all(isinstance(uuid, str) for uuid in names.values()):
        return names
    log.warning("device names can't be read and are made anew from what is prepared", path=str(path))
    return None


class NamedGpus:
    """A `GpuSource` whose GPUs keep their names.

    Args:
        source: Finds them.
        path: Where the names are kept.
        prepared: UUIDs by the names that prepared claims have, for when the file is lost. None: nothing is written.
    """

    def __init__(self, source: GpuSource, path: Path, prepared: Callable[[], Names] | None = None) -> None:
        self._source, self._path, self._prepared = source, path, prepared

    async def discover(self) -> Inventory:
        """See `GpuSource`. A name that can't be kept is not given.

        Raises:
            HardwareError: As the source, or names can't be read or kept.
        """
        inventory = await self._source.discover()
        return await asyncio.to_thread(self._named, inventory)

    def _named(self, inventory: Inventory) -> Inventory:
        try:
            kept = read(self._path)
            given = kept if kept is not None else self._prepared() if self._prepared else {}
            gpus, names = name_all(inventory.gpus, given)
            if self._prepared and names != kept:
                files.write(self._path, json.dumps(names, indent=2).encode(), durable=True)
        except StorageError as error:
            raise HardwareError(f"names of devices can't be kept, so none are published anew: {error}") from error
        return replace(inventory, gpus=gpus)
