"""What programs do with CUDA_VISIBLE_DEVICES and the like, and what has to come of it."""

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.real_core.container import CONTEXT, LAYOUT, LIMITS, UUIDS, Container, Program

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Case:
    """Something that a container's programs do.

    Attributes:
        name: In the table.
        run: Does it; what is wrong is noted in the container.
        cores: Percent of each GPU.
        hole: The library without our patch is known to get it wrong.
    """

    name: str
    run: Callable[[Container], None]
    cores: tuple[int, int] = (0, 0)
    hole: bool = True


def initialised(program: Program, visible: str | None, *, nvml_first: bool = False, order: bool = True) -> int:
    """How many devices it sees, with such a variable of its own (None: without it)."""
    program(f"set {VARIABLE}={visible}" if visible is not None else f"unset {VARIABLE}")
    if not order:
        program("unset CUDA_DEVICE_ORDER")
    if nvml_first:
        program("nvml")
    answer = program("init")
    return int(answer) if answer.isdecimal() else -1


def alone(
    visible: str | None, gpus: Sequence[int], *, nvml_first: bool = False, order: bool = True
) -> Callable[[Container], None]:
    """One program that takes all it can get: device by device, which are these GPUs. Each gives its limit, and no more."""

    def run(container: Container) -> None:
        with container.program() as program:
            container.expect("devices", initialised(program, visible, nvml_first=nvml_first, order=order), len(gpus))
            for device, gpu in enumerate(gpus):
                container.expect(f"got of GPU {gpu}", program("fill", device), str(LIMITS[gpu] - CONTEXT))
                container.expect(f"GPU {gpu} by cuDeviceTotalMem", program("total", device), str(LIMITS[gpu]))
                container.expect(f"GPU {gpu} by cuMemGetInfo", program("info", device), f"0 {LIMITS[gpu]}")
            container.check("full")
            program("nvml")
            for gpu, limit in enumerate(LIMITS):
                used = limit if gpu in gpus else 0
                container.expect(f"GPU {gpu} by NVML", program("shown", gpu), f"{used} {limit}")
            program("free")
            container.check("freed")

    return run


def only_one(visible: str | None) -> Callable[[Container], None]:
    """In a container with one GPU, as most have, the first one's limit is all that there is; NVML isn't asked for buses."""

    def run(container: Container) -> None:
        with container.program() as program:
            program("set FAKE_GPUS_COUNT=1")
            program("set FAKE_GPUS_LOST=1")
            container.expect("devices", initialised(program, visible, order=False), 1)
            container.expect("got", program("fill", 0), str(LIMITS[0] - CONTEXT))
            container.check("full")

    return run


def by_turns(container: Container, *takers: tuple[Program, int]) -> None:
    """Each takes 100 MiB of its device after the other, until none gets any more."""
    while [None for program, device in takers if program("alloc", device, 100) == "1"]:
        pass
    container.check("full")


def two_on_two(container: Container) -> None:
    """Two processes at once, each on a GPU of its own, as workers of a launcher are."""
    with container.program() as one, container.program() as two:
        initialised(one, "0"), initialised(two, "1")
        for program in (one, two):
            program.tell("fill", 0)
        container.expect("got", (one.answer(), two.answer()), tuple(str(limit - CONTEXT) for limit in LIMITS))
        container.check("full")


def two_on_one(container: Container) -> None:
    """Two processes at once on one GPU, by different numbers."""
    with container.program() as one, container.program() as two:
        initialised(one, "1"), initialised(two, "0,1")
        by_turns(container, (one, 0), (two, 1))
        container.expect("full", container.used[1], LIMITS[1])


def killed(container: Container) -> None:
    """What a killed process held is free for the next one, and no more."""
    with container.program() as program:
        initialised(program, "1")
        program("fill", 0)
        program.kill()
    alone(UUIDS[1], [1])(container)


def killed_beside(container: Container) -> None:
    """The first of three is killed; those that go on are held to the limits that they had."""
    with container.program() as first, container.program() as second, container.program() as third:
        for program, visible in ((first, "0"), (second, "1"), (third, "1")):
            initialised(program, visible)
            program("alloc", 0, 100)
        first.kill()
        by_turns(container, (second, 0), (third, 0))
        second("free")
        by_turns(container, (third, 0))
        with container.program() as fourth:
            initialised(fourth, "1,0")
            third("free")
            by_turns(container, (fourth, 1), (fourth, 0), (third, 0), (second, 0))


def at_random(container: Container) -> None:
    """Processes come, take, free and are killed; the same ones each time."""
    chance, running = random.Random(8), list[Program]()
    with contextlib.ExitStack() as stack:
        for _ in range(120):
            what = chance.choice(("start", "kill", *["alloc 0 100"] * 6, "free"))
            if what == "start":
                if len(running) == 8:
                    running.pop(0).kill()
                running.append(stack.enter_context(container.program()))
                initialised(running[-1], chance.choice(("0", "1", "1,0", *UUIDS)))
            elif running and what == "kill":
                running.pop(chance.randrange(len(running))).kill()
            elif running:
                chance.choice(running)(what)
        running.append(stack.enter_context(container.program()))
        initialised(running[-1], None)
        by_turns(container, *((program, 0) for program in running), (running[-1], 1))


def lost(container: Container) -> None:
    """NVML doesn't know a GPU that CUDA names: better no program than one with the limit of another GPU."""
    with container.program() as program:
        program("set FAKE_GPUS_LOST=1")
        program(f"set {VARIABLE}=1")
        container.expect("init", program("init"), "ended")
        program("fill", 0)
    container.expect("said", "can't find out which GPU is which" in container.log, True)


