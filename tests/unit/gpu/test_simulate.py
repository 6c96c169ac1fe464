"""Simulated hardware: profiles, files, and that both stand for what NVML would say."""

# ruff: noqa: ASYNC240 - the files are small and local

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, SettingsError
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu import nvml
from hami_kubeletplugin.gpu.device_names import NamedGpus
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.gpu.source import source_for

PROFILES = ["a100x8", "h100x8", "h200x8", "t4x4", "l40sx4", "mixed", "a100x100", "l40sx1024"]


async def discover(simulate: str | Path, node_name: str = "node-1") -> Inventory:
    """What a fresh source finds."""
    return await SimulatedSource(str(simulate), node_name).discover()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test writes its node."""
    return tmp_path / "node.yaml"


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_profile_is_a_node_that_could_exist(profile: str) -> None:
    """The right number of GPUs, every identity once, in bus order, each with root and NUMA node."""
    gpus = (await discover(profile)).gpus
    assert len(gpus) == int(re.search(r"(\d+)$", profile)[1] if profile != "mixed" else 4)  # type: ignore[index]
    for identity in "uuid", "minor", "pci_bus_id":
        assert len({getattr(gpu, identity) for gpu in gpus}) == len(gpus)
    assert [gpu.bus_order for gpu in gpus] == sorted(gpu.bus_order for gpu in gpus)
    for gpu in gpus:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.uuid)
        assert gpu.pcie_root is not None
        assert gpu.pcie_root.split(":")[0] == f"pci{gpu.pci_bus_id.split(':')[0]}"
        assert gpu.numa_node in range(1024)
        assert gpu.brand in nvml.BRANDS.values()
        assert gpu.architecture in nvml.ARCHITECTURES.values()


async def test_uuids_are_the_same_on_every_start_and_differ_between_nodes() -> None:
    """A restarted daemon finds its GPUs again; two simulated nodes of a cluster never share one."""
    assert await discover("a100x8") == await discover("a100x8")
    here, there = await discover("a100x8", "node-1"), await discover("a100x8", "node-2")
    assert not here.by_uuid().keys() & there.by_uuid().keys()


async def test_mixed_has_minors_against_bus_order_and_two_memory_sizes() -> None:
    """Code that numbers by minor or takes one GPU for another shows there."""
    gpus = (await discover("mixed")).gpus
    assert [gpu.minor for gpu in gpus] != sorted(gpu.minor for gpu in gpus)
    assert {gpu.name: gpu.memory_bytes for gpu in gpus} == {"Tesla T4": 15360 * MIB, "NVIDIA L40S": 46068 * MIB}


async def test_sxm_gpus_are_joined_board_by_board() -> None:
    """NVLink joins the eight of a board, not the boards of a big node; PCIe models have none."""
    first, *_, last = (await discover("a100x100")).gpus
    assert len(first.nvlink_peers) == 7
    assert len(last.nvlink_peers) == 3
    assert not first.nvlink_peers & last.nvlink_peers
    assert all(gpu.nvlink_peers == set() for gpu in (await discover("l40sx4")).gpus)


def as_nvml_lines(inventory: Inventory) -> list[str]:
    """The same node for the fake NVML: GPUs with peers hang on a switch."""
    brands, architectures = (
        {word: number for number, word in words.items()} for words in (nvml.BRANDS, nvml.ARCHITECTURES)
    )

    def lines(gpu: Gpu) -> list[str]:
        domain, rest = gpu.pci_bus_id.split(":", 1)
        major, minor = gpu.compute_capability or (0, 0)
        return [
            f"gpu\nuuid {gpu.uuid}\nname {gpu.name}\nminor {gpu.minor}\nmemory {gpu.memory_bytes}",
            f"bus {int(domain, 16):08X}:{rest.upper()}\ncc {major} {minor}",
            f"brand {brands[gpu.brand]}\narch {architectures[gpu.architecture]}",
            *(["link 0 switch"] if gpu.nvlink_peers else []),
        ]

    return [line for gpu in inventory.gpus for line in lines(gpu)]


@pytest.mark.parametrize("profile", ["a100x8", "h100x8", "h200x8", "t4x4", "l40sx4", "mixed"])
async def test_the_simulation_says_what_nvml_would_say(node: Any, profile: str) -> None:
    """Discovery on a node with the same hardware gives the same inventory, field by field."""
    simulated = await discover(profile)
    node.write(*as_nvml_lines(simulated))
    for gpu in simulated.gpus:
        node.add_to_sysfs(gpu.pci_bus_id, gpu.pcie_root, gpu.numa_node)
    assert await node.source().discover() == simulated


async def test_a_file_can_say_everything(file: Path) -> None:
    """Every field, without quotes where people leave them out: YAML makes no number of a bus id or a version."""
    file.write_text("""
