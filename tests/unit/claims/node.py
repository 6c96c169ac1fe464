"""A node for the claims' tests: objects as the API server has them, a small API, and the whole service over a directory."""

import asyncio
import copy
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hami_kubeletplugin.api.cdi import ContainerEdits, Spec
from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.errors import ApiError, ApiNotFound, ApiUnavailable, DriverMissing, HamiError
from hami_kubeletplugin.api.names import CONFIG_API_VERSION, CONFIG_KIND, DRIVER, MIB
from hami_kubeletplugin.claims.enforcement import NoEnforcement
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare
from hami_kubeletplugin.claims.reader import ClaimApi
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.recovery import Recovery, RecoveryApi
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.hamicore.host import HostFiles, Installed
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.kube.claim_api import Wanted
from tests.unit.claims.cdi_runtime import inject, kubelet_ids

NODE = "node-1"
NAMESPACE = "default"
HAMI = Path("/usr/local/vgpu")
KIND = f"k8s.{DRIVER}/claim"

Json = dict[str, Any]
Answer = tuple[PreparedDevice, ...] | HamiError


def gpu(minor: int, bus: int, *, name: str = "") -> Gpu:
    """A GPU with 80 GiB. Its UUID follows from `name`, or else its minor."""
    tail = hashlib.sha256(f"{name or minor}".encode()).hexdigest()[:12]
    return Gpu(
        uuid=f"GPU-00000000-0000-0000-0000-{tail}",
        minor=minor,
        pci_bus_id=f"0000:{bus:02x}:00.0",
        name="NVIDIA A100",
        brand="Nvidia",
        architecture="Ampere",
        compute_capability=(8, 0),
        memory_bytes=81920 * MIB,
        driver_version="550.54.15",
        cuda_driver_version=(12, 4),
        pcie_root=None,
        numa_node=None,
    )


def inventory(gpus: Iterable[Gpu]) -> Inventory:
    """As `GpuSource` gives it: in bus order."""
    return Inventory(tuple(sorted(gpus, key=lambda g: g.bus_order)))


GPUS = inventory([gpu(0, 0xAF), gpu(1, 0x86), gpu(2, 0x3B), gpu(3, 0x5E)])
"""Minors against bus order: whoever numbers by minor, name or list order gets limits wrong here. By bus: 2, 3, 1, 0."""

UUID = {g.minor: g.uuid for g in GPUS.gpus}
"""UUIDs of these by minor."""


def uid_of(kind: str, name: str) -> str:
    """A UUID that stays the same for a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{name}"))


def result(
    device: int | str = 0,
    memory: str | None = "4000Mi",
    cores: str | None = "30",
    *,
    request: str = "gpu",
    share: str | None = "s",
    **more: Any,
) -> Json:
    """One allocation result of ours; `share` names the share, None leaves the shareID out."""
    name = f"hami-gpu-{device}" if isinstance(device, int) else device
    made: Json = {"request": request, "driver": DRIVER, "pool": NODE, "device": name}
    if share is not None:
        made["shareID"] = uid_of("share", f"{request}/{name}/{share}")
    capacity = {k: v for k, v in (("memory", memory), ("cores", cores), ("shares", "1k")) if v is not None}
    return made | {"consumedCapacity": capacity} | more


def config(source: str = "FromClaim", requests: Sequence[str] = (), driver: str = DRIVER, **fields: Any) -> Json:
    """An opaque config with a GpuConfig of these fields."""
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": CONFIG_KIND, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim(
    name: str,
    results: Sequence[Json],
    *,
    pods: Sequence[str] = ("p",),
    configs: Sequence[Json] = (),
    uid: str | None = None,
    node: str = NODE,
) -> Json:
    """An allocated ResourceClaim, reserved for pods by name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": uid or uid_of("claim", name)},
        "spec": {},
        "status": {
            "allocation": {
                "devices": {"results": list(results), "config": list(configs)},
                "nodeSelector": {"nodeSelectorTerms": [term]},
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid_of("pod", pod)} for pod in pods],
        },
    }


def ref(obj: Json) -> ClaimRef:
    """A claim as the kubelet names it."""
    meta = obj["metadata"]
    return ClaimRef(meta["namespace"], meta["name"], meta["uid"])


def container(name: str, *uses: str, **more: Any) -> Json:
    """A container; a use is `claim` or `claim/request`."""
    entries = []
    for use in uses:
        entry, _, request = use.partition("/")
        entries.append({"name": entry} | ({"request": request} if request else {}))
    return {"name": name, "resources": {"claims": entries}} | more


def pod(name: str, *containers: Json, init: Sequence[Json] = (), phase: str = "Pending", **status: Any) -> Json:
    """A pod whose claims are named in it as they are in the API server."""
    used = {entry["name"] for c in (*containers, *init) for entry in c["resources"]["claims"]}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": uid_of("pod", name)},
        "spec": {
            "nodeName": NODE,
            "resourceClaims": [{"name": n, "resourceClaimName": n} for n in sorted(used)],
            "initContainers": list(init),
            "containers": list(containers),
        },
        "status": {"phase": phase} | status,
    }


