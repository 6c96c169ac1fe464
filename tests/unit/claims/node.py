"""A node for the claims' tests: a small API, and the whole service over a directory."""

import asyncio
import copy
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hami_kubeletplugin.api.cdi import ContainerEdits, Spec
from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.api.errors import ApiError, ApiNotFound, ApiUnavailable, DriverMissing, HamiError
from hami_kubeletplugin.api.gpuconfig import ALL_RIGHTS
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import ClaimFiles, Sharing
from hami_kubeletplugin.claims.enforcement import Enforced, Enforcements, NoEnforcement
from hami_kubeletplugin.claims.ledger import Ledger
from hami_kubeletplugin.claims.metadata_files import FOLDER, MetadataFiles
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.prepared import EnforcedBy, Prepared, PreparedShare
from hami_kubeletplugin.claims.reader import ClaimApi
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.recovery import Recovery, RecoveryApi
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.hamicore import mounts
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.hamicore.host import HostFiles, Installed
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.kube.claim_api import Wanted
from hami_kubeletplugin.observe.counts import UNCOUNTED
from tests.unit.claims.cdi_runtime import inject, kubelet_ids
from tests.unit.claims.objects import (
    GPUS,
    NODE,
    Json,
    claim,
    container,
    pod,
    ref,
    result,
)

HAMI = Path("/usr/local/vgpu")
KIND = f"k8s.{DRIVER}/claim"

Answer = tuple[PreparedDevice, ...] | HamiError


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

    def stamp(self) -> object:
        """See `DriverEditsSource`."""
        return None

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
    kinds: Enforcements = {"hami-core": HamiCore(FixedHost(installed), hami_dir), "none": NoEnforcement()}
    enforced: dict[EnforcedBy, Enforced] = {}
    for kind in sorted({use.enforced_by for use in made.uses}):
        enforced[kind] = kinds[kind].enforce(made, gpus=gpus.by_uuid(), edits=edits)
        made = enforced[kind].claim
    return made, lambda share: enforced[made.uses[share.use].enforced_by].edits(share)


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
        claim_files: ClaimFiles = "disk",
    ) -> None:
        self.root, self.shipped, self.timeout, self.grace, self.claim_files = root, shipped, timeout, grace, claim_files
        self.api = api if api is not None else Api()
        self.claim_api: ClaimApi = claim_api if claim_api is not None else self.api
        self.recovery_api: RecoveryApi = recovery_api if recovery_api is not None else self.api
        self.inventory: Inventory | None = GPUS
        self.edits = Edits()
        self.rights = ALL_RIGHTS
        self.boots = 1
        self.now = 0.0
        self.sharing = Sharing()
        self.counts = UNCOUNTED
        self.waited_for: list[str] = []
        self.cdi, self.hami, self.plugin = root / "cdi", root / "hami", root / "plugin"
        self.start()

    def start(self) -> None:
        """Build all parts anew, as a restarted daemon does, up to where it serves."""
        self.records = Records(self.plugin / "claims")
        self.specs = SpecFiles(self.cdi, DRIVER)
        self.host = HostFiles(self.shipped, self.hami, self.claim_files)
        self.ledger = Ledger(
            records=self.records, specs=self.specs, sharing=self.sharing, waited_for=self.waited_for.extend
        )
        self.metadata = MetadataFiles(self.plugin / FOLDER, wanted=True)
        self.files = NodeFiles(
            records=self.records,
            specs=self.specs,
            ledger=self.ledger,
            enforcements={"hami-core": HamiCore(self.host, self.hami), "none": NoEnforcement()},
            metadata=self.metadata,
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
            rights=self.rights,
            counts=self.counts,
        )
        self.records.open()
        self.specs.open()
        self.metadata.open({*self.records.uids(), *self.specs.uids()})
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
            stamp=self.edits.stamp,
            counts=self.counts,
        )

    async def recover(self) -> None:
        """What recovery does first in a new process."""
        await self.recovery().repair()

    def reboot(self) -> None:
        """A new boot id, and the CDI directory, a tmpfs, is gone; so is what was mounted."""
        self.boots += 1
        self.unmount()
        if self.cdi.exists():
            for path in self.cdi.iterdir():
                path.unlink()
            self.cdi.rmdir()
        self.start()

    def unmount(self) -> None:
        """Nothing is mounted below the node any more."""
        for path in (self.hami / "cache").glob("*"):
            mounts.unmount(path)

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
        return {name: content for name, content in found.items() if name not in ("plugin/claims", f"plugin/{FOLDER}")}

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


async def prepared(node: Node, *names: str) -> list[Json]:
    """Claims of one pod each, prepared."""
    claims = [claim(name, [result(i % 4)], pods=[f"pod-{name}"]) for i, name in enumerate(names)]
    node.api.put(*claims, *(pod(f"pod-{name}", container("x", name)) for name in names))
    for answer in await node.prepare(*claims):
        devices(answer)
    return claims


def uids(*claims: Json) -> list[str]:
    """Sorted."""
    return sorted(c["metadata"]["uid"] for c in claims)


def failing(error: Exception) -> Callable[..., NoReturn]:
    """In place of a function."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
