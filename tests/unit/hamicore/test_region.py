"""The region that we write is, byte for byte, the one that C makes of the library's fields."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.gpuconfig import CorePolicy, Policy, Priority
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.hamicore.contract import variables
from hami_kubeletplugin.hamicore.region import BROKEN_SIZE, LAYOUTS, MAGIC, Layout, Region, region

Gpus = Mapping[str, Limit]

uuids = st.uuids().map(lambda uuid: f"GPU-{uuid}")
gpus_of_a_container = st.dictionaries(
    uuids, st.builds(Limit, memory_mib=st.integers(1, 4 * 1024**2), cores=st.integers(0, 250)), min_size=1, max_size=16
)


def content(made: Region) -> bytes:
    """The whole file."""
    data = bytearray(made.size)
    for offset, part in made.parts:
        data[offset : offset + len(part)] = part
    return bytes(data)


@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    layout=st.sampled_from(list(LAYOUTS.values())),
    gpus=gpus_of_a_container,
    policy=st.sampled_from([None, "default", "force", "disable"]),
    priority=st.sampled_from([None, "high", "low"]),
)
@example(layout=LAYOUTS["1.2"], gpus={f"GPU-{i}": Limit(i + 1, i * 10) for i in range(16)}, policy=None, priority=None)
def test_every_byte_is_as_c_has_it(
    c_program: Path, layout: Layout, gpus: Gpus, policy: CorePolicy | None, priority: Priority | None
) -> None:
    """Any limits of 1 to 16 GPUs, any policy and priority, in each layout that can be written."""
    switch, number = "0" if policy == "disable" else "1", "0" if priority == "high" else "1"
    told = [(uuid, str(limit.memory_mib * MIB), str(min(limit.cores, 100) or 100)) for uuid, limit in gpus.items()]
    arguments = [str(c_program), layout.name, switch, number, *(word for one in told for word in one)]
    expected = subprocess.run(arguments, check=True, timeout=30, stdout=subprocess.PIPE).stdout
    made = content(region(layout, gpus, Policy(policy, priority)))
    assert len(made) == len(expected)
    differing = [index for index in range(len(made)) if made[index] != expected[index]] if made != expected else []
    assert differing == []


def test_sizes_are_the_compilers_and_the_known_ones(c_program: Path) -> None:
    """The sizes that were seen with the real releases, and those of our header."""
    said = subprocess.run([c_program, "sizes"], check=True, timeout=30, stdout=subprocess.PIPE, text=True).stdout
    sizes = {name: int(size) for name, size in map(str.split, said.splitlines())}
    known = {"1.2": 2_008_952, "1.1": 2_008_952, "1.1-seqlock": 2_008_952, "2.8.1": 2_008_984, "0": 1_197_896}
    assert sizes == known
    assert {name: layout.size for name, layout in LAYOUTS.items()} | {"2.8.1": BROKEN_SIZE} == known


@pytest.mark.parametrize(
    ("name", "head", "fields"),
    [
        ("1.2", "4ef72f0101000000 0200000000000000", {56: 8, 64: 96, 1600: 8, 1728: 8, 2_008_896: 16, 2_008_920: 32}),
        ("1.1", "4ef72f0101000000 0100000000000000", {56: 8, 64: 96, 1600: 8, 1728: 8, 2_008_896: 16}),
        ("1.1-seqlock", "4ef72f0101000000 0100000000000000", {56: 8, 64: 96, 1600: 8, 1728: 8, 2_008_896: 16}),
        ("0", "4ef72f0100000000 0000000000000000", {48: 8, 56: 96, 1592: 8, 1720: 8, 1_197_880: 16}),
    ],
)
def test_fields_stand_where_the_real_files_have_them(name: str, head: str, fields: dict[int, int]) -> None:
    """By hand, beside the compiler: the offsets that were read off the releases."""
    made = content(region(LAYOUTS[name], {"GPU-x": Limit(4000, 30)}, Policy(priority="high")))
    assert made[:16].hex() == head.replace(" ", "")
    number, uuid, memory, cores, tail, *semaphore = fields
    assert made[number : number + 8] == (1).to_bytes(8, "little")
    assert made[uuid : uuid + 96] == b"GPU-x".ljust(96, b"\0")
    assert made[memory : memory + 8] == (4000 * MIB).to_bytes(8, "little")
    assert made[cores : cores + 8] == (30).to_bytes(8, "little")
    assert made[tail : tail + 16].hex() == "00000000010000000000000000000000"
    free = bytes.fromhex("0100000000000000" + "8000000000000000").ljust(32, b"\0")
    assert made[number - 32 : number] == free
    for offset in semaphore:
        assert made[offset : offset + 32] == free
    assert len(made) == LAYOUTS[name].size + 1


@given(gpus=gpus_of_a_container)
def test_variables_and_region_agree(gpus: Gpus) -> None:
    """Else every process of the container would print that its limits are inconsistent."""
    environment = variables(list(gpus.values()), region="/r")
    made = content(region(LAYOUTS["1.2"], gpus))
    for index in range(16):
        memory = int.from_bytes(made[1600 + 8 * index :][:8], "little")
        cores = int.from_bytes(made[1728 + 8 * index :][:8], "little")
        assert memory == int(environment.get(f"CUDA_DEVICE_MEMORY_LIMIT_{index}", "0m")[:-1]) * MIB
        assert cores == int(environment.get(f"CUDA_DEVICE_SM_LIMIT_{index}", "100"))


def test_parts_are_apart_and_the_magic_is_first() -> None:
    """Whoever writes the parts can hold back the magic, and never writes a byte twice."""
    for layout in LAYOUTS.values():
        made = region(layout, {"GPU-x": Limit(1)})
        ends = [0, *(offset + len(data) for offset, data in made.parts)]
        assert all(end <= offset for end, (offset, _) in zip(ends, made.parts, strict=False))
        assert ends[-1] < made.size
        assert (made.parts[0][0], made.parts[0][1][:4]) == (0, MAGIC.to_bytes(4, "little"))


def changed_limit(gpus: dict[str, Limit]) -> dict[str, Limit]:
    """One MiB less."""
    return {uuid: Limit(limit.memory_mib - 1, limit.cores) for uuid, limit in gpus.items()}


def other_order(gpus: dict[str, Limit]) -> dict[str, Limit]:
    """The same GPUs, numbered otherwise."""
    return dict(reversed(gpus.items()))


@pytest.mark.parametrize("change", [changed_limit, other_order])
def test_any_change_is_another_content(change: Callable[[dict[str, Limit]], dict[str, Limit]]) -> None:
    """Equal limits make equal regions; another limit, order, policy or layout makes another one."""
    gpus = {"GPU-a": Limit(1000, 10), "GPU-b": Limit(1000, 20)}
    layout = LAYOUTS["1.2"]
    made = region(layout, gpus)
    assert region(layout, dict(gpus)) == made
    others = {region(layout, change(gpus)), region(layout, gpus, Policy(priority="high"))}
    others |= {region(LAYOUTS["1.1"], gpus), region(layout, gpus, Policy("disable"))}
    assert len(others | {made}) == 5


@pytest.mark.parametrize("gpus", [{}, {f"GPU-{i}": Limit(1) for i in range(17)}, {"x" * 96: Limit(1)}])
def test_what_no_region_can_hold_is_refused(gpus: dict[str, Limit]) -> None:
    """Nothing is cut short silently."""
    with pytest.raises(ValueError, match=r"at most 95|1 to 16"):
        region(LAYOUTS["1.2"], gpus)
