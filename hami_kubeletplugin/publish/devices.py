"""GPUs as devices of a ResourceSlice: attributes, capacities and their request policies. Pure.

Contract: resource.k8s.io/v1 types.go (limits, policies), KEP-5075 (consumable capacity), KEP-6072 (standard attributes).
Attribute names without a domain belong to the driver's own. What is unknown is left out, never published as "" or -1.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.gpu.capacity import capacity
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.kube import quantity

Device = dict[str, Any]
"""One device in its v1 JSON form."""

_LONGEST_VALUE: Final = 64
_VERSION: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,18}))?(?![0-9])")
_BUS_ID: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def devices(gpus: Sequence[Gpu], sharing: Sharing) -> list[Device]:
    """The devices for these GPUs, in PCI bus order: so the scheduler fills them, unless `order` says another one."""
    groups = nvlink_groups(gpus)
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_order)
    return [device(gpu, sharing, groups.get(gpu.pci_bus_id)) for gpu in ordered]


def device(gpu: Gpu, sharing: Sharing, nvlink_group: str | None = None) -> Device:
    """One shared GPU."""
    return {
        "name": gpu.device_name,
        "attributes": dict(_attributes(gpu, nvlink_group)),
        "capacity": _capacity(gpu, sharing),
        "allowMultipleAllocations": True,
    }


def uuid(device: Device) -> str:
    """The UUID of a device's GPU."""
    return str(device["attributes"][names.UUID]["string"])


def nvlink_groups(gpus: Sequence[Gpu]) -> dict[str, str]:
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


def _attributes(gpu: Gpu, nvlink_group: str | None) -> Iterator[tuple[str, Mapping[str, object]]]:
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


def _capacity(gpu: Gpu, sharing: Sharing) -> Mapping[str, Any]:
    there = capacity(gpu, sharing)
    memory = quantity.binary(there.memory_mib * names.MIB)
    return {
        names.MEMORY: {
            "value": memory,
            "requestPolicy": {
                "default": memory,
                "validRange": {"min": "1Mi", "step": "1Mi"},
            },
        },
        # No request means no reservation and no throttling, as an absent gpucores does in HAMi.
        names.CORES: {
            "value": quantity.decimal(there.cores),
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "max": quantity.decimal(min(there.cores, 100)), "step": "1"},
            },
        },
        # One slot per allocation caps how many share the GPU; all of them make it exclusive.
        names.SHARES: {
            "value": quantity.decimal(there.slots),
            "requestPolicy": {
                "default": quantity.decimal(there.slot),
                "validValues": [quantity.decimal(value) for value in sorted({there.slot, there.slots})],
            },
        },
    }
