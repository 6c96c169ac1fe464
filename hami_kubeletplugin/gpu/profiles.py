"""Simulated hardware as data: GPU models, the boards they sit on, and named nodes.

Numbers are those that NVML and sysfs show on such machines (memory is NVML's total; bus ids of DGX A100, an 8-GPU HGX board
and a two-socket server with four PCIe slots).
"""

import re
from typing import Final, NamedTuple

MAX_GPUS: Final = 1024
DRIVER_VERSION: Final = "550.54.15"
CUDA_DRIVER_VERSION: Final = (12, 4)


class Slot(NamedTuple):
    """A GPU's place on a board: PCI bus, bus of its PCIe root, NUMA node."""

    bus: int
    root: int
    numa: int


class Location(NamedTuple):
    """Where a GPU sits, as `Gpu` says it."""

    pci_bus_id: str
    pcie_root: str | None
    numa_node: int | None


class Model(NamedTuple):
    """A GPU product. `nvlink`: all GPUs of this model on one board are joined by NVLink switches."""

    name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_mib: int
    board: tuple[Slot, ...]
    nvlink: bool = False


_DGX_A100: Final = (
    Slot(0x07, 0x00, 3),
    Slot(0x0F, 0x00, 3),
    Slot(0x47, 0x40, 1),
    Slot(0x4E, 0x40, 1),
    Slot(0x87, 0x80, 7),
    Slot(0x90, 0x80, 7),
    Slot(0xB7, 0xA0, 5),
    Slot(0xBD, 0xA0, 5),
)
_HGX: Final = (
    Slot(0x1B, 0x15, 0),
    Slot(0x43, 0x3D, 0),
    Slot(0x52, 0x4C, 0),
    Slot(0x61, 0x5B, 0),
    Slot(0x9D, 0x97, 1),
    Slot(0xC3, 0xBD, 1),
    Slot(0xD1, 0xCB, 1),
    Slot(0xDF, 0xD9, 1),
)
SERVER: Final = (Slot(0x3B, 0x3A, 0), Slot(0x5E, 0x5D, 0), Slot(0x86, 0x85, 1), Slot(0xAF, 0xAE, 1))

MODELS: Final = {
    "a100": Model("NVIDIA A100-SXM4-40GB", "Nvidia", "Ampere", (8, 0), 40960, _DGX_A100, nvlink=True),
    "h100": Model("NVIDIA H100 80GB HBM3", "Nvidia", "Hopper", (9, 0), 81559, _HGX, nvlink=True),
    "h200": Model("NVIDIA H200", "Nvidia", "Hopper", (9, 0), 143771, _HGX, nvlink=True),
    "l40s": Model("NVIDIA L40S", "Nvidia", "Ada Lovelace", (8, 9), 46068, SERVER),
    "t4": Model("Tesla T4", "Tesla", "Turing", (7, 5), 15360, SERVER),
}

MIXED: Final[list[dict[str, str]]] = [
    # Minors against bus order, as after a GPU was added: whoever numbers by minor or by list order gets limits wrong here.
    {"model": "t4", "minor": "0", "pciBusID": "0000:af:00.0", "pcieRoot": "pci0000:ae", "numaNode": "1"},
    {"model": "l40s", "minor": "1", "pciBusID": "0000:86:00.0", "pcieRoot": "pci0000:85", "numaNode": "1"},
    {"model": "t4", "minor": "2", "pciBusID": "0000:3b:00.0", "pcieRoot": "pci0000:3a", "numaNode": "0"},
    {"model": "l40s", "minor": "3", "pciBusID": "0000:5e:00.0", "pcieRoot": "pci0000:5d", "numaNode": "0"},
]

KNOWN: Final = f"mixed, or <model>x<count> with a model of {', '.join(MODELS)} and 1 to {MAX_GPUS} GPUs, e.g. a100x8"


def profile(name: str) -> list[dict[str, str]] | None:
    """The `gpus:` of a named node, as they could stand in a file. None if there is no such name."""
    if name == "mixed":
        return MIXED
    match = re.fullmatch(r"([a-z0-9]+)x([1-9][0-9]{0,3})", name)
    if match is None or match[1] not in MODELS or int(match[2]) > MAX_GPUS:
        return None
    return [{"model": match[1]} for _ in range(int(match[2]))]


def place(board: tuple[Slot, ...], minor: int) -> Location:
    """Where the GPU with this minor sits: board after board, each in a PCI domain of its own."""
    domain, index = divmod(minor, len(board))
    bus, root, numa = board[index]
    numa_nodes = max(each.numa for each in board) + 1
    return Location(f"{domain:04x}:{bus:02x}:00.0", f"pci{domain:04x}:{root:02x}", domain * numa_nodes + numa)
