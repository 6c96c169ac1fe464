"""Each file operation of prepare and unprepare fails, or the process dies there.

Operations are counted in a dry run and then failed one by one, so a new one is covered by itself.
"""

import asyncio
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import HamiError, RecordDamaged
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.claims.cdi_runtime import inject, kubelet_ids
from tests.unit.claims.file_faults import ERRORS, MOUNTING, Died, error, faults
from tests.unit.claims.node import Answer, Node, devices, refusal
from tests.unit.claims.objects import GPUS, UUID, Json, claim, container, pod, result
from tests.unit.hamicore.mounted import can_mount

POD = pod("p", container("x", "c/a"), container("y", "c/b"))
BEFORE = claim("c", [result(0, "1Gi", "10", request="a"), result(1, "2Gi", "20", request="b")])
OTHER_SHARES = claim("c", [result(2, "3Gi", "30", request="a"), result(1, "4Gi", "40", request="b")])


def nothing(node: Node) -> None:
    """A claim that comes for the first time."""
    node.api.put(BEFORE, POD)


def prepared(node: Node) -> None:
    """Prepared, and a container has used its cache."""
    nothing(node)
    devices(asyncio.run(node.prepare(BEFORE))[0])
    in_use(node)


def repeated(node: Node) -> None:
    """All is right, but somebody deleted the spec."""
    prepared(node)
    node.specs.path(uid()).unlink()


def rebooted(node: Node) -> None:
    """Prepared before a reboot."""
    prepared(node)
    node.reboot()


def reallocated(node: Node) -> None:
    """The scheduler has allocated anew what was prepared."""
    prepared(node)
    node.api.put(OTHER_SHARES)


def unmounted(node: Node) -> None:
    """Prepared, and somebody took away what is mounted."""
    prepared(node)
    node.unmount()


def damaged(node: Node) -> None:
    """The record can't be read any more."""
    prepared(node)
    path = node.records.path(uid())
    path.write_bytes(path.read_bytes()[:-7])


def forgotten(node: Node) -> None:
    """The record is gone while a container may run."""
    prepared(node)
    node.records.path(uid()).unlink()


RECORD = f"plugin/claims/{BEFORE['metadata']['uid']}.json"
SITUATIONS = [nothing, prepared, repeated, rebooted, reallocated, unmounted, damaged, forgotten]
Situation = Callable[[Node], None]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine itself does not go down here, so nothing has to wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def known(node: Node) -> bool:
    """Whether there is a good record."""
    try:
        return node.records.load(uid()) is not None
    except RecordDamaged:
        return False


def uid() -> str:
    """Of the claim."""
    found: str = BEFORE["metadata"]["uid"]
    return found


def in_use(node: Node) -> None:
    """A container writes to its region."""
    node.region(BEFORE).write_bytes(b"region".ljust(2_008_953, b"\0"))


def spared(node: Node) -> bool:
    """Whether that region is still as the container left it."""
    path = node.region(BEFORE)
    return path.exists() and path.read_bytes()[:6] == b"region"


def to_be_spared(node: Node, situation: "Situation") -> bool:
    """A container may be running; or else a hook renews the region anyway, and prepare need not."""
    if node.claim_files == "memory" and situation in (rebooted, unmounted):
        return False
    return situation is not nothing and (node.regions or situation not in (rebooted, reallocated))


def wanted(node: Node) -> Json:
    """The claim as the API server has it."""
    return node.api.claims["default", "c"]


def is_right(node: Node) -> None:
    """Record, spec and directories say what is allocated now."""
    record = node.records.load(uid())
    assert record is not None
    answers = {"c": record.devices("k8s.gpu.hami.io/claim")}
    for one in wanted(node)["status"]["allocation"]["devices"]["results"]:
        seen = inject(node.all_specs(), kubelet_ids(answers, [("c", one["request"])]))
        minor = int(one["device"][-1])
        memory, cores = int(one["consumedCapacity"]["memory"][:-2]) * 1024, int(one["consumedCapacity"]["cores"])
        assert seen.limits(GPUS) == {UUID[minor]: (memory, cores)}
        assert seen.has_right_region(GPUS) == node.regions
        if not node.regions:
            assert Path(seen.mounts["/usr/local/vgpu/cache"]).stat().st_mode & 0o777 == 0o777
        assert Path(seen.mounts["/usr/local/vgpu/libvgpu.so"]).is_file()
    assert leftovers(node) == []


def leftovers(node: Node) -> list[str]:
    """Half-written files anywhere."""
    return [str(path) for path in node.root.rglob("*") if "tmp" in path.name]


def files_of_claims(node: Node) -> dict[str, str]:
    """Records and specs by content, and which cache directories there are."""
    return {name: content for name, content in node.snapshot().items() if "vgpu.cache" not in name}


def untouched(node: Node, before: dict[str, str]) -> dict[str, str]:
    """What of the files there were before is there now; and whatever else is there, but for the uses' files."""
    now = files_of_claims(node)
    return {name: text for name, text in now.items() if name in before or "/use-" not in name}


MakeNode = Callable[[Situation], Node]


def each_operation(node: Node, act: Callable[[Node], object]) -> list[int]:
    """The numbers of all file operations of an act, counted in a dry run; in memory of mounts, and of those next to them."""
    with faults(node.root) as counted:
        act(node)
    assert len(counted.names) > 5
    mounting = [k for k, name in enumerate(counted.names) if name in MOUNTING]
    return [k for k in range(len(counted.names)) if node.claim_files == "disk" or any(abs(k - m) < 3 for m in mounting)]


