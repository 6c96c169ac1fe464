"""A GPU that is wholly a container's own: the driver and our numbering, and nothing that stands between programs and CUDA."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import ClaimError, StorageError
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import DRIVER, MIB
from hami_kubeletplugin.claims.allocation import read_claim
from hami_kubeletplugin.claims.metadata import FOLDER
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import read_pod
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.show import claims_json, claims_table
from tests.unit.claims.cdi_runtime import Seen, inject
from tests.unit.claims.node import Node, driver_edits
from tests.unit.claims.objects import GPUS, NODE, UUID, Json, claim, config, container, pod, ref, result

ALL = "10k"
MEMORY = "80Gi"
"""Of each GPU of these tests."""
WHOLE = result(0, MEMORY, "100", request="whole", slots=ALL)
WHOLE_TOO = result(2, MEMORY, "0", request="too", slots=ALL)
SHARE = result(1, "1000Mi", "0", request="share")
ALWAYS = {"enforcement": "always"}


def planned(results: Sequence[Json], *containers: Json, configs: Sequence[Json] = ()) -> Prepared:
    """The plan for a claim of pod p, whose one container uses all of it unless others are given."""
    obj = claim("c", results, configs=configs)
    read = read_claim(obj, ref(obj), driver=DRIVER, node=NODE)
    made = read_pod(pod("p", *(containers or (container("x", "c"),))))
    return plan(read, pods=[made], neighbours=[], gpus=GPUS.by_device_name(), boot_id="b", driver=DRIVER)


def seen(node: Node, obj: Json) -> Seen:
    """What a container with all of a claim gets."""
    spec = node.spec(obj)
    assert spec
    return inject([spec], [f"{spec['kind']}={device['name']}" for device in spec["devices"]])


async def prepared(node: Node, obj: Json) -> Json:
    """A claim of pod p, prepared."""
    node.api.put(obj, pod("p", container("x", "c")))
    [answer] = await node.prepare(obj)
    assert isinstance(answer, tuple), answer
    return obj


async def test_no_library_no_preload_no_region_no_hook(node: Node) -> None:
    """The container of two whole GPUs has the driver's files, the GPUs in bus order, the claim's name, and what it is told."""
    obj = await prepared(node, claim("c", [WHOLE, WHOLE_TOO]))
    found = seen(node, obj)
    ours = {name: value for name, value in found.env.items() if name.startswith(("CUDA", "GPU", "LIBCUDA", "HAMI"))}
    assert ours == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1", "HAMI_DRA_CLAIM": "default/c"}
    assert {path for path in found.mounts if not path.startswith(FOLDER)} == {"/usr/lib/libcuda.so.1"}
    assert found.hooks == ()
    assert found.gpus == tuple(sorted((UUID[0], UUID[2])))
    assert not [name for name in node.snapshot() if "cache" in name]
    assert await node.unprepare(obj) == [None]
    assert node.snapshot() == {}


async def test_a_whole_gpu_needs_no_hami_core(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that can't have HAMi-core's files serves whole GPUs all the same, and refuses shares."""

    def check() -> NoReturn:
        raise StorageError("no fit library")

    monkeypatch.setattr(node.host, "check", check)
    await prepared(node, claim("c", [WHOLE]))
    share = claim("d", [SHARE])
    node.api.put(share, pod("p", container("x", "d")))
    assert [str(answer) for answer in await node.prepare(share)] == ["no fit library"]


async def test_a_whole_gpu_needs_the_drivers_library(node: Node) -> None:
    """Without libcuda no program would find the GPU: the pod doesn't start, and the reason is told."""
    node.edits.made = driver_edits([UUID[0]], no_libcuda="Mend the runtime")
    obj = claim("c", [WHOLE])
    node.api.put(obj, pod("p", container("x", "c")))
    [refused] = await node.prepare(obj)
    assert str(refused) == "claim default/c: no program of the container would find its GPU. Mend the runtime"
    assert node.snapshot() == {}


