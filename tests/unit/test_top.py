"""What `top` shows of GPUs and containers."""

import dataclasses
import json
import os
import shutil

import pytest

from hami_kubeletplugin import top
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.usage.model import Memory, OfContainer, OfGpu, OfNode, OnGpu

GPU = OfGpu(0, "GPU-a", "NVIDIA A100", 40960 * MIB, 5000 * MIB, 40, 20)
ON = OnGpu("GPU-a", "hami-gpu-0", Limit(4000, 30), Limit(4000, 30), Memory(1000 * MIB, 1, 2, 3), 25)
OF = OfContainer(
    claim=ClaimRef("ml", "c", "uid-1"),
    use=0,
    namespace="ml",
    pod="train",
    pod_uid="p-1",
    container="main",
    container_index=0,
    gpus=(ON,),
    whole=False,
    source="region",
    processes=2,
    last_kernel=940.0,
)


def rows(found: OfNode) -> list[list[str]]:
    """Cells of its lines, by two spaces or more."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in top.text(found).splitlines()]


def container(**fields: object) -> OfContainer:
    """One like `OF`."""
    return dataclasses.replace(OF, **fields)  # type: ignore[arg-type]


def on_gpu(**fields: object) -> OfContainer:
    """`OF` with other facts of its GPU."""
    return container(gpus=(dataclasses.replace(ON, **fields),))  # type: ignore[arg-type]


def test_what_is_allocated_and_used_stands_side_by_side() -> None:
    """Of each GPU, and of each container; a claim that two containers share is allocated once."""
    other = container(container="side", pod="train")
    third = container(claim=ClaimRef("ml", "d", "uid-2"), pod="serve", pod_uid="p-2")
    _, _, _, gpu, _, _, *lines = rows(OfNode(1000.0, (GPU,), (OF, other, third)))
    assert gpu == ["0", "NVIDIA A100", "GPU-a", "40960Mi", "8000Mi", "5000Mi", "60%", "40%"]
    same = ["0", "4000Mi", "1000Mi", "25%", "30%", "25%", "2", "1m ago"]
    assert lines == [["ml/serve", "main", *same], ["ml/train", "main", *same], ["ml/train", "side", *same]]


def test_two_claims_of_a_container_on_one_gpu_are_allocated_once() -> None:
    """Each says what the container has of both, so their sum would be twice that."""
    both = dataclasses.replace(ON, limit=Limit(5000, 40))
    claims = (ClaimRef("ml", "c", "uid-1"), ClaimRef("ml", "d", "uid-2"))
    of = [container(claim=claim, gpus=(both,)) for claim in claims]
    gpu = rows(OfNode(1000.0, (GPU,), (*of, container(claim=ClaimRef("ml", "e", "uid-3"), pod="q", pod_uid="p-2"))))[3]
    assert (gpu[4], gpu[6]) == ("9000Mi", "70%")


@pytest.mark.parametrize(
    ("of", "note"),
    [
        (on_gpu(region=Limit(40000)), "LIMIT CHANGED to 40000Mi, no core limit"),
        (on_gpu(region=Limit(0, 30)), "LIMIT CHANGED to no memory limit, 30%"),
        (container(whole=True), "not limited"),
        (container(source="nvml"), "seen by NVML"),
    ],
)
def test_what_one_has_to_know_is_noted(of: OfContainer, note: str) -> None:
    """A limit that was changed before all."""
    assert note in rows(OfNode(1000.0, (GPU,), (of,)))[-1]


def test_what_is_not_known_is_no_zero() -> None:
    """Neither of GPUs nor of containers."""
    gpu = dataclasses.replace(GPU, memory_used=None, utilization=None)
    unknown = dataclasses.replace(on_gpu(used=None, utilization=None), processes=None, last_kernel=None)
    found = rows(OfNode(1000.0, (gpu,), (unknown,)))
    assert (found[3][5], found[3][7]) == ("?", "?")
    assert found[-1] == ["ml/train", "main", "0", "4000Mi", "?", "?", "30%", "?", "?", "-"]
    assert "no GPU can be seen" in top.text(OfNode(0.0))


def test_nobody_gives_orders_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines end at its width and are no more than it has, and control characters from wherever are shown as `?`."""
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((40, 22)))
    evil = dataclasses.replace(GPU, name="A\x1b]0;x\x07B\n\u202e")
    shown = top.screen(OfNode(1000.0, (evil,), tuple(container(container=f"c{i}") for i in range(50))))
    assert shown.startswith(top.CLEAR)
    lines = shown.removeprefix(top.CLEAR).splitlines()
    assert (len(lines), max(map(len, lines))) == (21, 40)
    assert "more lines: --once shows all" in lines[-1]
    assert not [char for line in lines for char in line if not char.isprintable()]


def test_programs_get_all_of_it() -> None:
    """With the names of the model."""
    found = json.loads(top.as_json(OfNode(1000.0, (GPU,), (on_gpu(region=Limit(1)),))))
    assert (found["at"], found["gpus"][0]["memory_used"]) == (1000.0, 5000 * MIB)
    (of,) = found["containers"]
    assert (of["claim"], of["differs"]) == ({"namespace": "ml", "name": "c", "uid": "uid-1"}, True)
    assert of["gpus"][0]["limit"] == {"memory_mib": 4000, "cores": 30}
    assert of["gpus"][0]["used"] == {"total": 1000 * MIB, "context": 1, "module": 2, "buffer": 3}
