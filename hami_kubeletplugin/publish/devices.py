"""GPUs as devices of a ResourceSlice: attributes, capacities and their request policies. Pure.

Contract: resource.k8s.io/v1 types.go (limits, policies), KEP-5075 (consumable capacity).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.gpu.attributes import attributes, nvlink_groups
from hami_kubeletplugin.gpu.capacity import capacity
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.kube import quantity

Device = dict[str, Any]
"""One device in its v1 JSON form."""


def devices(gpus: Sequence[Gpu], sharing: Sharing) -> list[Device]:
    """The devices for these GPUs, in PCI bus order: so the scheduler fills them, unless `order` says another one."""
    groups = nvlink_groups(gpus)
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_order)
    return [device(gpu, sharing, groups.get(gpu.pci_bus_id)) for gpu in ordered]


def device(gpu: Gpu, sharing: Sharing, nvlink_group: str | None = None) -> Device:
    """One shared GPU."""
    return {
        "name": gpu.device_name,
        "attributes": dict(attributes(gpu, nvlink_group)),
        "capacity": _capacity(gpu, sharing),
        "allowMultipleAllocations": True,
    }


def uuid(device: Device) -> str:
    """The UUID of a device's GPU."""
    return str(device["attributes"][names.UUID]["string"])


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