@pytest.mark.parametrize("cores", ["0", "100"])
def test_without_a_core_limit(cores: str) -> None:
    """All slots, all memory, and no percentage or all of it."""
    (use,) = planned([result(0, MEMORY, cores, slots=ALL)]).uses
    assert (use.is_whole, use.enforced_by, use.one_at_a_time) == (True, "none", False)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (result(0, MEMORY, "0"), "one slot: others may join"),
        (result(0, MEMORY, "0", slots="9999"), "not all slots"),
        (result(0, MEMORY, "0", slots=None), "nothing is said of slots"),
        (result(0, "81919Mi", "0", slots=ALL), "less memory than the GPU has"),
        (result(0, "160Gi", "0", slots=ALL), "memory scaling: more than the GPU has"),
        (result(0, MEMORY, "99", slots=ALL), "a core limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_limited(other: Json, why: str) -> None:
    """Any amount that is not just what the hardware has is enforced."""
    (use,) = planned([other]).uses
    assert (use.is_whole, use.enforced_by) == (False, "hami-core"), why


def test_a_whole_and_a_shared_gpu_in_a_container() -> None:
    """HAMi-core limits all GPUs of a container or none: it is enforced as a whole, each GPU with its own limit."""
    (use,) = planned([WHOLE, SHARE]).uses
    assert use.enforced_by == "hami-core"
    assert use.gpus == {UUID[0]: Limit(81920, 100), UUID[1]: Limit(1000, 0)}


async def test_a_whole_and_a_shared_gpu_in_two_containers(node: Node) -> None:
    """Each container of a claim has what its own GPUs need."""
    obj = claim("c", [WHOLE, SHARE])
    node.api.put(obj, pod("p", container("x", "c/whole"), container("y", "c/share")))
    await node.prepare(obj)
    spec = node.spec(obj)
    assert spec
    of = {("whole" if ".hami-gpu-0." in device["name"] else "share"): device for device in spec["devices"]}
    whole, share = (inject([spec], [f"{spec['kind']}={of[name]['name']}"]) for name in ("whole", "share"))
    assert "/etc/ld.so.preload" not in whole.mounts
    assert "/etc/ld.so.preload" in share.mounts
    assert share.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    table = claims_table([made for uid in node.records.uids() if (made := node.records.load(uid))])
    rows = {line.split()[1]: line for line in table.splitlines()}
    assert "whole GPU" in rows["whole"]
    assert "81920Mi" in rows["whole"]
    assert "whole GPU" not in rows["share"]


@pytest.mark.parametrize("source", ["FromClass", "FromClaim"])
def test_enforcement_always(source: str) -> None:
    """Who wants HAMi-core back says so, in a class or a claim; for one request of a container is enough."""
    for requests in ([], ["whole"], ["too"]):
        (use,) = planned([WHOLE, WHOLE_TOO], configs=[config(source, requests, **ALWAYS)]).uses
        assert use.enforced_by == "hami-core"


def test_a_claim_may_say_otherwise_than_its_class() -> None:
    """`auto` of the claim wins over `always` of the class, as every field does."""
    configs = [config("FromClass", **ALWAYS), config(enforcement="auto")]
    assert planned([WHOLE], configs=configs).uses[0].is_whole


def test_two_containers_at_once_are_still_refused() -> None:
    """A whole GPU is one container's, unless it is said that several may have it."""
    both = [container("x", "c"), container("y", "c")]
    with pytest.raises(ClaimError, match=r"p/x and p/y would both get the whole limit.*allowSharedContainers"):
        planned([WHOLE], *both)
    (use,) = planned([WHOLE], *both, configs=[config(allowSharedContainers=True)]).uses
    assert use.is_whole
    assert use.containers == ("p/x", "p/y")


async def test_what_was_prepared_with_hami_core_goes_on_with_it(node: Node) -> None:
    """A record that an older driver wrote for a whole GPU is restored as it says, over an update and a reboot of the node."""
    obj = await prepared(node, claim("c", [WHOLE], configs=[config(**ALWAYS)]))
    before = node.spec(obj)
    node.reboot()
    await node.recover()
    assert node.spec(obj) == before
    assert "/etc/ld.so.preload" in seen(node, obj).mounts


async def test_prepared_again_by_the_newer_driver(node: Node) -> None:
    """Asked again for a claim with HAMi-core, its container's next start is without; all files go with the claim."""
    obj = await prepared(node, claim("c", [WHOLE], configs=[config(**ALWAYS)]))
    obj = await prepared(node, claim("c", [WHOLE]))
    assert "/etc/ld.so.preload" not in seen(node, obj).mounts
    assert await node.unprepare(obj) == [None]
    assert node.snapshot() == {}


async def test_the_record_says_it(node: Node) -> None:
    """A record of a whole GPU comes back as it was; an older driver reads it as nothing to enforce."""
    obj = await prepared(node, claim("c", [WHOLE]))
    record = node.records.load(obj["metadata"]["uid"])
    assert record
    assert record.uses[0].is_whole
    [told] = json.loads(claims_json([record]))
    assert told["uses"][0]["cache"] == "none"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1000, 5000, 10000]), st.sampled_from([40960, 81920, 163840]), st.sampled_from([0, 50, 100])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_enforced_unless_all_is_its_own(shares: list[tuple[int, int, int]]) -> None:
    """For shares of any GPUs: HAMi-core stays away only if each GPU is had with all slots, its very memory and no core limit."""
    results = [
        result(index, f"{memory}Mi", str(cores), request=f"r{index}", slots=str(slots))
        for index, (slots, memory, cores) in enumerate(shares)
    ]
    (use,) = planned(results).uses
    alone = all(slots == 10000 and memory == 81920 and cores in {0, 100} for slots, memory, cores in shares)
    assert use.is_whole == alone


def test_memory_that_is_no_whole_number_of_mib() -> None:
    """What is published is rounded down to MiB; that is all of the GPU's memory."""
    odd = [replace(gpu, memory_bytes=gpu.memory_bytes + MIB // 2) for gpu in GPUS.gpus]
    obj = claim("c", [WHOLE])
    read = read_claim(obj, ref(obj), driver=DRIVER, node=NODE)
    made = plan(
        read,
        pods=[read_pod(pod("p", container("x", "c")))],
        neighbours=[],
        gpus={gpu.device_name: gpu for gpu in odd},
        boot_id="b",
        driver=DRIVER,
    )
    assert made.uses[0].is_whole
