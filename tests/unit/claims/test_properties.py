"""Any set of claims and containers: each container gets exactly what was allocated for it, or a claim is refused.

The oracle knows nothing of uses and plans: it adds up the allocation results that the kubelet gives a container, and reads
limits the way HAMi-core does.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.cdi import Spec
from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import Pod, read_pod
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.reader import ClaimReader, PodGuess
from hami_kubeletplugin.claims.spec import render
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.hamicore.host import Installed, Renewal
from hami_kubeletplugin.hamicore.region import LAYOUTS
from tests.unit.claims.cdi_runtime import check, inject, kubelet_ids
from tests.unit.claims.node import KIND, Api, driver_edits, enforcing
from tests.unit.claims.objects import NODE, Json, claim, config, container, gpu, inventory, pod, ref, result

HAMI = Path("/usr/local/vgpu")
INSTALLED = Installed(
    HAMI / "lib/libvgpu.so.0123",
    HAMI / "ld.so.preload",
    HAMI / "lock",
    "2.10.0",
    Renewal(LAYOUTS["1.2"], HAMI / "lib/hami-region-hook.4567"),
)
NAMES = st.sampled_from(["a", "b", "c-1"])


@dataclass
class World:
    """What stands in the API server, and the hardware."""

    gpus: Inventory
    claims: list[Json]
    pods: list[Json]
    prepared: dict[str, Prepared] = field(default_factory=dict)
    ours: bool = True
    """Whether regions are made by us."""

    @property
    def installed(self) -> Installed:
        """HAMi-core on the host."""
        return INSTALLED if self.ours else replace(INSTALLED, version=None, renewal=None)

    def api(self) -> Api:
        """An API server with all of it."""
        made = Api()
        made.put(*self.claims, *self.pods)
        return made


@st.composite
def nodes(draw: st.DrawFn) -> Inventory:
    """1 to 18 GPUs, minors and bus ids in unrelated order."""
    count = draw(st.one_of(st.integers(1, 4), st.integers(1, 18)))
    buses = draw(st.permutations(range(1, count + 1)))
    return inventory(gpu(minor, bus) for minor, bus in enumerate(buses))


@st.composite
def results(draw: st.DrawFn, name: str, gpus: Inventory, *, admin: bool) -> list[Json]:
    """Allocation results of one claim: several requests, subrequests, counts, shares of one GPU."""
    made = []
    for index in range(draw(st.one_of(st.integers(1, 4), st.integers(1, 4), st.integers(1, 20)))):
        request = draw(NAMES) + draw(st.sampled_from(["", "", "/big"]))
        memory = draw(st.sampled_from(["1Mi", "4000Mi", "40Gi", "1073741824", "100Gi"]))
        share = f"{name}-{index}"
        more: dict[str, Any] = {"adminAccess": True} if admin and draw(st.booleans()) else {}
        minor = draw(st.sampled_from(gpus.gpus)).minor
        made.append(result(minor, memory, str(draw(st.integers(0, 100))), request=request, share=share, **more))
    return made


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to 3 claims and 2 pods with init containers, sidecars and others that use them in any way."""
    gpus = draw(nodes())
    admin = draw(st.sampled_from([False, False, False, True]))
    names = [f"claim-{i}" for i in range(draw(st.integers(1, 3)))]
    pods: list[Json] = []
    reserved: dict[str, list[str]] = defaultdict(list)
    for p in range(draw(st.sampled_from([1, 1, 2]))):
        groups: tuple[list[Json], list[Json]] = ([], [])
        for c in range(draw(st.integers(1, 4))):
            uses = draw(st.lists(st.tuples(st.sampled_from(names), st.none() | NAMES), max_size=3, unique=True))
            more: dict[str, Any] = draw(st.sampled_from([{}, {"restartPolicy": "Always"}]))
            init = draw(st.sampled_from([False, False, True]))
            made = container(f"c{c}", *(n if r is None else f"{n}/{r}" for n, r in uses), **(more if init else {}))
            groups[not init].append(made)
        if not groups[1]:
            groups[1].append(container("main"))
        pods.append(pod(f"p{p}", *groups[1], init=groups[0]))
        for name in {entry["resourceClaimName"] for entry in pods[-1]["spec"]["resourceClaims"]}:
            reserved[name].append(f"p{p}")
    configs = draw(
        st.sampled_from([[], [], [config(allowSharedContainers=True)], [config(requests=["a"], corePolicy="force")]])
    )
    claims = [
        claim(n, draw(results(n, gpus, admin=admin)), pods=reserved[n], configs=configs) for n in names if reserved[n]
    ]
    return World(gpus, claims, pods, ours=draw(st.booleans()))


@st.composite
def tidy_worlds(draw: st.DrawFn) -> World:
    """Every container has claims or requests of its own, no admin access, at most 16 GPUs: nothing to refuse."""
    gpus = draw(nodes())
    containers, claims = [], []
    for c in range(draw(st.integers(1, 4))):
        names = [f"claim-{c}-{i}" for i in range(draw(st.integers(1, 2)))]
        made = [draw(results(n, inventory(gpus.gpus[:8]), admin=False)) for n in names]
        claims += [claim(n, r, pods=["p0"]) for n, r in zip(names, made, strict=True)]
        containers.append(container(f"c{c}", *names))
    split = draw(st.integers(0, len(containers) - 1))
    return World(gpus, claims, [pod("p0", *containers[split:], init=containers[:split])], ours=draw(st.booleans()))


