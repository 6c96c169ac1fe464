"""Discovery with the real NVML bindings over the fake library."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hami_kubeletplugin.gpu.model import Gpu

UUID = "GPU-00000000-0000-0000-0000-{:012d}".format


async def test_all_that_nvml_and_sysfs_know_is_read(node: Any, gpu_lines: Any) -> None:
    """Each field of a GPU comes from the hardware's side in our form."""
    node.write(gpu_lines(3), driver="570.86.10", cuda=12080)
    node.add_to_sysfs("0000:13:00.0", "pci0000:10", numa=1)
    assert (await node.source().discover()).gpus == (
        Gpu(
            uuid=UUID(3),
            minor=3,
            pci_bus_id="0000:13:00.0",
            name="NVIDIA A100-SXM4-40GB",
            brand="Nvidia",
            architecture="Ampere",
            compute_capability=(8, 0),
            memory_bytes=42949672960,
            driver_version="570.86.10",
            cuda_driver_version=(12, 8),
            pcie_root="pci0000:10",
            numa_node=1,
        ),
    )


async def test_what_a_gpu_can_not_tell_is_unknown(node: Any, gpu_lines: Any) -> None:
    """A call that is not supported and a function that the driver lacks leave the field empty and the GPU in."""
    calls = (
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMigMode",
    )
    for code in 3, 13:
        node.write("fail nvmlSystemGetCudaDriverVersion 3", gpu_lines(0, *(f"fail {call} {code}" for call in calls)))
        (gpu,) = (await node.source().discover()).gpus
        assert (gpu.brand, gpu.architecture, gpu.compute_capability) == ("", "", None)
        assert (gpu.cuda_driver_version, gpu.pcie_root, gpu.numa_node) == (None, None, None)


async def test_numbers_of_later_products_are_unknown(node: Any, gpu_lines: Any) -> None:
    """A brand or architecture that we have no word for is empty, not an error."""
    node.write(gpu_lines(0, "brand 99", "arch 99", without=("brand", "arch")))
    (gpu,) = (await node.source().discover()).gpus
    assert (gpu.brand, gpu.architecture) == ("", "")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("nvmlDeviceGetHandleByIndex_v2", 15),
        ("nvmlDeviceGetPciInfo_v3", 15),
        ("nvmlDeviceGetUUID", 999),
        ("nvmlDeviceGetMigMode", 999),
        ("nvmlDeviceGetMinorNumber", 3),
        ("nvmlDeviceGetName", 4),
        ("nvmlDeviceGetBrand", 19),
        ("nvmlDeviceGetMemoryInfo", 3),
    ],
)
async def test_a_gpu_that_can_not_be_read_does_not_hide_the_others(
    node: Any, gpu_lines: Any, call: str, code: int
) -> None:
    """It is left out with one warning that says which, which call, and why."""
    node.write(gpu_lines(0), gpu_lines(1, f"fail {call} {code}"), gpu_lines(2))
    with capture_logs() as logs:
        inventory = await node.source().discover()
    assert [gpu.minor for gpu in inventory.gpus] == [0, 2]
    (warning,) = [log for log in logs if "index" in log]
    assert warning["log_level"] == "warning"
    assert warning["event"].startswith("GPU left out" if code == 3 else "GPU can't be read")
    assert warning["index"] == 1
    assert call.removesuffix("_v2").removesuffix("_v3") in warning["error"]
    assert f"NVML error {code}" in warning["error"]
    if "Handle" not in call and "Pci" not in call:
        assert warning["pci_bus_id"] == "0000:11:00.0"
        assert "GPU 1 (0000:11:00.0" in warning["error"]