class Api:
    """A `ClaimApi` in memory."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], Json] = {}
        self.pods: dict[tuple[str, str], Json] = {}
        self.outdated = self.pods  # what the cache shows; the same until a test says otherwise
        self.away = False
        self.gets = 0
        self.hold: threading.Event | None = None
        self.error: HamiError | None = None

    def put(self, *objects: Json) -> None:
        """Create or replace claims and pods."""
        for obj in objects:
            kind = self.pods if "containers" in obj["spec"] else self.claims
            kind[obj["metadata"]["namespace"], obj["metadata"]["name"]] = copy.deepcopy(obj)

    def ask(self, wanted: Sequence[Wanted], *, deadline: float) -> list[Json | ApiError]:
        """See `ClaimApi`."""
        return [self._answer(one, deadline) for one in wanted]

    async def get_claim(self, namespace: str, name: str) -> Json:
        """See `RecoveryApi`."""
        return self._get(self.claims, "resourceclaim", namespace, name)

    def _answer(self, one: Wanted, deadline: float) -> Json | ApiError:
        if self.hold and not self.hold.wait(max(deadline - time.monotonic(), 0)):
            return ApiUnavailable(f"get {one.name} failed: no answer in time")
        kinds = {"claim": self.claims, "pod": self.pods, "cached pod": self.outdated}
        try:
            return self._get(kinds[one.kind], one.kind.removeprefix("cached "), one.namespace, one.name)
        except ApiError as error:
            return error

    def _get(self, kind: Mapping[tuple[str, str], Json], word: str, namespace: str, name: str) -> Json:
        self.gets += 1
        if self.error:
            raise self.error
        if self.away:
            raise ApiUnavailable("the API server is away")
        if (namespace, name) not in kind:
            raise ApiNotFound(f"{word} {namespace}/{name} not found")
        return copy.deepcopy(kind[namespace, name])


class Edits:
    """Driver edits with a device node for each GPU, as nvidia-ctk's have; so a container shows which GPUs it got."""

    def __init__(self, made: DriverEdits | None = None) -> None:
        self.made = made

    def edits(self, uuids: Collection[str], *, deadline: float) -> DriverEdits:
        """See `DriverEditsSource`."""
        return self.made or driver_edits(uuids)

    def close(self) -> None:
        """See `DriverEditsSource`."""


def driver_edits(uuids: Collection[str], **more: Any) -> DriverEdits:
    """Edits for GPUs: a node that carries the GPU's UUID, and a library for all."""
    common: ContainerEdits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"],
        "mounts": [{"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro"]}],
    }
    per_gpu: dict[str, ContainerEdits] = {u: {"deviceNodes": [{"path": f"/dev/{u}"}]} for u in uuids}
    return DriverEdits(**({"common": common, "per_gpu": per_gpu} | more))