def prepare(world: World) -> ClaimError | None:
    """Plan every claim as the service does; the first refusal, or None."""
    reader = ClaimReader(world.api(), driver=DRIVER, node=NODE, deadline=time.monotonic() + 20, guess=PodGuess())
    try:
        for obj in world.claims:
            read = reader.claim(ref(obj))
            pods = reader.pods(read)
            world.prepared[obj["metadata"]["name"]] = plan(
                read,
                pods=pods,
                neighbours=reader.neighbours(read, pods),
                gpus=world.gpus.by_device_name(),
                boot_id="b",
                driver=DRIVER,
            )
    except ClaimError as error:
        return error
    return None


def specs_of(world: World) -> list[Spec]:
    """All CDI specs, each valid."""
    made = []
    for one in world.prepared.values():
        edits = driver_edits({share.uuid for share in one.shares})
        recorded, enforced = enforcing(one, gpus=world.gpus, edits=edits, installed=world.installed)
        made.append(render(recorded, gpus=world.gpus.by_uuid(), edits=edits, enforced=enforced))
        check(made[-1])
    return made


def allocated(world: World, uses: tuple[tuple[str, str | None], ...]) -> list[Json]:
    """The allocation results that the kubelet gives a container with these uses."""
    return [
        one
        for obj in world.claims
        for one in obj["status"]["allocation"]["devices"]["results"]
        if any(
            name == obj["metadata"]["name"] and wanted in (None, one["request"].partition("/")[0])
            for name, wanted in uses
        )
    ]


MIB_OF = {"1Mi": 1, "4000Mi": 4000, "40Gi": 40960, "1073741824": 1024, "100Gi": 102400}


def expected(world: World, given_to: list[Json]) -> dict[str, tuple[int, int]]:
    """(MiB, percent) by GPU UUID, added up by hand."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in given_to:
        total = sums[world.gpus.by_device_name()[one["device"]].uuid]
        total[0] += MIB_OF[one["consumedCapacity"]["memory"]]
        total[1] += int(one["consumedCapacity"]["cores"])
    return {uuid: (memory, min(cores, 100)) for uuid, (memory, cores) in sums.items()}


def containers_match(world: World, data: st.DataObject) -> None:
    """Inject every container in some order and hold it against what was allocated."""
    specs = specs_of(world)
    answers: dict[str, tuple[PreparedDevice, ...]] = {n: p.devices(KIND) for n, p in world.prepared.items()}
    names = [device["name"] for spec in specs for device in spec["devices"]]
    assert len(set(names)) == len(names), "device names meet on the node"
    caches: dict[str, str] = {}
    regions_of: dict[Path, list[tuple[Pod, str]]] = defaultdict(list)
    for one in (read_pod(obj) for obj in world.pods):
        for c in one.containers:
            ids = kubelet_ids(answers, c.claims)
            seen = inject(specs, data.draw(st.permutations(ids)))
            given_to = allocated(world, c.claims)
            limits = expected(world, given_to)
            assert set(seen.gpus) == set(limits)
            if any(r.get("adminAccess") for r in given_to):
                assert not [name for name in seen.env if name.startswith("CUDA")]
            elif given_to:
                assert seen.limits(world.gpus) == limits
                renewal = seen.renewal()
                if renewal:
                    assert world.ours
                    assert one.ref.uid in renewal.pods, "the hook would refuse the pod that the claim is prepared for"
                    regions_of[renewal.region].append((one, c.name))
                else:
                    cache = seen.mounts["/usr/local/vgpu/cache"]
                    assert cache == "tmpfs" or caches.setdefault(cache, f"{one.ref}/{c.name}") == f"{one.ref}/{c.name}"
            again = inject(specs, ids)
            for env in (seen.env, again.env):
                env.pop("HAMI_DRA_CLAIM", None)  # names one of the container's claims, for people
            assert seen == again, "the order of injection shows"
    for users in regions_of.values():
        for (pod_a, a), (pod_b, b) in combinations(users, 2):
            assert not _together(pod_a, a, pod_b, b), "two containers have one region at the same time"


def doubly_given(world: World) -> list[str]:
    """Shares whose whole limit two containers have at the same time, without consent."""
    viewers = [(one, c) for one in (read_pod(obj) for obj in world.pods) for c in one.containers]
    found = []
    for (pod_a, a), (pod_b, b) in combinations(viewers, 2):
        if not _together(pod_a, a.name, pod_b, b.name):
            continue
        mine, theirs = ([r["shareID"] for r in allocated(world, c.claims) if not r.get("adminAccess")] for c in (a, b))
        found += sorted(set(mine) & set(theirs))
    return found


def _together(pod_a: Pod, a: str, pod_b: Pod, b: str) -> bool:
    """Whether two containers can run at once, from the pod's own rules: init containers run one after the other."""
    if pod_a.ref != pod_b.ref:
        return True
    order = [c.name for c in pod_a.containers]
    first = min((a, b), key=order.index)
    return {c.name: c.kind for c in pod_a.containers}[first] != "init"


@given(worlds(), st.data())
@settings(max_examples=150, deadline=None)
def test_every_container_gets_what_was_allocated_or_a_claim_is_refused(world: World, data: st.DataObject) -> None:
    """Whatever the use of claims by containers: right limits on the right GPUs in bus order, or a refusal."""
    refused = prepare(world)
    event("refused" if refused else "prepared")
    if refused is None:
        containers_match(world, data)
        consent = "allowSharedContainers" in str(world.claims)
        assert consent or not doubly_given(world), "two containers have one limit at the same time"
    else:
        assert str(refused)


@given(tidy_worlds(), st.data())
@settings(max_examples=60, deadline=None)
def test_containers_with_shares_of_their_own_are_never_refused(world: World, data: st.DataObject) -> None:
    """Refusals are for what can't be kept; containers that share nothing always start."""
    assert prepare(world) is None
    containers_match(world, data)