@pytest.mark.parametrize(
    "bad", ["uuid GPU-\xff\xfe", "uuid 0", "uuid GPU-1,GPU-2", "memory 0", "memory 1048575", "bus nonsense", "bus \xff"]
)
async def test_a_gpu_that_answers_garbage_is_left_out(node: Any, gpu_lines: Any, bad: str) -> None:
    """Bytes that are no text, ids that are none and no memory count as a failed call: the API server would refuse all GPUs."""
    node.write(gpu_lines(0))
    lines = (
        node.file.read_bytes()
        + gpu_lines(1, without=(bad.split(maxsplit=1)[0],)).encode()
        + b"\n"
        + bad.encode("latin-1")
        + b"\n"
    )
    node.file.write_bytes(lines)
    with capture_logs() as logs:
        inventory = await node.source().discover()
    assert [gpu.minor for gpu in inventory.gpus] == [0]
    assert sum("can't be read" in log["event"] for log in logs) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("nvmlDeviceGetPciInfo_v3", "it has no PCI bus id, as those that are part of a processor"),
        ("nvmlDeviceGetMinorNumber", "it has no device node /dev/nvidia<minor>, as in WSL2"),
        ("nvmlDeviceGetMemoryInfo", "it has no memory of its own"),
    ],
)
async def test_kinds_of_gpus_that_are_not_served_are_named(node: Any, gpu_lines: Any, call: str, words: str) -> None:
    """Jetson, WSL2 and the like: the log says what it is about this GPU, beside NVML's own words; others are served."""
    node.write(gpu_lines(0, f"fail {call} 3"), gpu_lines(1))
    with capture_logs() as logs:
        found = await node.source().discover()
    assert [gpu.minor for gpu in found.gpus] == [1]
    (warning,) = [log for log in logs if "left out" in log["event"]]
    assert words in warning["event"]
    assert warning["event"].endswith("such GPUs are not served")
    assert (warning["index"], call.partition("_")[0] in warning["error"]) == (0, True)


async def test_gpus_in_mig_mode_are_left_out_with_one_line(node: Any, gpu_lines: Any) -> None:
    """All of them are named in one line; a GPU that could do MIG and has it off stays."""
    node.write(gpu_lines(0, "mig 1"), gpu_lines(1, "mig 0"), gpu_lines(2, "mig 1"))
    with capture_logs() as logs:
        inventory = await node.source().discover()
    assert [gpu.minor for gpu in inventory.gpus] == [1]
    (line,) = [log for log in logs if "MIG" in log["event"]]
    assert UUID(0) in line["gpus"]
    assert UUID(2) in line["gpus"]


async def test_a_warning_is_logged_when_the_situation_changes_only(node: Any, gpu_lines: Any) -> None:
    """Once while a GPU stays broken; again when it broke anew, or broke differently."""
    source = node.source()
    node.add_to_sysfs("0000:10:00.0", "pci0000:10")

    async def warnings(*lines: str) -> list[str]:
        node.write(*lines)
        with capture_logs() as logs:
            await source.discover()
        return [log["error"] for log in logs]

    broken, differently = gpu_lines(0, "fail nvmlDeviceGetName 15"), gpu_lines(0, "fail nvmlDeviceGetName 16")
    assert len(await warnings(broken)) == 1
    assert await warnings(broken) == []
    assert len(await warnings(differently)) == 1
    assert await warnings(gpu_lines(0)) == []
    assert len(await warnings(differently)) == 1


async def test_a_gpu_without_a_root_in_sysfs_is_published_and_named(node: Any, gpu_lines: Any) -> None:
    """The root is optional; people are told which GPUs have none."""
    node.write(gpu_lines(0), gpu_lines(1))
    node.add_to_sysfs("0000:10:00.0", "pci0000:00")
    with capture_logs() as logs:
        inventory = await node.source().discover()
    assert [gpu.pcie_root for gpu in inventory.gpus] == ["pci0000:00", None]
    assert [log["gpus"] for log in logs] == ["0000:11:00.0"]