class FixedHost(HostFiles):
    """HAMi-core's files as a test says they are."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed

    def check(self) -> Installed:
        """No look at any disk."""
        return self._installed


def enforcing(
    made: Prepared, *, gpus: Inventory, edits: DriverEdits, installed: Installed, hami_dir: Path = HAMI
) -> tuple[Prepared, Callable[[PreparedShare], ContainerEdits]]:
    """The claim as it is recorded, and the edits of each share, with HAMi-core where something is limited."""
    if all(use.enforced_by == "none" for use in made.uses):
        return made, lambda _: {}
    core = HamiCore(FixedHost(installed), hami_dir).enforce(made, gpus=gpus.by_uuid(), edits=edits)
    return core.claim, lambda share: core.edits(share) if made.uses[share.use].enforced_by == "hami-core" else {}


class Node:
    """The claims' part of the daemon over one directory. `start` is what a new process does; `reboot` is the node's."""

    def __init__(
        self,
        root: Path,
        shipped: Shipped,
        api: Api | None = None,
        *,
        claim_api: ClaimApi | None = None,
        recovery_api: RecoveryApi | None = None,
        timeout: float = 10.0,
        grace: float = 300.0,
    ) -> None:
        self.root, self.shipped, self.timeout, self.grace = root, shipped, timeout, grace
        self.api = api if api is not None else Api()
        self.claim_api: ClaimApi = claim_api if claim_api is not None else self.api
        self.recovery_api: RecoveryApi = recovery_api if recovery_api is not None else self.api
        self.inventory: Inventory | None = GPUS
        self.edits = Edits()
        self.boots = 1
        self.now = 0.0
        self.cdi, self.hami, self.plugin = root / "cdi", root / "hami", root / "plugin"
        self.start()

    def start(self) -> None:
        """Build all parts anew, as a restarted daemon does, up to where it serves."""
        self.records = Records(self.plugin / "claims")
        self.specs = SpecFiles(self.cdi, DRIVER)
        self.host = HostFiles(self.shipped, self.hami)
        self.files = NodeFiles(
            records=self.records,
            specs=self.specs,
            enforcements={"hami-core": HamiCore(self.host, self.hami), "none": NoEnforcement()},
        )
        self.claims = Claims(
            api=self.claim_api,
            inventory=self._inventory,
            edits=self.edits,
            files=self.files,
            driver=DRIVER,
            node=NODE,
            boot_id=f"boot-{self.boots}",
            timeout=self.timeout,
        )
        self.records.open()
        self.specs.open()
        self.host.install()

    def recovery(self) -> Recovery:
        """A new one, with this node's clock."""
        return Recovery(
            claims=self.claims,
            api=self.recovery_api,
            records=self.records,
            specs=self.specs,
            driver=DRIVER,
            node=NODE,
            grace=self.grace,
            clock=lambda: self.now,
        )

    async def recover(self) -> None:
        """What recovery does first in a new process."""
        await self.recovery().repair()

    def reboot(self) -> None:
        """A new boot id, and the CDI directory, a tmpfs, is gone."""
        self.boots += 1
        if self.cdi.exists():
            for path in self.cdi.iterdir():
                path.unlink()
            self.cdi.rmdir()
        self.start()

    async def prepare(self, *claims: Json) -> list[Answer]:
        """The answers for claims, in order."""
        answers = await asyncio.to_thread(self.claims.prepare, [ref(c) for c in claims])
        return [answers[c["metadata"]["uid"]] for c in claims]

    async def unprepare(self, *claims: Json) -> list[HamiError | None]:
        """The answers for claims, in order."""
        answers = await asyncio.to_thread(self.claims.unprepare, [ref(c) for c in claims])
        return [answers[c["metadata"]["uid"]] for c in claims]

    def spec(self, obj: Json) -> Spec | None:
        """The CDI spec of a claim as a runtime would read it."""
        path = self.specs.path(obj["metadata"]["uid"])
        found: Spec | None = json.loads(path.read_bytes()) if path.exists() else None
        return found

    def all_specs(self) -> list[Spec]:
        """What a CDI runtime reads: every *.json, hidden or not."""
        if not self.cdi.exists():
            return []
        return [json.loads(path.read_bytes()) for path in sorted(self.cdi.iterdir()) if path.suffix == ".json"]

    def snapshot(self) -> dict[str, str]:
        """All that claims left on the node: files with their content, cache directories with theirs."""
        found = {}
        for top in (self.plugin, self.cdi, self.hami / "cache"):
            for path in sorted(top.rglob("*")):
                if path.parent.name == "damaged" or path.name == "damaged":
                    continue
                found[str(path.relative_to(self.root))] = "" if path.is_dir() else path.read_bytes().hex()
        return {name: content for name, content in found.items() if name != "plugin/claims"}

    @property
    def regions(self) -> bool:
        """Whether regions are made by us."""
        return self.shipped.region_hook is not None

    def region(self, obj: Json, use: int = 0) -> Path:
        """The region file of a container use: ours, or the one that the library makes in its directory."""
        folder: Path = self.hami / "cache" / obj["metadata"]["uid"]
        return folder / (f"use-{use}.region" if self.regions else f"use-{use}/vgpu.cache")

    def limits(self, *claims: Json) -> dict[str, tuple[int, int]]:
        """What a container that uses all of these claims is limited to, in any order, from the files that are there."""
        answers: dict[str, tuple[PreparedDevice, ...]] = {}
        for obj in claims:
            record = self.records.load(obj["metadata"]["uid"])
            assert record is not None
            answers[obj["metadata"]["name"]] = record.devices(KIND)
        ids = kubelet_ids(answers, [(name, None) for name in answers])
        seen, other = (inject(self.all_specs(), order) for order in (ids, ids[::-1]))
        assert seen.limits(GPUS) == other.limits(GPUS)
        assert seen.has_right_region(GPUS) == other.has_right_region(GPUS) == self.regions
        return seen.limits(GPUS)

    def _inventory(self, deadline: float) -> Inventory:
        if self.inventory is None:
            raise DriverMissing("no NVIDIA driver on this node")
        return self.inventory


def devices(answer: Answer) -> tuple[PreparedDevice, ...]:
    """The devices of an answer that has to be good."""
    assert not isinstance(answer, HamiError), f"refused: {answer}"
    return answer


def refusal(answer: Answer | None) -> str:
    """The message of an answer that has to be an error."""
    assert isinstance(answer, HamiError), f"not refused: {answer}"
    return str(answer)


def simple(number: int, device: int = 0) -> tuple[Json, Json]:
    """A claim of 1 GiB and 10 percent, and its pod."""
    obj = claim(f"c{number}", [result(device, "1Gi", "10")], pods=[f"p{number}"])
    return obj, pod(f"p{number}", container("x", f"c{number}"))