def restarted(container: Container) -> None:
    """All are killed, and the container starts again."""
    with container.program() as program, container.program() as other:
        initialised(program, "1"), initialised(other, None)
        program("fill", 0), other("fill", 0)
    container.start()
    alone("1,0", [1, 0])(container)


def forked(container: Container) -> None:
    """A child with another variable than its parent, which had asked NVML before."""
    with container.program() as program:
        program("nvml")
        container.expect("forked", program("fork") != "ended", True)
        container.expect("devices", initialised(program, "1"), 1)
        container.expect("got", program("fill", 0), str(LIMITS[1] - CONTEXT))
        container.check("full")


def elsewhere(container: Container) -> None:
    """Memory on one GPU while another one is the current one, and freed so."""
    with container.program() as program:
        initialised(program, "1,0")
        program("alloc", 1, 100)
        container.expect("got of GPU 1", program("create", 0), str(LIMITS[1]))
        container.check("full")
        program("free")
        container.check("freed")


def pools(container: Container) -> None:
    """The pools of two GPUs in one program; what is freed is another one's than the current one."""
    with container.program() as program:
        initialised(program, None)
        for gpu, limit in enumerate(LIMITS):
            container.expect(f"got of GPU {gpu}", program("pool", gpu), str(limit - CONTEXT))
        container.check("full")
        program("free")
        container.check("freed")


def made_by_the_library(container: Container) -> None:
    """Without a region the library makes one out of its variables: it has to be laid out as ours is."""
    ours = container.remove_region()
    with container.program() as program:
        initialised(program, None)
        program("nvml")
        made = container.region.read_bytes()
    container.expect("bytes of the region", len(made), len(ours))
    limits = slice(LAYOUT.device_num, LAYOUT.sm_limit + 8 * 16)
    for part, what in ((slice(0, 12), "magic and version"), (limits, "number, UUIDs and limits of the GPUs")):
        container.expect(f"{what} as in ours", made[part] == ours[part], True)


def slowed(*limited: int, visible: str, policy: str | None = None) -> Callable[[Container], None]:
    """Kernels wait on the GPUs with a core limit, which are these, and on no other."""

    def run(container: Container) -> None:
        devices = [int(number) for number in visible.split(",")]
        for device, gpu in enumerate(devices):
            with container.program() as program:
                if policy:
                    program(f"set GPU_CORE_UTILIZATION_POLICY={policy}")
                initialised(program, visible)
                program("launch", device, 500)  # until its watcher has looked
                some = program("launch", device, 1000)
                # Without a limit it is tens of thousands; with one, a kernel of this size waits for a look of the watcher.
                container.expect(f"GPU {gpu} is slowed", some.isdecimal() and int(some) < 1000, gpu in limited)

    return run


def _visible() -> list[Case]:
    first, second = UUIDS
    shown: list[tuple[str, str | None, list[int], bool]] = [
        ("none", None, [0, 1], False),
        ("0", "0", [0], False),
        ("1", "1", [1], True),
        ("1,0", "1,0", [1, 0], True),
        ("UUID of GPU 1", second, [1], True),
        ("UUIDs of both, turned", f"{second},{first}", [1, 0], True),
        ("beginnings of UUIDs", f"{second[:9]},{first[:9]}", [1, 0], True),
        ("MIG instance of GPU 1", f"MIG-{second}/1/0", [1], True),
        ("1,99,0", "1,99,0", [1], True),
        ("1,-1", "1,-1", [1], True),
        ("1,junk", "1,junk", [1], True),
        ("-1", "-1", [], False),
    ]
    cases = [Case(name, alone(visible, gpus), hole=hole) for name, visible, gpus, hole in shown]
    cases += [
        Case(f"{name}, NVML first", alone(visible, gpus, nvml_first=True), hole=hole)
        for name, visible, gpus, hole in shown[:5]
    ]
    cases += [
        Case("none, fastest first", alone(None, [1, 0], order=False)),
        Case("0, fastest first", alone("0", [1], order=False)),
    ]
    return cases


CASES: Final = [
    Case("the library's own region", made_by_the_library, hole=False),
    *_visible(),
    *(
        Case(f"one GPU, {name}", only_one(visible), hole=False)
        for name, visible in (("none", None), ("UUID", UUIDS[0]))
    ),
    Case("two processes, 0 and 1", two_on_two),
    Case("two processes, 1 and 0,1", two_on_one),
    Case("killed with 1, next by UUID", killed),
    Case("one of three killed, a new one", killed_beside),
    Case("eight, at random", at_random),
    Case("1, and NVML doesn't find the GPU", lost),
    Case("container restarted, then 1,0", restarted),
    Case("a child with 1", forked),
    Case("cuMemCreate on the other GPU", elsewhere),
    Case("cuMemAllocAsync on both GPUs", pools),
    Case("cores of GPU 1, with 0,1", slowed(1, visible="0,1"), cores=(0, 20), hole=False),
    Case("cores of GPU 1, with 1", slowed(1, visible="1"), cores=(0, 20)),
    Case("cores of GPU 0, with 1,0", slowed(0, visible="1,0"), cores=(20, 0)),
    # What HAMi-core means by it: a program may lift its own core limit. docs/limits.md says so.
    Case("core policy disable, own", slowed(visible="0,1", policy="disable"), cores=(20, 20), hole=False),
]
