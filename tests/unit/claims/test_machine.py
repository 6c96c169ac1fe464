"""Any sequence of prepares, unprepares, deaths, reboots and hands in our directories, against a simple model.

The model knows for each claim what is allocated, and whether the kubelet holds it for prepared. A claim that the kubelet
holds for prepared must have right limits on the node after the daemon has recovered; one that it never asked for, or let go,
must have left nothing.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.api.errors import ApiError, HamiError, RecordDamaged
from hami_kubeletplugin.api.settings import ClaimFiles
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.unit.claims.cdi_runtime import check, inject, kubelet_ids
from tests.unit.claims.file_faults import Died, error, faults
from tests.unit.claims.node import KIND, Answer, Node
from tests.unit.claims.objects import GPUS, Json, claim, container, pod, result
from tests.unit.hamicore.mounted import can_mount

P = ParamSpec("P")
T = TypeVar("T")

NAMES = ("alone", "one", "two")
"""The last two are used by one container together."""
UUID = {f"hami-gpu-{minor}": GPUS.by_device_name()[f"hami-gpu-{minor}"].uuid for minor in range(4)}
names = st.sampled_from(NAMES)
operations = st.integers(0, 45)


class NodeMachine(RuleBasedStateMachine):
    """The node, and what is known of it from outside."""

    shipped: Shipped
    claim_files: ClaimFiles

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="hami-machine-"))
        self.node = Node(self.root / "node", self.shipped, claim_files=self.claim_files)
        self.objects: dict[str, Json] = {}
        self.prepared: set[str] = set()
        """The kubelet got a good answer, and has not unprepared since."""
        self.asked: set[str] = set()
        """The kubelet has asked, whatever came of it, and has not unprepared since."""
        self.answers: dict[str, tuple[PreparedDevice, ...]] = {}
        self.settled = True
        """Nothing has been deleted or interrupted since the last recovery."""
        self.shares = itertools.count()
        self.written: dict[int, Path] = {}
        """Regions that a container has written to, by a descriptor that keeps the file's numbers its own."""
        self.api_away = False

    def teardown(self) -> None:
        """Remove the node."""
        for descriptor in self.written:
            os.close(descriptor)
        self.node.unmount()
        shutil.rmtree(self.root, ignore_errors=True)

    @initialize()
    def pods(self) -> None:
        """Two pods: a container with one claim, and one with two."""
        self.node.api.put(pod("p", container("x", "alone")), pod("q", container("x", "one", "two")))
        for index, name in enumerate(NAMES):
            self.allocate(name, index, 1000 + index, 10)

    def allocate(self, name: str, device: int, memory: int, cores: int) -> None:
        """The scheduler's part, under the claim's UID."""
        made = result(device, f"{memory}Mi", str(cores), share=f"s{next(self.shares)}")
        obj = claim(name, [made], pods=["p" if name == "alone" else "q"])
        self.objects[name] = obj
        self.node.api.put(obj)
        self.answers.pop(name, None)

    def unused(self, name: str) -> bool:
        """Whether the scheduler may allocate it anew: nothing of its pod is prepared."""
        mates = ("alone",) if name == "alone" else ("one", "two")
        return not self.asked.intersection(mates)

    @precondition(lambda self: any(self.unused(name) for name in NAMES))
    @rule(data=st.data(), device=st.integers(0, 3), memory=st.integers(1, 81920), cores=st.integers(0, 100))
    def allocate_anew(self, data: st.DataObject, device: int, memory: int, cores: int) -> None:
        """A claim that nobody uses is deallocated and allocated again, as far as there is room: the scheduler counts right."""
        name = data.draw(st.sampled_from([name for name in NAMES if self.unused(name)]))
        for other in set(NAMES) - {name}:
            (one,) = self.objects[other]["status"]["allocation"]["devices"]["results"]
            if one["device"] == f"hami-gpu-{device}":
                memory -= int(one["consumedCapacity"]["memory"].removesuffix("Mi"))
                cores -= int(one["consumedCapacity"]["cores"])
        self.allocate(name, device, max(memory, 1), max(cores, 0))

    def pod_of(self, name: str) -> list[str]:
        """The claims that the kubelet sends together: all of the pod that it does not hold for prepared."""
        mates = ["alone"] if name == "alone" else ["one", "two"]
        return [mate for mate in mates if mate not in self.prepared] or mates

    def call(self, name: str) -> dict[str, Answer]:
        """NodePrepareResources for a pod."""
        asked = self.pod_of(name)
        self.asked.update(asked)
        answers = asyncio.run(self.node.prepare(*(self.objects[n] for n in asked)))
        return dict(zip(asked, answers, strict=True))

    def settle(self, answers: dict[str, Answer], *, must: bool) -> None:
        """Take over good answers; `must` they be good?"""
        for name, answer in answers.items():
            if isinstance(answer, HamiError):
                assert not must, f"{name} refused: {answer}"
                continue
            assert self.answers.setdefault(name, answer) == answer, "another answer than before"
        if not any(isinstance(answer, HamiError) for answer in answers.values()):
            self.prepared.update(answers)

    @rule(name=names)
    def prepare(self, name: str) -> None:
        """The kubelet starts a pod. While nobody knows what a claim holds, none that is new gets in until recovery's turn."""
        must = not self.api_away and not any(self.holds_what_nobody_knows(other) for other in NAMES)
        self.settle(self.call(name), must=must)

    @rule(name=names)
    def unprepare(self, name: str) -> None:
        """The kubelet lets a pod go; no API server is needed."""
        mates = ["alone"] if name == "alone" else ["one", "two"]
        assert asyncio.run(self.node.unprepare(*(self.objects[n] for n in mates))) == [None] * len(mates)
        self.prepared.difference_update(mates)
        self.asked.difference_update(mates)

    @rule(name=names, at=operations, number=st.sampled_from([5, 13, 28]))
    def prepare_with_a_failing_disk(self, name: str, at: int, number: int) -> None:
        """One file operation fails."""
        with faults(self.root, at, error(number)):
            answers = self.call(name)
        self.settle(answers, must=False)

    @rule(name=names, at=operations)
    def die_in_prepare(self, name: str, at: int) -> None:
        """The daemon is killed, and the kubelet has no answer."""
        with faults(self.root, at, Died) as fault:
            answers = self.call(name)
        if fault.happened:
            self.settled = False
            self.node.start()
        else:
            self.settle(answers, must=False)

    @rule(name=names, at=operations, recovered=st.booleans())
    def die_in_unprepare(self, name: str, at: int, recovered: bool) -> None:
        """The daemon is killed, and the kubelet asks again, before or after recovery's turn."""
        mates = ["alone"] if name == "alone" else ["one", "two"]
        with faults(self.root, at, Died):
            asyncio.run(self.node.unprepare(*(self.objects[n] for n in mates)))
        self.node.start()
        if recovered:
            asyncio.run(self.node.recover())
        self.unprepare(name)

    @rule(name=names, at=operations)
    def unprepare_with_a_failing_disk(self, name: str, at: int) -> None:
        """One file operation fails, and the kubelet asks again."""
        mates = ["alone"] if name == "alone" else ["one", "two"]
        with faults(self.root, at, error(5)):
            asyncio.run(self.node.unprepare(*(self.objects[n] for n in mates)))
        self.unprepare(name)

    @rule()
    def restart(self) -> None:
        """The daemon is replaced."""
        self.node.start()

    @rule()
    def reboot(self) -> None:
        """All containers are gone, so the kubelet asks again for all pods."""
        self.node.reboot()
        self.prepared.clear()
        self.settled = False

    def life(self, name: str) -> str:
        """What a region file belongs to: a boot and an allocation."""
        (one,) = self.objects[name]["status"]["allocation"]["devices"]["results"]
        return f"boot {self.node.boots}, share {one['shareID']}"

    def regions(self, name: str) -> list[Path]:
        """Where region files of a claim are, or where the library would make them."""
        folder = self.node.hami / "cache" / self.uid(name)
        return list(folder.glob("*.region")) if self.node.regions else [f / "vgpu.cache" for f in folder.glob("*")]

    def uid(self, name: str) -> str:
        """Of a claim."""
        found: str = self.objects[name]["metadata"]["uid"]
        return found

    @precondition(lambda self: self.settled)
    @rule(name=names)
    def use(self, name: str) -> None:
        """A container of a prepared claim makes its region file, or writes to it."""
        for region in self.regions(name) if name in self.prepared else []:
            region.write_bytes(self.life(name).encode().ljust(2_008_953, b"\0"))
            self.written[os.open(region, os.O_RDONLY)] = region

    @rule(away=st.booleans())
    def api_server(self, away: bool) -> None:
        """Goes or comes. Not as ApiUnavailable, which is waited for."""
        self.api_away = away
        self.node.api.error = ApiError("the API server is away") if away else None

    @rule(name=names, what=st.sampled_from(["spec", "cache", "mount", "record", "damage"]))
    def harm(self, name: str, what: str) -> None:
        """Somebody deletes or breaks a file."""
        uid = self.uid(name)
        record, spec = self.node.records.path(uid), self.node.specs.path(uid)
        if what == "spec":
            spec.unlink(missing_ok=True)
        elif what == "cache":
            shutil.rmtree(self.node.hami / "cache" / uid, ignore_errors=True)
        elif what == "mount":
            mounts.unmount(self.node.hami / "cache" / uid)
        elif what == "record":
            record.unlink(missing_ok=True)
        elif record.exists():
            record.write_bytes(record.read_bytes()[:-3])
        self.settled = False

    @precondition(lambda self: not self.api_away)
    @rule()
    def recover(self) -> None:
        """Recovery's turn."""
        unknown = {name for name in self.prepared if not self.is_known(name)}
        asyncio.run(self.node.recover())
        self.prepared -= unknown  # until the kubelet asks again
        self.settled = True

    def holds_what_nobody_knows(self, name: str) -> bool:
        """Whether a claim has a spec, and no record that can be used."""
        uid = self.uid(name)
        try:
            return self.node.specs.exists(uid) and self.node.records.load(uid) is None
        except RecordDamaged:
            return True

    def is_known(self, name: str) -> bool:
        """Whether a good record or a spec tells of a claim."""
        uid = self.uid(name)
        try:
            return self.node.records.load(uid) is not None or self.node.specs.exists(uid)
        except RecordDamaged:
            return self.node.specs.exists(uid)

    @invariant()
    def limits_are_right(self) -> None:
        """Containers of prepared claims get what is allocated, in any order of injection."""
        if not self.settled or not self.objects:
            return
        specs = self.node.all_specs()
        for spec in specs:
            check(spec)
        for mates in (("alone",), ("one", "two")):
            if not self.prepared.issuperset(mates):
                continue
            expected: dict[str, tuple[int, int]] = {}
            for mate in mates:
                (one,) = self.objects[mate]["status"]["allocation"]["devices"]["results"]
                memory, cores = expected.get(UUID[one["device"]], (0, 0))
                capacity = one["consumedCapacity"]
                expected[UUID[one["device"]]] = memory + int(capacity["memory"][:-2]), cores + int(capacity["cores"])
            expected = {uuid: (memory, min(cores, 100)) for uuid, (memory, cores) in expected.items()}
            ids = kubelet_ids(self.answers, [(mate, None) for mate in mates])
            for order in (ids, ids[::-1]):
                seen = inject(specs, order)
                assert seen.limits(GPUS) == expected
                assert seen.has_right_region(GPUS) == self.node.regions
                assert self.node.regions or Path(seen.mounts["/usr/local/vgpu/cache"]).is_dir()

    @invariant()
    def regions_are_of_now(self) -> None:
        """What the library makes keeps its first limits and its processes for ever: none outlives its boot or allocation."""
        for name in self.prepared if self.settled and not self.node.regions else ():
            found = {region.read_bytes().rstrip(b"\0").decode() for region in self.regions(name) if region.exists()}
            assert found <= {self.life(name)}

    @invariant()
    def regions_in_use_are_left_alone(self) -> None:
        """What a container wrote stays; only a start's hook renews it."""
        there = [p for d, p in self.written.items() if p.exists() and os.path.samestat(os.fstat(d), p.stat())]
        if self.node.regions:
            assert all(path.read_bytes().startswith(b"boot ") for path in there)

    @invariant()
    def nothing_is_left_over(self) -> None:
        """What the kubelet never asked for or let go has no file; and nothing stays half-written after a recovery."""
        uids = {self.uid(name) for name in self.asked if name in self.objects}
        left = [path for path in self.node.snapshot() if not any(uid in path for uid in uids)]
        assert left == []
        half = [path for path in self.root.rglob("*") if path.name.endswith(".tmp")]
        # Killed over a region, and then somebody deleted the record: only the kubelet, which asks again, knows of that claim.
        untold = [self.node.hami / "cache" / self.uid(name) for name in self.objects if not self.is_known(name)]
        half = [path for path in half if path.parent not in untold]
        assert not [path for path in half if self.settled or path.is_relative_to(self.node.plugin)]

    @invariant()
    def the_answer_is_in_the_records(self) -> None:
        """A restarted daemon finds all that it prepared."""
        if not self.settled:
            return
        kept = Records(self.node.plugin / "claims")
        for name in self.prepared:
            record = kept.load(self.uid(name))
            assert record is not None
            assert record.devices(KIND) == self.answers[name]


async def in_line(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Like `asyncio.to_thread`, without a thread."""
    return function(*arguments, **named)


@pytest.mark.parametrize("claim_files", ["disk", pytest.param("memory", marks=can_mount)])
def test_any_sequence_of_events(shipped: Shipped, claim_files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are right and nothing is left over, whatever happens in whatever order."""
    monkeypatch.setattr(mounts, "lacking", lambda _: None)  # no container runtime has to see it here
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    # In threads, two claims of one pod would take turns as they like, and the same steps would lead elsewhere each time.
    monkeypatch.setattr(asyncio, "to_thread", in_line)
    machine = type("Machine", (NodeMachine,), {"shipped": shipped, "claim_files": claim_files})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30 if claim_files == "disk" else 15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