driver: 570.10
cuda: 12.10
gpus:
  - minor: 5
    uuid: GPU-00000000-0000-0000-0000-000000000005
    pciBusID: 0000:07:00.0
    pcieRoot: pci0000:00
    numaNode: 3
    name: NVIDIA Test
    brand: Tesla
    architecture: Volta
    computeCapability: 7.10
    memoryMiB: 1000
    nvlink: [6]
  - {model: t4, minor: 6, pciBusID: "00000000:0F:00.0", computeCapability: unknown, numaNode: unknown, memoryMiB: 7}
""")
    first, second = (await discover(file)).gpus
    assert first == Gpu(
        uuid="GPU-00000000-0000-0000-0000-000000000005",
        minor=5,
        pci_bus_id="0000:07:00.0",
        name="NVIDIA Test",
        brand="Tesla",
        architecture="Volta",
        compute_capability=(7, 10),
        memory_bytes=1000 * MIB,
        driver_version="570.10",
        cuda_driver_version=(12, 10),
        pcie_root="pci0000:00",
        numa_node=3,
        nvlink_peers=frozenset({"0000:0f:00.0"}),
    )
    assert (second.name, second.memory_bytes, second.pci_bus_id) == ("Tesla T4", 7 * MIB, "0000:0f:00.0")
    assert (second.compute_capability, second.pcie_root, second.numa_node) == (None, None, None)
    assert second.nvlink_peers == {"0000:07:00.0"}


async def test_a_profile_in_a_file_is_the_profile(file: Path) -> None:
    """So a test starts from a named node and changes what it is about."""
    file.write_text("profile: a100x8")
    assert await discover(file) == await discover("a100x8")


async def test_a_file_is_read_again_by_every_look(file: Path) -> None:
    """GPUs and the driver go away and come back under a running daemon; the others keep their identity."""
    file.write_text("profile: a100x8")
    source = SimulatedSource(str(file), "node-1")
    whole = await source.discover()
    file.write_text("profile: a100x8\nabsent: [3]")
    part = await source.discover()
    assert part.by_uuid().keys() < whole.by_uuid().keys()
    assert [gpu.minor for gpu in part.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert all(len(gpu.nvlink_peers) == 6 for gpu in part.gpus)
    file.write_text("profile: a100x8\ndriver: missing")
    with pytest.raises(DriverMissing, match="driver: missing"):
        await source.discover()
    file.write_text("profile: a100x8")
    assert await source.discover() == whole


async def test_a_gpu_keeps_its_place_when_another_is_taken_from_the_list(file: Path) -> None:
    """Slots and UUIDs go by the minor, not by the place in the list."""
    file.write_text("gpus: [{model: t4, minor: 0}, {model: t4, minor: 1}]")
    whole = await discover(file)
    file.write_text("gpus: [{model: t4, minor: 1}]")
    assert (await discover(file)).gpus == whole.gpus[1:]


async def test_a_file_that_breaks_later_is_no_reason_to_stop(file: Path) -> None:
    """A running daemon gets a hardware error, with the same words as at the start, and goes on when it is mended."""
    file.write_text("profile: t4x4")
    source = SimulatedSource(str(file), "node-1")
    for content in ("gpus: [{model: t5}]", "gpus: [", ""):
        file.write_text(content)
        with pytest.raises(HardwareError, match=r"--simulate .*node\.yaml"):
            await source.discover()
    file.unlink()
    with pytest.raises(HardwareError, match="No such file"):
        await source.discover()
    file.write_text("profile: t4x4")
    assert len((await source.discover()).gpus) == 4


GPU = "name: X, memoryMiB: 1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("gpu: []", "gpu: unknown field; known are driver, cuda, profile, absent, gpus"),
        ("gpus: [{model: t4, colour: red}]", r"gpus\[0\]\.colour: unknown field; known are model, minor, .*pciBusID"),
        ("gpus: [{model: t5}]", r"gpus\[0\]\.model: must be one of a100, .*, got 't5'"),
        ("gpus: [{model: t4}, {name: X}]", r"gpus\[1\]: needs a model, or else a name and memoryMiB"),
        ("gpus: [{model: t4, minor: -1}]", r"gpus\[0\]\.minor: .*greater than or equal to 0"),
        ("gpus: [{model: t4, minor: one}]", r"gpus\[0\]\.minor: .*valid integer.*'one'"),
        ("gpus: [{model: t4, minor: 1024}]", r"gpus\[0\]\.minor: .*less than 1024"),
        ("gpus: [{model: t4, uuid: GPU-1}]", r"gpus\[0\]\.uuid: .*pattern"),
        ("gpus: [{model: t4, pciBusID: 07:00.0}]", r"gpus\[0\]\.pciBusID: must be a PCI bus id .*got '07:00\.0'"),
        ("gpus: [{model: t4, pcieRoot: ''}]", r"gpus\[0\]\.pcieRoot: .*pattern"),
        ("gpus: [{model: t4, numaNode: -1}]", r"gpus\[0\]\.numaNode: .*greater than or equal to 0"),
        (
            "gpus: [{model: t4, computeCapability: 8}]",
            r"gpus\[0\]\.computeCapability: must be <major>\.<minor>, or unknown",
        ),
        ("gpus: [{model: t4, memoryMiB: 0}]", r"gpus\[0\]\.memoryMiB: .*greater than 0"),
        ("gpus: [{model: t4, memoryMiB: 16Gi}]", r"gpus\[0\]\.memoryMiB: .*valid integer.*'16Gi'"),
        ("gpus: [{model: t4}, {model: t4, minor: 0}]", "2 of gpus have minor 0"),
        (f"gpus: [{{model: t4}}, {{{GPU}, pciBusID: '0000:3b:00.0'}}]", "2 of gpus have pciBusID 0000:3b:00.0"),
        ("gpus: [{model: t4, nvlink: [1]}]", "nvlink names minor 1, but no GPU has it"),
        ("profile: t4x4\nabsent: [4]", "absent or nvlink names minor 4"),
        ("profile: t4x4\ngpus: []", "either profile or gpus"),
        ("profile: t9x4", "profile 't9x4' is not known; known are mixed, or <model>x<count>"),
        ("cuda: twelve", "cuda: must be"),
        ("driver: ''", "driver: .*at least 1 character"),
        ("- model: t4", "must be a mapping"),
        ("", "must be a mapping"),
        ("gpus: [", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)
def test_a_wrong_file_stops_the_start_and_names_the_field(file: Path, content: str, message: str) -> None:
    """What is wrong, where in the file, and what it must be."""
    file.write_text(content)
    with pytest.raises(SettingsError, match=rf"^--simulate .*node\.yaml: .*{message}"):
        SimulatedSource(str(file), "node-1")


@pytest.mark.parametrize("simulate", ["a100", "a100x0", "a100x1025", "t9x8", "A100x8", "/"])
def test_neither_profile_nor_file_is_refused_with_what_there_is(simulate: str) -> None:
    """The message lists the profiles."""
    with pytest.raises(SettingsError, match=f"--simulate {simulate}: .*a profile: mixed, or <model>x<count>"):
        SimulatedSource(simulate, "node-1")


def test_the_settings_choose_the_source(tmp_path: Path) -> None:
    """A profile or file if there is one, else NVML; a bad one is refused at once."""
    assert isinstance(source_for(Settings(node_name="n", simulate="mixed")), SimulatedSource)
    assert isinstance(source_for(Settings(node_name="n")), NamedGpus)
    with pytest.raises(SettingsError):
        source_for(Settings(node_name="n", simulate=str(tmp_path / "none")))


async def test_the_settings_reach_nvml(node: Any, gpu_lines: Any) -> None:
    """The library and the place of sysfs come from the options."""
    node.write(gpu_lines(0))
    node.add_to_sysfs("0000:10:00.0", "pci0000:10")
    source = source_for(Settings(node_name="n", nvml_library=node.library, sysfs=node.sysfs))
    assert [gpu.pcie_root for gpu in (await source.discover()).gpus] == ["pci0000:10"]


def test_a_simulated_profile_loads_neither_bindings_nor_yaml() -> None:
    """Both cost memory in every process; a profile needs none of them."""
    code = """
import asyncio, sys
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.source import source_for
asyncio.run(source_for(Settings(node_name="n", simulate="a100x8")).discover())
print(sorted({"pynvml", "yaml"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
