"""publish.devices: what is said about a GPU, and what of it can be consumed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.fake.api_slices import check_slice
from hami_kubeletplugin.gpu.attributes import nvlink_groups, semver
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.publish.devices import device, devices
from tests.unit.publish.fakes import bus_id, gpu


def as_slice(*described: dict[str, Any]) -> dict[str, Any]:
    """A slice of these devices, for the checks of the API server."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {"spec": {"driver": "gpu.hami.io", "nodeName": "n1", "pool": pool, "devices": list(described)}}


def test_whole_device() -> None:
    """A known GPU is published with exactly these attributes, capacities and policies."""
    assert device(gpu(3, pci_bus_id="0000:3b:00.0", numa_node=1), Sharing(), "0000:3a:00.0") == {
        "name": "hami-gpu-3",
        "allowMultipleAllocations": True,
        "attributes": {
            "type": {"string": "hami-gpu"},
            "uuid": {"string": "GPU-00000000-0000-0000-0000-000000000003"},
            "minor": {"int": 3},
            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            "brand": {"string": "Tesla"},
            "architecture": {"string": "Ampere"},
            "cudaComputeCapability": {"version": "8.0.0"},
            "driverVersion": {"version": "550.54.15"},
            "driverVersionText": {"string": "550.54.15"},
            "cudaDriverVersion": {"version": "12.4.0"},
            "nvlinkGroup": {"string": "0000:3a:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
        "capacity": {
            "memory": {
                "value": "40Gi",
                "requestPolicy": {"default": "40Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
            },
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
            },
            "shares": {"value": "10k", "requestPolicy": {"default": "1k", "validValues": ["1k", "10k"]}},
        },
    }


def test_unknown_facts_are_left_out() -> None:
    """What NVML or sysfs don't know is not published, rather than as an empty string, 0.0.0 or -1."""
    bare = gpu(
        brand="",
        architecture="",
        compute_capability=None,
        cuda_driver_version=None,
        pcie_root=None,
        numa_node=None,
        driver_version="",
        pci_bus_id="10000:01:00.0",
    )
    assert device(bare, Sharing())["attributes"].keys() == {"type", "uuid", "minor", "productName"}


@pytest.mark.parametrize(
    ("given_version", "valid"),
    [
        ("550.54.15", "550.54.15"),
        ("550.54.05", "550.54.5"),
        ("535.104", "535.104.0"),
        ("580", "580.0.0"),
        ("1.2.3.4", "1.2.3"),
        ("550.54.15-grid", "550.54.15"),
        ("", None),
        ("unknown", None),
    ],
)
def test_versions_become_semver(given_version: str, valid: str | None) -> None:
    """Versions are made strict semver, since the API server refuses the whole slice for one that isn't."""
    assert semver(given_version) == valid


def test_long_strings_are_cut_at_64_bytes() -> None:
    """A long product name is cut to what the API takes, never in the middle of a character."""
    name = device(gpu(name="é" * 60), Sharing())["attributes"]["productName"]["string"]
    assert name == "é" * 32
    odd = device(gpu(name="x" + "é" * 60), Sharing())["attributes"]["productName"]["string"]
    assert odd == "x" + "é" * 31


@pytest.mark.parametrize(
    ("scaling", "bytes_", "published"),
    [
        (1.0, 81_559 * 2**20 + 5, "81559Mi"),
        (2.0, 40 * 2**30, "80Gi"),
        (1.1, 10 * 2**20, "11Mi"),
        (1.5, 3 * 2**20, "4Mi"),
    ],
)
def test_memory_is_scaled_and_rounded_down_to_mib(scaling: float, bytes_: int, published: str) -> None:
    """Memory times its scaling is exact and rounded down to whole MiB; the default takes all of it."""
    memory = device(gpu(memory_bytes=bytes_), Sharing(device_memory_scaling=scaling))["capacity"]["memory"]
    assert (memory["value"], memory["requestPolicy"]["default"]) == (published, published)


@pytest.mark.parametrize(
    ("scaling", "value", "most"), [(1.0, "100", "100"), (2.5, "250", "100"), (0.5, "50", "50"), (0.29, "29", "29")]
)
def test_cores_are_percent(scaling: float, value: str, most: str) -> None:
    """The GPU has 100 x scaling cores, of which one claim takes at most 100; none asked is none reserved."""
    cores = device(gpu(), Sharing(device_core_scaling=scaling))["capacity"]["cores"]
    assert cores == {
        "value": value,
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": most, "step": "1"}},
    }


@pytest.mark.parametrize(
    ("split", "valid"), [(1, ["10k"]), (2, ["5k", "10k"]), (3, ["3333", "10k"]), (100, ["100", "10k"])]
)
def test_shares_are_slots(split: int, valid: list[str]) -> None:
    """One slot per sharer by default, all of them for an exclusive GPU; a split count of one leaves only the latter."""
    shares = device(gpu(), Sharing(device_split_count=split))["capacity"]["shares"]
    assert shares == {"value": "10k", "requestPolicy": {"default": valid[0], "validValues": valid}}


@given(st.integers(1, 100))
def test_split_count_caps_the_sharers(split: int) -> None:
    """Exactly as many default shares fit on a GPU as the split count says."""
    policy = device(gpu(), Sharing(device_split_count=split))["capacity"]["shares"]["requestPolicy"]
    assert 10_000 // quantity.parse(policy["default"]) == split


@given(
    st.integers(2 * 2**20, 2**50),
    st.floats(1, 100),
    st.floats(0.01, 100),
    st.integers(1, 100),
    st.text(min_size=1, max_size=80),
    st.text(max_size=40),
)
def test_every_device_is_valid(
    memory: int, memory_scaling: float, core_scaling: float, split: int, name: str, version: str
) -> None:
    """Whatever the GPU and the settings are, the API server's rules hold for the device."""
    sharing = Sharing(device_memory_scaling=memory_scaling, device_core_scaling=core_scaling, device_split_count=split)
    check_slice(as_slice(device(gpu(memory_bytes=memory, name=name, driver_version=version), sharing)), None)


def test_devices_come_in_bus_order() -> None:
    """The order is that of the PCI bus, as numbers, however NVML lists the GPUs."""
    gpus = [gpu(0, pci_bus_id="0000:c1:00.0"), gpu(1, pci_bus_id="10000:01:00.0"), gpu(2, pci_bus_id="0000:1f:00.0")]
    assert [d["name"] for d in devices(gpus, Sharing())] == ["hami-gpu-2", "hami-gpu-0", "hami-gpu-1"]


def test_nvlink_group_joins_what_is_linked() -> None:
    """GPUs that NVLink joins, also over a third one and also if one end only knows it, share a group; others have none."""
    links = {0: {1}, 1: {2}, 2: set(), 3: {4}, 4: {3}, 5: set(), 6: {6, 99}}
    gpus = [gpu(n, nvlink_peers=frozenset(bus_id(p) for p in peers)) for n, peers in links.items()]
    assert nvlink_groups(gpus) == {bus_id(n): bus_id(g) for n, g in {0: 0, 1: 0, 2: 0, 3: 3, 4: 3}.items()}
    attributes = {d["name"]: d["attributes"] for d in devices(gpus, Sharing())}
    assert attributes["hami-gpu-2"]["nvlinkGroup"] == attributes["hami-gpu-0"]["nvlinkGroup"]
    assert "nvlinkGroup" not in attributes["hami-gpu-5"]
    assert "nvlinkGroup" not in attributes["hami-gpu-6"]


@given(st.sets(st.tuples(st.integers(0, 15), st.integers(0, 15))))
def test_nvlink_groups_are_closed(links: set[tuple[int, int]]) -> None:
    """Both ends of each link are in the same group, and the order of the GPUs does not matter."""
    gpus = [gpu(n, nvlink_peers=frozenset(bus_id(b) for a, b in links if a == n)) for n in range(16)]
    groups = nvlink_groups(gpus)
    assert all(groups[bus_id(a)] == groups[bus_id(b)] for a, b in links if a != b)
    assert groups == nvlink_groups(gpus[::-1])
