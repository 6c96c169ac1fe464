"""A node with prepared claims, their regions and processes, and what is told of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hami_kubeletplugin.api.errors import ApiNotFound
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import AllocatedClaim, read_claim
from hami_kubeletplugin.claims.numbering import numbered
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import read_pod
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.hamicore.region import LAYOUTS, region
from hami_kubeletplugin.hamicore.regions import create_regions
from hami_kubeletplugin.hamicore.storage import stored
from hami_kubeletplugin.usage.model import OfContainer
from hami_kubeletplugin.usage.sample import OfProcess, Sample
from hami_kubeletplugin.usage.service import UsageOfNode
from tests.unit.claims.objects import GPUS, NODE, UUID, Json, ref, uid_of
from tests.unit.proc_tree import ProcTree
from tests.waiting import settled

SLOT, USED, BUSY = 1960, 64, 48


class Api:
    """Pods as the API server has them."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.asked = 0

    async def get_pod(self, namespace: str, name: str, *, cached: bool = False) -> Json:
        """As the client's."""
        self.asked += 1
        if name not in self.pods:
            raise ApiNotFound(f"{namespace}/{name}")
        return self.pods[name]


class World:
    """A node with prepared claims and processes."""

    def __init__(self, root: Path) -> None:
        self.hami, self.records, self.api = root / "vgpu", Records(root / "claims"), Api()
        self.records.open()
        self.proc = ProcTree(root / "proc")
        (self.hami / "cache").mkdir(parents=True)
        (self.proc.root / "900/mountinfo").write_text(f"50 40 8:1 / {self.hami} rw - ext4 /dev/sda1 rw\n")
        self.proc.add(1, "mnt:[0]", name="systemd")
        self.renew()

    def renew(self) -> None:
        """A daemon that has not looked yet."""
        self.usage = UsageOfNode(
            records=self.records,
            hami_dir=self.hami,
            gpus=GPUS.by_uuid,
            sessions=None,
            pods=self.api,
            proc=self.proc.root,
        )

    def nvml(self, processes: dict[int, dict[int, OfProcess]]) -> None:
        """What NVML says, by minor and PID."""
        told = {UUID[minor]: processes.get(minor, {}) for minor in UUID}

        class Told:
            async def sample(self) -> Sample:
                """Always the same."""
                return Sample((), told)

        self.usage._sampler = Told()  # type: ignore[assignment]

    def prepare(self, obj: Json, its_pod: Json, neighbours: Sequence[Json] = (), *, regions: bool = True) -> Prepared:
        """Record a claim, and make its files."""

        def read(one: Json) -> AllocatedClaim:
            return read_claim(one, ref(one), driver=DRIVER, node=NODE)

        made = replace(
            plan(
                read(obj),
                pods=[read_pod(its_pod)],
                neighbours=[read(other) for other in neighbours],
                gpus=GPUS.by_device_name(),
                boot_id="b",
                driver=DRIVER,
            ),
            regions=regions,
            library="2.10.0",
        )
        self.records.save(made)
        folder = ClaimDir(self.hami, made.uid)
        gpus = GPUS.by_uuid()
        contents = {
            name: region(LAYOUTS["1.2"], numbered(use, gpus), use.policy)
            for name, use in stored(made, "region").items()
        }
        create_regions(folder, contents)
        for name in stored(made, "directory"):
            folder.make_cache(name)
        return made

    def runs(self, pid: int, obj: Json, use: str = "use-0", *, own_pid: int | None = None) -> None:
        """The first process of a container with files of a claim."""
        what = f"{use}.region" if (self.hami / f"cache/{obj['metadata']['uid']}/{use}.region").exists() else use
        mounts = f"60 40 8:1 /cache/{obj['metadata']['uid']}/{what} /tmp/x rw - ext4 /dev/sda1 rw\n"
        self.proc.add(pid, f"mnt:[{pid}]", mounts)
        self.calls_itself(pid, own_pid or pid)

    def calls_itself(self, pid: int, own_pid: int) -> None:
        """Its PID in its own name space."""
        (self.proc.root / f"{pid}/status").write_text(f"Name:\tsh\nNSpid:\t{pid}\t{own_pid}\nGroups:\t\n")

    def in_pod(self, pid: int, name: str, container_id: str) -> None:
        """A process of a container without files of ours."""
        uid = uid_of("pod", name).replace("-", "_")
        self.proc.add(
            pid,
            f"mnt:[{pid}]",
            cgroup=f"/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{container_id}.scope",
        )

    def uses(self, obj: Json, slot: int, pid: int, *, use: str = "use-0", **of_gpu: tuple[int, int]) -> None:
        """A process allocates: bytes and percent by `gpuN`, N as its container numbers GPUs."""
        path = self.hami / "cache" / obj["metadata"]["uid"] / f"{use}.region"
        with path.open("r+b") as file:

            def write(offset: int, number: int, size: int = 8) -> None:
                file.seek(offset)
                file.write(number.to_bytes(size, "little"))

            at = 1856 + slot * SLOT
            write(at, pid, 4)
            for name, (memory, busy) in of_gpu.items():
                number = int(name.removeprefix("gpu"))
                write(at + 8 + number * USED + 16, memory)
                write(at + 8 + number * USED + 32, memory)
                write(at + 1160 + number * BUSY + 16, busy)
            file.seek(2_008_896)
            count = int.from_bytes(file.read(4), "little")
            write(2_008_896, max(count, slot + 1), 4)

    async def containers(self) -> tuple[OfContainer, ...]:
        """What is told now, once what is asked in the background has been answered."""
        self.usage._last = None
        found = (await self.usage.look()).containers
        await settled()
        return found

    async def only(self) -> OfContainer:
        """Of the only container."""
        (found,) = await self.containers()
        return found