@pytest.fixture(params=["disk", pytest.param("memory", marks=can_mount)])
def node_in(
    request: pytest.FixtureRequest, tmp_path: Path, shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeNode]:
    """Makes a node in a situation, in place of the one before."""
    monkeypatch.setattr(mounts, "lacking", lambda _: None)  # no container runtime has to see it here
    nodes: list[Node] = []

    def remove() -> None:
        for node in nodes:
            node.unmount()
        nodes.clear()
        shutil.rmtree(tmp_path / "node", ignore_errors=True)

    def make(situation: Situation) -> Node:
        remove()
        nodes.append(Node(tmp_path / "node", shipped, claim_files=request.param))
        situation(nodes[0])
        return nodes[0]

    yield make
    remove()


def prepare(node: Node) -> Answer:
    """What the kubelet asks for."""
    return asyncio.run(node.prepare(wanted(node)))[0]


def unprepare(node: Node) -> HamiError | None:
    """What the kubelet asks for."""
    return asyncio.run(node.unprepare(BEFORE))[0]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_prepare_fails_whole_and_can_be_tried_again(situation: Situation, node_in: MakeNode) -> None:
    """A failing operation fails the claim with what and where, the state before stays, and the next try succeeds."""
    for k in each_operation(node_in(situation), prepare):
        node = node_in(situation)
        before = files_of_claims(node)
        with faults(node.root, k, error(ERRORS[k % len(ERRORS)])) as fault:
            answer = prepare(node)
        where = f"operation {k} ({fault.names[k]})"
        if isinstance(answer, tuple):  # it was not needed after all
            is_right(node)
            continue
        message = refusal(answer)
        assert str(node.root) in message, f"{where}: {message}"
        assert "fault of the driver" not in message, f"{where}: {message}"
        after = untouched(node, before)
        if situation in (damaged, forgotten) and known(node):  # again: better than before
            before[RECORD] = after[RECORD]
        assert after == before, where
        devices(prepare(node))
        is_right(node)
        assert spared(node) == to_be_spared(node, situation)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_death_in_prepare_loses_nothing(situation: Situation, node_in: MakeNode) -> None:
    """After a restart a claim is as it was or as it is to be, nothing is half there, and the kubelet's next call succeeds."""
    for k in each_operation(node_in(situation), prepare):
        node = node_in(situation)
        with faults(node.root, k, Died):
            prepare(node)
        node.start()
        asyncio.run(node.recover())
        assert leftovers(node) == []
        left = node.snapshot()
        if left:
            assert node.records.load(uid()) is not None, f"operation {k}: {list(left)} but no record tells of it"
            assert node.spec(BEFORE) is not None
        else:
            assert situation is nothing, f"operation {k}: the claim is lost"
        devices(prepare(node))
        is_right(node)
        # A region of a former boot or allocation tells wrong things; one of now may be in use.
        assert spared(node) == to_be_spared(node, situation)
        assert unprepare(node) is None
        assert node.snapshot() == {}


@pytest.mark.parametrize("situation", [prepared, unmounted, damaged, forgotten])
def test_unprepare_fails_and_can_be_tried_again(situation: Situation, node_in: MakeNode) -> None:
    """What can't be removed is said, whatever tells of it stays, and the next try removes all."""
    for k in each_operation(node_in(situation), unprepare):
        node = node_in(situation)
        had_record = node.records.path(uid()).exists()
        with faults(node.root, k, error(ERRORS[k % len(ERRORS)])) as fault:
            answer = unprepare(node)
        if answer is None:
            assert node.snapshot() == {}, f"operation {k} ({fault.names[k]}): said to be gone"
        else:
            message = refusal(answer)
            assert str(node.root) in message, f"operation {k} ({fault.names[k]}): {message}"
            assert node.records.path(uid()).exists() == had_record
        assert unprepare(node) is None
        assert node.snapshot() == {}


@pytest.mark.parametrize("situation", [prepared, unmounted, damaged, forgotten])
def test_a_death_in_unprepare_leaves_nothing_for_ever(situation: Situation, node_in: MakeNode) -> None:
    """After a restart the claim is whole or gone, and the kubelet's next unprepare ends it."""
    for k in each_operation(node_in(situation), unprepare):
        node = node_in(situation)
        with faults(node.root, k, Died):
            unprepare(node)
        node.start()
        asyncio.run(node.recover())
        assert leftovers(node) == []
        left = node.snapshot()
        if left and situation is prepared:
            assert node.records.load(uid()) is not None, f"operation {k}: {list(left)} but no record tells of it"
            is_right(node)
        assert unprepare(node) is None
        assert node.snapshot() == {}


def test_a_short_write_is_continued(node: Node) -> None:
    """write(2) may take less than it was given; the file is whole all the same."""
    nothing(node)
    with pytest.MonkeyPatch.context() as patch:
        real = os.write
        patch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:100]))
        devices(asyncio.run(node.prepare(BEFORE))[0])
    is_right(node)


def test_a_missing_library_refuses_and_mends(node: Node, image: Path, tmp_path: Path) -> None:
    """Without a whole libvgpu.so no container starts; when it is there again, the same call succeeds."""
    nothing(node)
    shutil.copytree(image, tmp_path / "image")
    node.shipped = dataclasses.replace(node.shipped, hami_core=tmp_path / "image")
    node.start()
    library = tmp_path / "image" / "libvgpu.so"
    library.write_bytes(library.read_bytes()[:100])
    shutil.rmtree(node.hami)
    message = refusal(asyncio.run(node.prepare(BEFORE))[0])
    assert str(library) in message
    assert node.snapshot() == {}
    shutil.copy(image / "libvgpu.so", library)
    devices(asyncio.run(node.prepare(BEFORE))[0])
    is_right(node)
