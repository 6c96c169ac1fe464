"""PCI addresses, and what sysfs knows about them.

Contract: k8s.io/dynamic-resource-allocation deviceattribute (pci_linux.go) and KEP-6072 for the form of `pciBusID`, `pcieRoot`
and `numaNode`, widened by the cases where that code gives up: Hyper-V's paths, VMD's long domains, absolute links.

What can't be told is None. Nothing here raises, and no result is an empty string.
"""

import re
from pathlib import Path
from typing import Final

_NVML_BUS_ID: Final = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE | re.ASCII)
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_NUMA_MAX: Final = 1023
"""Highest node that the attribute may name (KEP-6072); the kernel's own limit, MAX_NUMNODES, is the same."""


def normalise(bus_id: str) -> str | None:
    """A PCI bus id in sysfs's form, `dddd:bb:dd.f` in lower case.

    NVML writes the domain with eight digits and in upper case. A domain over 16 bits (VMD) keeps its longer form.

    Returns:
        None if this is no PCI bus id.
    """
    match = _NVML_BUS_ID.fullmatch(bus_id)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def pcie_root(sysfs: Path, bus_id: str) -> str | None:
    """The PCIe root above a device, e.g. `pci0000:00`: devices with the same one share a root complex.

    Taken from where the link `bus/pci/devices/<bus_id>` points to: the first component below `devices/` that names a root.
    Mostly that is the first of all; on Hyper-V it comes after the ACPI path of the virtual bus
    (`devices/LNXSYSTM:00/…/VMBUS:00/<guid>/pci0001:00/…`), and below VMD the physical root comes before VMD's own.

    Args:
        sysfs: Where sysfs is mounted, e.g. `/sys`.
        bus_id: In the form of `normalise`.
    """
    if _BUS_ID.fullmatch(bus_id) is None:
        return None
    try:
        target = (sysfs / "bus/pci/devices" / bus_id).readlink().parts
    except OSError:
        return None
    if "devices" not in target or target[-1] != bus_id:
        return None
    below = target[target.index("devices") + 1 : -1]
    return next((part for part in below if _ROOT.fullmatch(part)), None)


def numa_node(sysfs: Path, bus_id: str) -> int | None:
    """The NUMA node of a device, 0..1023. The kernel's -1 means that it does not know: None.

    Args:
        sysfs: Where sysfs is mounted, e.g. `/sys`.
        bus_id: In the form of `normalise`.
    """
    if _BUS_ID.fullmatch(bus_id) is None:
        return None
    try:
        text = (sysfs / "bus/pci/devices" / bus_id / "numa_node").read_bytes().strip()
    except OSError:
        return None
    # ASCII digits and no more: int() would also take "1_0" and digits of other scripts.
    if re.fullmatch(rb"\d{1,4}", text) is None:
        return None
    node = int(text)
    return node if node <= _NUMA_MAX else None
