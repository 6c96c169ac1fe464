"""What prepares need, each looked at without harm."""

import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import HardwareError, StorageError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.conditions import EVERY, Conditions
from hami_kubeletplugin.gpu.edits import DriverEdits, DriverEditsSource, NoDriverEdits, RuntimeDriverEdits
from hami_kubeletplugin.gpu.toolkit_run import ToolkitRefused
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.health.needs import node_readiness, without_edits
from hami_kubeletplugin.health.readiness import Readiness
from tests.unit.gpu.test_toolkit import A, B, Node
from tests.unit.hamicore.mounted import can_mount, mounted
from tests.unit.hamicore.test_mounts import mount_tmpfs

GPUS = ("GPU-0", "GPU-1", "GPU-2")


class Edits:
    """A source in which GPUs are broken, or the toolkit."""

    def __init__(self, *broken: str, fails: bool = False) -> None:
        self.broken, self.fails, self.asked = set(broken), fails, 0

    def edits(self, uuids: Collection[str], *, deadline: float) -> DriverEdits:
        """See `DriverEditsSource`."""
        self.asked += 1
        if self.fails:
            raise HardwareError("no nvidia-ctk")
        if refused := sorted(self.broken & set(uuids)):
            raise ToolkitRefused(f"{refused[0]} is broken")
        return DriverEdits()

    def stamp(self) -> object:
        """See `DriverEditsSource`."""
        return None

    def close(self) -> None:
        """See `DriverEditsSource`."""


@pytest.mark.parametrize(
    ("source", "expected", "asked"),
    [
        (Edits(), {}, 1),
        (Edits("GPU-1"), {"GPU-1": "GPU-1 is broken"}, 4),
        (Edits(*GPUS), {EVERY: "GPU-0 is broken"}, 4),
        (Edits(fails=True), {EVERY: "no nvidia-ctk"}, 4),
        (NoDriverEdits(), {}, None),
        (RuntimeDriverEdits(find=lambda: Path("/libcuda.so.1")), {}, None),
    ],
)
def test_driver_edits(source: DriverEditsSource, expected: dict[str, str], asked: int | None) -> None:
    """A toolkit that can't be run is wrong with all GPUs; one that refuses some of them is wrong with those."""
    assert without_edits(source, GPUS, time.monotonic() + 60) == expected
    if isinstance(source, Edits):
        assert source.asked == asked


def test_a_toolkit_that_takes_all_the_time() -> None:
    """What is left of the GPUs when there is no time left isn't asked for, and not taken for good."""
    source = Edits("GPU-0")
    assert list(without_edits(source, GPUS, time.monotonic() - 1)) == [EVERY]
    assert source.asked == 1


def test_a_runtime_that_brings_no_driver() -> None:
    """While the NVIDIA runtime has put no libcuda anywhere every claim would be refused, so no GPU is ready."""
    (words,) = without_edits(RuntimeDriverEdits(find=lambda: None), GPUS, 1e9).values()
    assert "libcuda.so.1" in words


def test_without_gpus_nobody_runs_the_toolkit() -> None:
    """A node without GPUs has no driver to describe."""
    source = Edits(fails=True)
    assert without_edits(source, (), 1e9) == {}
    assert source.asked == 0


def test_room(tmp_path: Path) -> None:
    """A directory that is missing is made; nothing is written into it."""
    files.check_room(tmp_path / "a/b")
    assert os.listdir(tmp_path / "a/b") == []


@can_mount
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=64k", "the disk is full"),
        ("nr_inodes=1", "the disk is full"),
        ("ro", "the file system is read-only"),
    ],
)
def test_no_room(tmp_path: Path, options: str, words: str) -> None:
    """Full of bytes or of files, or read-only: it says where and what to do."""
    with mounted(tmp_path):
        mount_tmpfs(tmp_path, options)
        with pytest.raises(StorageError, match=f"{tmp_path}: .*{words}"):
            files.check_room(tmp_path)


@can_mount
def test_unbounded_room(tmp_path: Path) -> None:
    """A file system without bounds reports no free block and no free file, and isn't full."""
    with mounted(tmp_path):
        mount_tmpfs(tmp_path, "size=0,nr_inodes=0")
        files.check_room(tmp_path)


class Registration:
    """A registration with the kubelet."""

    def __init__(self) -> None:
        self.registered = threading.Event()
        self.registered.set()
        self.trouble: str | None = None

    def follow(self, changed: Callable[[], None]) -> None:
        """See `needs.Registration`."""
        self.changed = changed


@pytest.fixture
def registration() -> Registration:
    """Registered."""
    return Registration()


@pytest.fixture
async def readiness(tmp_path: Path, native: Path, registration: Registration) -> Readiness:
    """Of a node where nothing is wrong."""
    settings = Settings(
        node_name="n", plugin_dir=tmp_path / "plugin", cdi_dir=tmp_path / "cdi", hami_dir=tmp_path / "vgpu"
    )
    host = HostFiles(Shipped(native / "libvgpu.so"), settings.hami_dir)
    return node_readiness(
        settings,
        host,
        NoDriverEdits(),
        gpus=lambda: GPUS,
        registration=registration,
        conditions=Conditions(),
        told=lambda ready: None,
    )


async def test_a_good_node(readiness: Readiness) -> None:
    """Nothing is lacking on a node that has it all, though nothing was there before."""
    await readiness.look()
    assert readiness.ready


async def test_registration_is_followed(readiness: Readiness, registration: Registration) -> None:
    """What the kubelet refuses is a reason of its own, and looked at as soon as it is known."""
    registration.trouble = "refused"
    registration.registered.clear()
    registration.changed()
    await readiness.look()
    assert readiness.lacking == ("kubelet", "registration")


def test_a_toolkit_that_comes_later(tmp_path: Path) -> None:
    """The real source, a script as nvidia-ctk: missing, then lacking one GPU, then right, which costs no more runs."""
    node = Node(tmp_path)
    missing = node.toolkit.with_name("away")
    node.toolkit.rename(missing)
    deadline = time.monotonic() + 60
    assert "nvidia-ctk is not at" in without_edits(node.edits, (A, B), deadline)[EVERY]
    missing.rename(node.toolkit)
    node.prints(node.spec(A))
    wrong = without_edits(node.edits, (A, B), deadline)
    assert list(wrong) == [B]
    assert "not complete" in wrong[B]
    node.prints(node.spec(A, B))
    assert without_edits(node.edits, (A, B), deadline) == {}
    runs = len(node.runs)
    assert without_edits(node.edits, (A, B), deadline) == {}
    assert len(node.runs) == runs
