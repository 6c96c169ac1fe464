"""What is said about a GPU to the cluster and to containers: attributes in the form of resource.k8s.io/v1. Pure.

Contract: resource.k8s.io/v1 types.go (limits), KEP-6072 (standard attributes). Names without a domain belong to the driver's own.
What is unknown is left out, never said as "" or -1.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.gpu.model import Gpu

Attribute = Mapping[str, object]
"""One value below the name of its type: `{"string": "Ampere"}`."""

_LONGEST_VALUE: Final = 64
_VERSION: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,18}))?(?![0-9])")
_BUS_ID: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def attributes(gpu: Gpu, nvlink_group: str | None) -> Iterator[tuple[str, Attribute]]:
    """What is known of one GPU, by name."""
    texts = {
        names.TYPE: names.TYPE_SHARED,
        names.UUID: gpu.uuid,
        names.PRODUCT_NAME: gpu.name,
        names.BRAND: gpu.brand,
        names.ARCHITECTURE: gpu.architecture,
        names.DRIVER_VERSION_TEXT: gpu.driver_version,
        names.NVLINK_GROUP: nvlink_group,
        names.PCIE_ROOT: gpu.pcie_root,
        # The standard attribute knows 4-digit domains only; behind a VMD controller they are longer.
        names.PCI_BUS_ID: gpu.pci_bus_id if _BUS_ID.fullmatch(gpu.pci_bus_id) else None,
    }
    versions = {
        names.CUDA_COMPUTE_CAPABILITY: _dotted(gpu.compute_capability),
        names.DRIVER_VERSION: gpu.driver_version,
        names.CUDA_DRIVER_VERSION: _dotted(gpu.cuda_driver_version),
    }
    yield names.MINOR, {"int": gpu.minor}
    if gpu.numa_node is not None:
        yield names.NUMA_NODE, {"int": gpu.numa_node}
    for name, text in texts.items():
        if text:
            yield name, {"string": text.encode()[:_LONGEST_VALUE].decode(errors="ignore")}
    for name, version in versions.items():
        if valid := semver(version):
            yield name, {"version": valid}


def _dotted(numbers: tuple[int, int] | None) -> str:
    return ".".join(map(str, numbers or ()))


def attributes_of(gpus: Iterable[Gpu]) -> dict[str, dict[str, Attribute]]:
    """Those of all GPUs of a node, by UUID."""
    every = tuple(gpus)
    groups = nvlink_groups(every)
    return {gpu.uuid: dict(attributes(gpu, groups.get(gpu.pci_bus_id))) for gpu in every}


def nvlink_groups(gpus: Iterable[Gpu]) -> dict[str, str]:
    """PCI bus id -> the group's name, for GPUs that NVLink joins, directly or through others of these GPUs.

    The name is the bus id of the group's first GPU, so it stays when NVML numbers anew. A GPU on its own has no group.
    """
    by_bus_id = {gpu.pci_bus_id: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.bus_order)}
    joined: dict[str, set[str]] = {bus_id: set() for bus_id in by_bus_id}
    for gpu in by_bus_id.values():
        # One side is enough: NVML may see a link from one end only.
        for peer in (gpu.nvlink_peers & by_bus_id.keys()) - {gpu.pci_bus_id}:
            joined[gpu.pci_bus_id].add(peer)
            joined[peer].add(gpu.pci_bus_id)
    groups: dict[str, str] = {}
    for first in by_bus_id:
        unvisited = [first] if joined[first] and first not in groups else []
        while unvisited:
            member = unvisited.pop()
            if member not in groups:
                groups[member] = first
                unvisited.extend(joined[member])
    return groups


def semver(version: str) -> str | None:
    """A version as strict semver: `550.54.05` is `550.54.5`, `535.104` is `535.104.0`; None if it starts with no number.

    The API server refuses a whole slice for one version that is not semver.
    """
    found = _VERSION.match(version)
    return ".".join(str(int(part or 0)) for part in found.groups()) if found else None
