"""Simulated hardware: the same `Inventory` as NVML would give, from a profile's name or from a file (`nodefile`)."""

import asyncio
import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, SettingsError
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.gpu import nodefile, profiles
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.gpu.nodefile import SimulatedGpu, SimulatedNode
from hami_kubeletplugin.gpu.profiles import Location

_UUIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.gpu.hami.io")
_PRODUCT: Final = {"name", "brand", "architecture", "compute_capability", "memory_mib"}
"""What a model says about a GPU, and a file may say instead."""
_READ_LIMIT: Final = 10.0  # seconds; the file may lie on a network


class SimulatedSource:
    """The GPUs that a profile or a file says; a `GpuSource`.

    A file is read again by every look, so editing it is how a GPU or the driver goes away under a running daemon.
    """

    def __init__(self, simulate: str, node_name: str) -> None:
        """Check the profile or file once, so that a mistake stops the program at its start.

        Args:
            simulate: A profile's name (`a100x8`, `mixed` …), or else the path of a YAML file.
            node_name: Goes into the UUIDs: equal on every start, different between nodes.

        Raises:
            SettingsError: It is neither, or the file is wrong; names the field.
        """
        self._node_name = node_name
        self._file = Path(simulate) if profiles.profile(simulate) is None else None
        self._node = SimulatedNode(profile=simulate) if self._file is None else nodefile.read(self._file)

    async def discover(self) -> Inventory:
        """Look again.

        Raises:
            DriverMissing: The file says `driver: missing`.
            HardwareError: The file can't be read any more, or has become wrong.
        """
        if self._file is not None:
            try:
                async with asyncio.timeout(_READ_LIMIT):
                    self._node = await asyncio.to_thread(nodefile.read, self._file)
            except SettingsError as error:
                raise HardwareError(f"simulated hardware: {error}") from error
            except TimeoutError:
                raise HardwareError(
                    f"simulated hardware: no answer within {_READ_LIMIT:g} s from {self._file}"
                ) from None
        if self._node.driver == "missing":
            raise DriverMissing(f"the simulated node {self._file} says `driver: missing`; looking again later")
        return inventory(self._node, self._node_name)


def inventory(node: SimulatedNode, node_name: str) -> Inventory:
    """The GPUs of a simulated node, less those that are absent."""
    gpus = {
        minor: _gpu(node, gpu, minor, place, node_name)
        for gpu, minor, place in zip(node.gpus, node.minors, node.places, strict=True)
    }
    neighbours = _neighbours(node, gpus)
    here = gpus.keys() - node.absent
    joined = (
        dataclasses.replace(
            gpus[minor], nvlink_peers=frozenset(gpus[peer].pci_bus_id for peer in neighbours[minor] & here)
        )
        for minor in here
    )
    return Inventory(tuple(sorted(joined, key=lambda gpu: gpu.bus_order)))


def _gpu(node: SimulatedNode, gpu: SimulatedGpu, minor: int, place: Location, node_name: str) -> Gpu:
    product = gpu.model_dump(include=_PRODUCT, exclude_unset=True)
    if gpu.model is not None:
        model = profiles.MODELS[gpu.model]._asdict()
        product = {field: model[field] for field in _PRODUCT} | product
    product.setdefault("compute_capability", None)
    return Gpu(
        uuid=gpu.uuid or f"GPU-{uuid.uuid5(_UUIDS, f'{node_name}/{minor}')}",
        minor=minor,
        memory_bytes=product.pop("memory_mib") * MIB,
        driver_version=node.driver,
        cuda_driver_version=node.cuda,
        **{"brand": "", "architecture": ""} | product,
        **place._asdict(),
    )


def _neighbours(node: SimulatedNode, gpus: Mapping[int, Gpu]) -> dict[int, set[int]]:
    """By minor: the minors at the other end of its NVLinks, which join both ways."""
    neighbours: dict[int, set[int]] = {minor: set() for minor in gpus}
    boards: dict[tuple[str, str], list[int]] = {}
    for gpu, minor in zip(node.gpus, node.minors, strict=True):
        if gpu.nvlink is not None:
            for peer in set(gpu.nvlink) - {minor}:
                neighbours[minor].add(peer)
                neighbours[peer].add(minor)
        elif gpu.model is not None and profiles.MODELS[gpu.model].nvlink:
            domain = gpus[minor].pci_bus_id.partition(":")[0]
            boards.setdefault((gpu.model, domain), []).append(minor)
    for board in boards.values():
        for minor in board:
            neighbours[minor].update(set(board) - {minor})
    return neighbours