async def test_two_gpus_never_share_an_identity(node: Any, gpu_lines: Any) -> None:
    """Should the driver give one minor or UUID twice, the first in bus order is published and the other named."""
    node.write(
        gpu_lines(0), gpu_lines(1, "minor 0", without=("minor",)), gpu_lines(2, f"uuid {UUID(0)}", without=("uuid",))
    )
    with capture_logs() as logs:
        inventory = await node.source().discover()
    assert [gpu.pci_bus_id for gpu in inventory.gpus] == ["0000:10:00.0"]
    assert [log["pci_bus_id"] for log in logs if "identity" in log["event"]] == ["0000:11:00.0", "0000:12:00.0"]


async def test_direct_nvlinks_name_the_gpu_at_the_other_end(node: Any, gpu_lines: Any) -> None:
    """Active links count; those that are down, or lead to no GPU that is published, do not."""
    node.write(
        gpu_lines(0, "link 0 00000000:11:00.0", "link 1 off", "link 2 00000000:11:00.0", "link 3 00000000:77:00.0"),
        gpu_lines(1, "link 0 00000000:10:00.0", "link 1 00000000:12:00.0"),
        gpu_lines(2, "fail nvmlDeviceGetName 15", "link 0 00000000:11:00.0"),
        gpu_lines(3),
    )
    peers = [gpu.nvlink_peers for gpu in (await node.source().discover()).gpus]
    assert peers == [{"0000:11:00.0"}, {"0000:10:00.0"}, set()]


async def test_gpus_on_switches_are_all_peers(node: Any, gpu_lines: Any) -> None:
    """Behind NVSwitch the other end is a switch, never a GPU; all that hang on switches reach each other."""
    node.write(gpu_lines(0, "link 0 switch"), gpu_lines(1, "link 0 off", "link 1 switch"), gpu_lines(2, "link 0 off"))
    peers = [gpu.nvlink_peers for gpu in (await node.source().discover()).gpus]
    assert peers == [{"0000:11:00.0"}, {"0000:10:00.0"}, set()]


async def test_unreadable_nvlinks_do_not_take_the_gpu_away(node: Any, gpu_lines: Any) -> None:
    """Its memory is as good as before: it is published without peers, and said so."""
    node.write(gpu_lines(0, "link 0 switch", "fail nvmlDeviceGetNvLinkState 999"), gpu_lines(1, "link 0 switch"))
    with capture_logs() as logs:
        inventory = await node.source().discover()
    assert [gpu.nvlink_peers for gpu in inventory.gpus] == [set(), set()]
    assert [log["uuid"] for log in logs if "NVLinks" in log["event"]] == [UUID(0)]


async def test_the_inventory_is_in_bus_order(node: Any, gpu_lines: Any) -> None:
    """Whatever NVML's order and the minors are."""
    buses = "00000001:03:00.0", "00000000:AF:00.0", "00010000:01:00.0", "00000000:0B:00.0"
    node.write(*(gpu_lines(minor, f"bus {bus}", without=("bus",)) for minor, bus in enumerate(buses)))
    assert [gpu.minor for gpu in (await node.source().discover()).gpus] == [3, 1, 0, 2]


addresses = st.tuples(st.integers(0, 0x1FFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))


@given(st.lists(addresses, max_size=20))
def test_bus_order_is_the_order_of_the_numbers(all_of: list[tuple[int, int, int, int]]) -> None:
    """Sorting GPUs sorts their addresses as numbers, not as text: a long domain comes last."""
    gpus = [
        Gpu("", 0, f"{domain:04x}:{bus:02x}:{device:02x}.{function}", "", "", "", None, 0, "", None, None, None)
        for domain, bus, device, function in all_of
    ]
    assert [gpu.bus_order for gpu in sorted(gpus, key=lambda gpu: gpu.bus_order)] == sorted(all_of)


async def test_a_node_without_gpus_is_empty(node: Any) -> None:
    """The driver without a GPU is no error."""
    assert (await node.source().discover()).gpus == ()
