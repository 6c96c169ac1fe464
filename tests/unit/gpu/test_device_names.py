"""A device's name means one GPU for ever: what was allocated by its name is never another one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.device_names import NamedGpus, Names, name_all
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from tests.unit.claims.objects import gpu

A, B, C, D = (gpu(minor, 0x10 + minor, name=letter) for minor, letter in enumerate("ABCD"))


class Source:
    """GPUs as a test says; a boot gives out minors by their order."""

    def __init__(self, *gpus: Gpu) -> None:
        self.boot(*gpus)

    def boot(self, *gpus: Gpu) -> None:
        """The driver is loaded and finds these."""
        found = [replace(one, minor=minor, device_name="") for minor, one in enumerate(gpus)]
        self.inventory = Inventory(tuple(sorted(found, key=lambda one: one.bus_order)))

    async def discover(self) -> Inventory:
        """See `GpuSource`."""
        return self.inventory


async def names(source: Source, path: Path, prepared: Names | None = None) -> dict[str, str]:
    """UUID by name, as a daemon that starts now publishes them."""
    inventory = await NamedGpus(source, path, lambda: prepared or {}).discover()
    return {name: one.uuid for name, one in inventory.by_device_name().items()}


async def test_minors_that_are_swapped_by_a_reboot(tmp_path: Path) -> None:
    """Each GPU keeps its name, and so its claims; the number of its device node is another matter."""
    path, source = tmp_path / "names.json", Source(A, B)
    first = await names(source, path)
    assert first == {"hami-gpu-0": A.uuid, "hami-gpu-1": B.uuid}
    source.boot(B, A)
    assert await names(source, path) == first
    assert {one.uuid: one.minor for one in source.inventory.gpus} == {B.uuid: 0, A.uuid: 1}


async def test_a_gpu_that_failed_leaves_its_name(tmp_path: Path) -> None:
    """The others move up by a minor and keep their names; one put in later gets one that nobody ever had."""
    path, source = tmp_path / "names.json", Source(A, B, C)
    await names(source, path)
    source.boot(B, C)
    assert await names(source, path) == {"hami-gpu-1": B.uuid, "hami-gpu-2": C.uuid}
    source.boot(D, B, C)
    assert await names(source, path) == {"hami-gpu-3": D.uuid, "hami-gpu-1": B.uuid, "hami-gpu-2": C.uuid}
    source.boot(A, B, C)
    assert (await names(source, path))["hami-gpu-0"] == A.uuid


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"hami-gpu-0": 7}', b"[" * 100_000])
async def test_a_lost_file_is_made_anew_from_what_is_prepared(tmp_path: Path, content: bytes | None) -> None:
    """Names that claims hold mean what they meant; the rest goes by minors. A file that can't be used is said."""
    path = tmp_path / "names.json"
    if content is not None:
        path.write_bytes(content)
    with capture_logs() as log:
        found = await names(Source(A, B, C), path, {"hami-gpu-0": B.uuid})
    assert found == {"hami-gpu-0": B.uuid, "hami-gpu-2": C.uuid, "hami-gpu-1": A.uuid}
    assert json.loads(path.read_bytes()) == found
    assert len(log) == (content is not None)


async def test_names_that_can_not_be_kept_are_not_given(tmp_path: Path) -> None:
    """Else the next start might give them to another GPU. Known ones go on."""
    path, source = tmp_path / "names.json", Source(A)
    await names(source, path)
    path.with_name(f"{path.name}.tmp").mkdir()  # nothing can be written there now
    assert await names(source, path) == {"hami-gpu-0": A.uuid}
    source.boot(A, B)
    with pytest.raises(
        HardwareError, match=r"names of devices can't be kept, so none are published anew: .*names.json"
    ):
        await names(source, path)


async def test_to_look_writes_nothing(tmp_path: Path) -> None:
    """`hami-kubeletplugin devices` shows the names that the daemon gave, and gives none."""
    path, source = tmp_path / "names.json", Source(A, B)
    look = NamedGpus(source, path)
    assert list((await look.discover()).by_device_name()) == ["hami-gpu-0", "hami-gpu-1"]
    assert not path.exists()
    await names(source, path)
    source.boot(B, A)
    assert (await look.discover()).by_device_name()["hami-gpu-0"].uuid == A.uuid


boots = st.lists(st.lists(st.sampled_from("ABCDEF"), unique=True), min_size=1, max_size=6)


@given(boots)
def test_no_name_ever_means_two_gpus(history: Sequence[Sequence[str]]) -> None:
    """Over any boots with any GPUs in any order: a name has one GPU, a GPU has one name, and none is lost."""
    given: Names = {}
    ever: dict[str, str] = {}
    for found in history:
        gpus = [gpu(minor, minor + 1, name=letter) for minor, letter in enumerate(found)]
        named, given = name_all(gpus, given)
        assert [one.uuid for one in named] == [one.uuid for one in gpus]
        for one in named:
            assert ever.setdefault(one.device_name, one.uuid) == one.uuid
        assert len(set(given.values())) == len(given)
        assert ever.items() <= given.items()
