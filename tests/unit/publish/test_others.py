"""publish.others: what a Node and other people's slices say of our GPUs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.beside_settings import BesideSettings
from hami_kubeletplugin.gpu.conditions import EVERY, What, of
from hami_kubeletplugin.publish.others import NodeSays, TheirSlice, found, node_says, same_gpus, same_pool, unknown

RESOURCES = BesideSettings().plugin_resources
GPUS = ("GPU-a", "GPU-b")


def node(cordon: str | None = None, **allocatable: str) -> dict[str, Any]:
    """A Node."""
    annotations = {} if cordon is None else {"hami.io/device-cordon": cordon}
    return {"metadata": {"name": "n1", "annotations": annotations}, "status": {"allocatable": allocatable}}


def theirs(**attributes: object) -> dict[str, Any]:
    """A slice of another driver, with one device."""
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1}}
    return {"metadata": {"name": "s"}, "spec": spec | {"devices": [{"name": "gpu-0", "attributes": attributes}]}}


@pytest.mark.parametrize(
    ("annotation", "cordoned"),
    [
        (None, ()),
        ("", ()),
        ("GPU-a", ("GPU-a",)),
        (" GPU-a , GPU-b ,", ("GPU-a", "GPU-b")),
        ("GPU-a,,GPU-a", ("GPU-a",)),
        ("hami-gpu-0", ("hami-gpu-0",)),
    ],
)
def test_what_is_cordoned(annotation: str | None, cordoned: tuple[str, ...]) -> None:
    """UUIDs with commas between, as HAMi takes them: blanks and repetitions mean nothing."""
    assert node_says(node(annotation), RESOURCES).cordoned == cordoned


@given(st.text(alphabet="GPU-a, \n", max_size=300))
def test_any_annotation(text: str) -> None:
    """Whatever stands there, only GPUs of ours are cordoned, and all else is named as unknown."""
    says = node_says(node(text), RESOURCES)
    conditions = found(GPUS, says, (), ())
    assert set(conditions) == set(GPUS) & {part.strip() for part in text.split(",")}
    assert set(unknown(GPUS, says)) == {part.strip() for part in text.split(",")} - {*GPUS, ""}


def test_a_long_annotation_is_cut() -> None:
    """A quarter of a megabyte of commas and letters costs a thousand names."""
    assert len(node_says(node(",".join(f"x{n}" for n in range(60_000))), RESOURCES).cordoned) == 1024


@pytest.mark.parametrize(
    ("allocatable", "plugins"),
    [
        ({}, ()),
        ({"cpu": "8", "nvidia.com/gpu": "0"}, ()),
        ({"nvidia.com/gpu": "8"}, (("nvidia.com/gpu", "8"),)),
        ({"nvidia.com/gpu.shared": "40"}, (("nvidia.com/gpu.shared", "40"),)),
        ({"nvidia.com/mig-1g.5gb": "7", "example.com/gpu": "1"}, ()),
    ],
)
def test_device_plugins(allocatable: dict[str, str], plugins: tuple[tuple[str, str], ...]) -> None:
    """A resource above 0 is a device plugin that works; 0 is what one leaves behind. MIG has nothing to do with what we serve."""
    assert node_says(node(**allocatable), RESOURCES).plugins == plugins


def test_a_node_without_anything() -> None:
    """A Node that has neither status nor annotations yet says nothing."""
    assert node_says({"metadata": {"name": "n1"}}, RESOURCES) == NodeSays()


@pytest.mark.parametrize("name", ["uuid", "UUID", "gpu.nvidia.com/uuid", "parentUUID"])
def test_gpus_of_another_driver(name: str) -> None:
    """A GPU is known by its UUID, however its driver spells the attribute; a part of one (MIG) by the whole's."""
    assert same_gpus(theirs(**{name: {"string": "GPU-a"}})) == TheirSlice(
        "s", "gpu.nvidia.com", 3, frozenset({"GPU-a"})
    )


@pytest.mark.parametrize(
    "attributes", [{}, {"uuid": {"int": 7}}, {"uuid": {"string": ""}}, {"near": {"string": "GPU-a"}}]
)
def test_devices_that_are_no_gpus(attributes: dict[str, object]) -> None:
    """Other devices, such as a network card that names a GPU near by, are nobody's concern."""
    assert same_gpus(theirs(**attributes)) is None


def test_pools() -> None:
    """Only a slice of our own pool can hide us."""
    assert same_pool(theirs(), "n1") is not None
    assert same_pool(theirs(), "n2") is None


def test_all_of_it_as_conditions() -> None:
    """Each condition has its GPU, its message says what to do, and its value is who or what."""
    conditions = found(
        GPUS,
        NodeSays(("GPU-b", "GPU-x"), (("nvidia.com/gpu", "8"),)),
        [TheirSlice("theirs", "gpu.nvidia.com", 1, frozenset({"GPU-a", "GPU-c"}))],
        [TheirSlice("ghost", "gpu.hami.io", 9)],
    )
    assert set(conditions) == {EVERY, "GPU-a", "GPU-b"}
    a = {each.what: each for each in of({uuid: tuple(several) for uuid, several in conditions.items()}, "GPU-a")}
    b = {each.what: each for each in of({uuid: tuple(several) for uuid, several in conditions.items()}, "GPU-b")}
    assert (set(a), set(b)) == (
        {What.GIVEN_OUT_TWICE, What.HIDDEN},
        {What.CORDONED, What.GIVEN_OUT_TWICE, What.HIDDEN},
    )
    assert (a[What.GIVEN_OUT_TWICE].value, b[What.GIVEN_OUT_TWICE].value) == ("gpu.nvidia.com", "device-plugin")
    assert "ResourceSlice theirs" in a[What.GIVEN_OUT_TWICE].message
    assert "nvidia.com/gpu: 8" in b[What.GIVEN_OUT_TWICE].message
    assert a[What.HIDDEN].message.endswith("kubectl delete resourceslice ghost")
    assert "hami.io/device-cordon" in b[What.CORDONED].message


def test_nothing_to_say_without_gpus() -> None:
    """On a node whose GPUs we don't serve, such as one in MIG mode, a device plugin is in its right."""
    assert found((), NodeSays(("GPU-a",), (("nvidia.com/gpu", "7"),)), (), [TheirSlice("s", "d", 1)]) == {}
