"""What the rest of the house knows about GPUs: plain values, and the interface that produces them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from hami_kubeletplugin.api.names import device_name


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU.

    Attributes:
        uuid: `GPU-` and 36 characters, as NVML says.
        minor: N of /dev/nvidiaN.
        pci_bus_id: Lower case `dddd:bb:dd.f`; a domain over 16 bits (VMD) keeps its longer form.
        name: The product, e.g. `NVIDIA A100-SXM4-40GB`.
        brand: NVML's brand in words, e.g. `Tesla`; empty if unknown.
        architecture: E.g. `Ampere`; empty if unknown.
        compute_capability: (major, minor), or None if unknown.
        memory_bytes: All of its memory.
        driver_version: As NVML says, e.g. `550.54.15`.
        cuda_driver_version: (major, minor) of the newest CUDA that the driver serves, or None if unknown.
        pcie_root: `pci0000:00`, or None if unknown.
        numa_node: 0..1023, or None if unknown.
        nvlink_peers: PCI bus ids of the GPUs at the other end of its active NVLinks.
        device_name: Its name in the ResourceSlice; its minor's unless `device_names` has given it another.
    """

    uuid: str
    minor: int
    pci_bus_id: str
    name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int
    driver_version: str
    cuda_driver_version: tuple[int, int] | None
    pcie_root: str | None
    numa_node: int | None
    nvlink_peers: frozenset[str] = frozenset()
    device_name: str = ""

    def __post_init__(self) -> None:
        if not self.device_name:
            object.__setattr__(self, "device_name", device_name(self.minor))

    @property
    def bus_order(self) -> tuple[int, int, int, int]:
        """Sort key: the order in which NVML and CUDA_DEVICE_ORDER=PCI_BUS_ID number the GPUs that a container sees."""
        return _bus_order(self.pci_bus_id)


@lru_cache(maxsize=1024)
def _bus_order(pci_bus_id: str) -> tuple[int, int, int, int]:
    domain, bus, rest = pci_bus_id.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)


@dataclass(frozen=True, slots=True)
class Unread:
    """A GPU that the driver lists and that can't be read.

    Attributes:
        uuid: None if not even that can be read.
        error: Why.
    """

    uuid: str | None
    error: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of a node that can be published, in PCI bus order.

    Attributes:
        gpus: They.
        unread: Others that are there, too.
        lost: UUIDs of those among `gpus` that could be read before and can't now, and why; see `watch`.
    """

    gpus: tuple[Gpu, ...] = ()
    unread: tuple[Unread, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()

    def by_device_name(self) -> dict[str, Gpu]:
        """Those that can be used, by published name."""
        lost = {uuid for uuid, _ in self.lost}
        return {gpu.device_name: gpu for gpu in self.gpus if gpu.uuid not in lost}

    def by_uuid(self) -> dict[str, Gpu]:
        """All, by UUID, which alone survives a reboot unchanged."""
        return {gpu.uuid: gpu for gpu in self.gpus}


class GpuSource(Protocol):
    """Finds the GPUs of this node. NVML and the simulation are the two that exist."""

    async def discover(self) -> Inventory:
        """Look again at the hardware.

        Raises:
            DriverMissing: No driver on the node yet.
            NvmlCallFailed: The node as a whole could not be asked. A single bad GPU is left out with a warning instead.
        """
