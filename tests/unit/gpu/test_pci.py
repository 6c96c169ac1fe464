"""PCI addresses and what sysfs tells about them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.gpu import pci

addresses = st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
BUS_ID = "0000:07:00.0"


@given(addresses)
def test_every_form_of_an_address_becomes_the_form_of_sysfs(address: tuple[int, int, int, int]) -> None:
    """NVML's eight upper-case digits, and sysfs's own form, give sysfs's form; normalising twice changes nothing."""
    domain, bus, device, function = address
    sysfs = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert pci.normalise(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == sysfs
    assert pci.normalise(sysfs) == sysfs


@given(st.text(max_size=24))
def test_no_text_makes_it_raise_or_give_an_empty_string(text: str) -> None:
    """Whatever comes in: an address or None."""
    assert pci.normalise(text) != ""
    assert pci.pcie_root(Path("/nowhere"), text) is None
    assert pci.numa_node(Path("/nowhere"), text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0000:07:00",
        "07:00.0",
        "0000:07:00.8",
        "0000:07:20.0",
        "0000:g7:00.0",
        "000000000:07:00.0",
        f"{BUS_ID}\n",
        "\u0660\u0660\u0660\u0660:07:00.0",
    ],
)
def test_what_is_no_address_is_none(text: str) -> None:
    """Missing parts, impossible device and function numbers, other scripts' digits, trailing line ends."""
    assert pci.normalise(text) is None


def test_a_vmd_domain_keeps_its_longer_form() -> None:
    """Domains over 16 bits are written with five or more digits by the kernel too."""
    assert pci.normalise("00010000:E1:00.0") == "10000:e1:00.0"


def link(sysfs: Path, target: str, bus_id: str = BUS_ID) -> Path:
    """A sysfs in which the device's entry leads to `target`."""
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    (sysfs / "bus/pci/devices" / bus_id).symlink_to(target)
    return sysfs


GUID = "47505500-0001-0000-3130-444532304235"


@pytest.mark.parametrize(
    ("target", "root"),
    [
        (f"../../../devices/pci0000:00/{BUS_ID}", "pci0000:00"),
        (f"../../../devices/pci0000:00/0000:00:01.0/0000:02:00.0/{BUS_ID}", "pci0000:00"),
        (f"/sys/devices/pci0000:5d/0000:5d:00.0/{BUS_ID}", "pci0000:5d"),
        (f"../../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/{GUID}/pci0001:00/{BUS_ID}", "pci0001:00"),
        (f"../../../devices/pci0000:c9/0000:c9:00.5/pci10000:e0/10000:e0:02.0/{BUS_ID}", "pci0000:c9"),
        (f"../../../devices/LNXSYSTM:00/VMBUS:00/{GUID}/{BUS_ID}", None),
        ("../../../devices/pci0000:00/0000:08:00.0", None),
        (f"../../../pci0000:00/{BUS_ID}", None),
        ("../../../devices/pci0000:00", None),
        ("devices", None),
        (f"../../../devices/pci0000/{BUS_ID}", None),
    ],
    ids=[
        "direct",
        "behind bridges",
        "absolute",
        "hyper-v",
        "vmd",
        "no root",
        "other device",
        "not in devices",
        "root itself",
        "short",
        "garbage",
    ],
)
def test_the_root_is_read_from_where_the_link_leads(tmp_path: Path, target: str, root: str | None) -> None:
    """The physical root, wherever it stands in the path; None where the path names none, or another device."""
    assert pci.pcie_root(link(tmp_path, target), BUS_ID) == root


def test_a_long_domain_has_a_root_too(tmp_path: Path) -> None:
    """A device of a VMD domain is found under its longer name."""
    target = "../../../devices/pci0000:c9/0000:c9:00.5/pci10000:e0/10000:e1:00.0"
    assert pci.pcie_root(link(tmp_path, target, "10000:e1:00.0"), "10000:e1:00.0") == "pci0000:c9"


def test_without_sysfs_all_is_unknown(tmp_path: Path) -> None:
    """No sysfs, no such device, or a plain directory in place of the link: None."""
    assert pci.pcie_root(tmp_path, BUS_ID) is None
    assert pci.numa_node(tmp_path, BUS_ID) is None
    (tmp_path / "bus/pci/devices" / BUS_ID).mkdir(parents=True)
    assert pci.pcie_root(tmp_path, BUS_ID) is None
    assert pci.numa_node(tmp_path, BUS_ID) is None


@pytest.mark.parametrize(
    ("content", "node"),
    [
        (b"0\n", 0),
        (b"3", 3),
        (b"1023\n", 1023),
        (b"-1\n", None),
        (b"1024\n", None),
        (b"", None),
        (b"1_0", None),
        (b"\xff\n", None),
        (b"99999", None),
    ],
)
def test_the_numa_node_is_a_number_from_0_to_1023_or_unknown(tmp_path: Path, content: bytes, node: int | None) -> None:
    """The kernel's -1 is unknown, and so is everything that is no node number."""
    device = tmp_path / "bus/pci/devices" / BUS_ID
    device.mkdir(parents=True)
    (device / "numa_node").write_bytes(content)
    assert pci.numa_node(tmp_path, BUS_ID) == node
