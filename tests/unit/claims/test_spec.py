"""render: the CDI spec of a claim, checked by what a container has after injection."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hami_kubeletplugin.api.cdi import Mount, Spec
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import read_claim
from hami_kubeletplugin.claims.numbering import numbered
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import read_pod
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.record_schema import dump, load
from hami_kubeletplugin.claims.spec import render
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.hamicore.host import Installed, Renewal
from hami_kubeletplugin.hamicore.region import LAYOUTS
from tests.unit.claims.cdi_runtime import check, inject, region_limits
from tests.unit.claims.node import KIND, driver_edits, enforcing
from tests.unit.claims.objects import (
    GPUS,
    NODE,
    UUID,
    Json,
    claim,
    config,
    container,
    gpu,
    inventory,
    pod,
    ref,
    result,
    uid_of,
)

HAMI = Path("/usr/local/vgpu")
VARIABLES_ONLY = Installed(HAMI / "lib/libvgpu.so.0123", HAMI / "ld.so.preload", HAMI / "lock")
HOOK = HAMI / "lib/hami-region-hook.4567"
INSTALLED = replace(VARIABLES_ONLY, version="2.10.0", renewal=Renewal(LAYOUTS["1.2"], HOOK))
FOUR = [result(i, f"{1000 + i}Mi", str(10 * i), request=f"r{i}") for i in range(4)]


def prepared(obj: Json, *containers: Json, beside: tuple[Json, ...] = ()) -> Prepared:
    """A plan for one pod."""
    read = [read_claim(c, ref(c), driver=DRIVER, node=NODE) for c in (obj, *beside)]
    pods = [read_pod(pod("p", *containers))]
    devices = GPUS.by_device_name()
    return plan(read[0], pods=pods, neighbours=read[1:], gpus=devices, boot_id="b", driver=DRIVER)


def rendered(
    made: Prepared, *, gpus: Inventory = GPUS, edits: DriverEdits | None = None, installed: Installed = INSTALLED
) -> Spec:
    """Its spec, checked against the schema."""
    edits = edits or driver_edits([share.uuid for share in made.shares])
    made, enforced = enforcing(made, gpus=gpus, edits=edits, installed=installed)
    spec = render(made, gpus=gpus.by_uuid(), edits=edits, enforced=enforced)
    check(spec)
    return spec


def ids(spec: Spec) -> list[str]:
    """Qualified names of all its devices."""
    return [f"{spec['kind']}={device['name']}" for device in spec["devices"]]


def test_limits_are_numbered_by_bus_whatever_the_request_order() -> None:
    """GPU i of the container is the i-th by PCI bus id, for any order of requests and of injection."""
    for seed in range(6):
        results = random.Random(seed).sample(FOUR, 4)
        spec = rendered(prepared(claim("c", results), container("x", "c")))
        order = random.Random(seed + 100).sample(ids(spec), 4)
        seen = inject([spec], order)
        assert seen.limits(GPUS) == {UUID[i]: (1000 + i, 10 * i) for i in range(4)}
        # By hand, beside the helper: bus order is minors 2, 3, 1, 0.
        assert [seen.env[f"CUDA_DEVICE_MEMORY_LIMIT_{i}"] for i in range(4)] == ["1002m", "1003m", "1001m", "1000m"]


def test_cores_are_limited_only_when_asked_for() -> None:
    """`cores: 0` is no reservation and no throttle, so no variable."""
    seen = inject([s := rendered(prepared(claim("c", FOUR), container("x", "c")))], ids(s))
    assert {k: v for k, v in seen.env.items() if "SM_LIMIT" in k} == {
        "CUDA_DEVICE_SM_LIMIT_0": "20",
        "CUDA_DEVICE_SM_LIMIT_1": "30",
        "CUDA_DEVICE_SM_LIMIT_2": "10",
    }


def test_numbering_follows_the_hardware_of_now() -> None:
    """After a reboot the same GPUs may have other bus ids; the record goes by UUID, the numbers by the bus of now."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    moved = inventory([gpu(i, bus) for i, bus in enumerate((0x01, 0x02, 0x03, 0x04))])
    spec = rendered(made, gpus=moved)
    seen = inject([spec], ids(spec))
    assert [seen.env[f"CUDA_DEVICE_MEMORY_LIMIT_{i}"] for i in range(4)] == ["1000m", "1001m", "1002m", "1003m"]
    assert seen.limits(moved) == {UUID[i]: (1000 + i, 10 * i) for i in range(4)}


def test_a_gpu_that_is_gone_is_refused() -> None:
    """By UUID, with what to do."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    with pytest.raises(ClaimError, match=f"GPU {UUID[2]} is not on this node any more; delete the pod"):
        rendered(made, gpus=inventory(g for g in GPUS.gpus if g.minor != 2))


def test_shares_of_one_gpu_are_one_limit() -> None:
    """Each share's device carries the sum, so it is there however many of them are injected."""
    results = [result(0, "1Gi", "10", request="a"), result(0, "500Mi", "15", request="b")]
    spec = rendered(prepared(claim("c", results), container("x", "c")))
    assert inject([spec], ids(spec)).limits(GPUS) == {UUID[0]: (1524, 25)}


def test_two_claims_in_one_container() -> None:
    """Any order of the two specs' devices gives the same variables and mounts; only the claim's name differs."""
    one, two = claim("one", [result(0, "1Gi", "10")]), claim("two", [result(2, "2Gi", "0")])
    x = container("x", "one", "two")
    specs = [rendered(prepared(one, x, beside=(two,))), rendered(prepared(two, x, beside=(one,)))]
    names = [ids(spec)[0] for spec in specs]
    seen, other = inject(specs, names), inject(specs, names[::-1])
    assert seen.limits(GPUS) == {UUID[0]: (1024, 10), UUID[2]: (2048, 0)}
    assert {seen.env.pop("HAMI_DRA_CLAIM"), other.env.pop("HAMI_DRA_CLAIM")} == {"default/one", "default/two"}
    assert seen == other


def mounts(spec: Spec) -> dict[str, Mount]:
    """Mounts of the first device by container path."""
    return {m["containerPath"]: m for m in spec["devices"][0]["containerEdits"]["mounts"]}


def test_mounts() -> None:
    """Library and preload file can't be written in the container, lock and region can; nothing else is there."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    found = mounts(rendered(made))
    assert {path: (m["hostPath"], m["options"][0]) for path, m in found.items()} == {
        "/usr/local/vgpu/libvgpu.so": ("/usr/local/vgpu/lib/libvgpu.so.0123", "ro"),
        "/etc/ld.so.preload": ("/usr/local/vgpu/ld.so.preload", "ro"),
        "/tmp/vgpulock": ("/usr/local/vgpu/lock", "rw"),
        "/tmp/cudevshr.cache": (f"/usr/local/vgpu/cache/{made.uid}/use-0.region", "rw"),
    }


def test_a_region_is_renewed_at_each_start() -> None:
    """One hook for a container however many shares it sees: with what it must hold, for the pods of the claim alone."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    spec = rendered(made)
    seen = inject([spec], ids(spec))
    renewal = seen.renewal()
    assert renewal is not None
    assert len(seen.hooks) == 1
    assert renewal[1:] == (HAMI / "cache" / made.uid / "use-0.region", "default/c", (uid_of("pod", "p"),))
    limits = numbered(made.uses[0], GPUS.by_uuid()).items()
    assert list(region_limits(renewal.content).items()) == [
        (uuid, (limit.memory_mib, limit.cores or 100)) for uuid, limit in limits
    ]
    assert seen.hooks[0]["path"] == str(HOOK)
    assert seen.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/tmp/cudevshr.cache"


def test_each_use_has_its_own_region() -> None:
    """Containers with requests of their own never meet in a file; init container and main container have one in turn."""
    made = prepared(claim("c", FOUR), container("x", "c/r0"), container("y", "c/r1"), container("z", "c/r2"))
    spec = rendered(made)
    found = {inject([spec], [name]).renewal() for name in ids(spec)}
    assert len({renewal.region for renewal in found if renewal}) == 4 == len({r.content for r in found if r})


@pytest.mark.parametrize("fields", [{"corePolicy": "disable"}, {"priority": "high"}])
def test_the_config_is_in_the_region_too(fields: Json) -> None:
    """So that a process without variables keeps to it: another content."""
    made, other = (
        prepared(claim("c", [result()], configs=[config(**more)]), container("x", "c")) for more in ({}, fields)
    )
    contents = {renewal.content for one in (made, other) if (renewal := inject([s := rendered(one)], ids(s)).renewal())}
    assert len(contents) == 2


def test_of_two_claims_the_owner_carries_region_and_hook() -> None:
    """One file and one hook for a container, whatever claims it uses; the variables of both claims name the file."""
    one, two = claim("one", [result(0, "1Gi", "10")]), claim("two", [result(2, "2Gi", "0")])
    x = container("x", "one", "two")
    specs = [rendered(prepared(one, x, beside=(two,))), rendered(prepared(two, x, beside=(one,)))]
    names = [ids(spec)[0] for spec in specs]
    assert sum("hooks" in spec["devices"][0]["containerEdits"] for spec in specs) == 1
    assert inject(specs, names).renewal() == inject(specs, names[::-1]).renewal() is not None


def test_without_a_known_library_the_limits_are_in_variables() -> None:
    """A directory in which the library makes its region, and no hook."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    spec = rendered(made, installed=VARIABLES_ONLY)
    seen = inject([spec], ids(spec))
    assert seen.renewal() is None
    assert seen.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/cache/vgpu.cache"
    found = mounts(spec)
    assert {path: (m["hostPath"], m["options"][0]) for path, m in found.items()} == {
        "/usr/local/vgpu/libvgpu.so": ("/usr/local/vgpu/lib/libvgpu.so.0123", "ro"),
        "/etc/ld.so.preload": ("/usr/local/vgpu/ld.so.preload", "ro"),
        "/tmp/vgpulock": ("/usr/local/vgpu/lock", "rw"),
        "/usr/local/vgpu/cache": (f"/usr/local/vgpu/cache/{made.uid}/use-0", "rw"),
    }


def test_containers_in_turn_share_a_region_but_no_directory() -> None:
    """A region is renewed when the main container starts; the directory would still have what the init container left."""
    read = read_claim(obj := claim("c", [result()]), ref(obj), driver=DRIVER, node=NODE)
    pods = [read_pod(pod("p", container("x", "c"), init=[container("i", "c")]))]
    made = plan(read, pods=pods, neighbours=[], gpus=GPUS.by_device_name(), boot_id="b", driver=DRIVER)
    spec = rendered(made)
    assert inject([spec], ids(spec)).renewal() is not None
    assert mounts(rendered(made, installed=VARIABLES_ONLY))["/usr/local/vgpu/cache"]["type"] == "tmpfs"


def test_a_private_cache_is_a_tmpfs_of_the_container() -> None:
    """Containers that may run at the same time never share a region file."""
    made = prepared(
        claim("c", [result()], configs=[config(allowSharedContainers=True)]), *(container(n, "c") for n in "xy")
    )
    spec = rendered(made)
    assert mounts(spec)["/usr/local/vgpu/cache"]["type"] == "tmpfs"
    assert "mode=1777" in mounts(spec)["/usr/local/vgpu/cache"]["options"]
    assert inject([spec], ids(spec)).renewal() is None
    assert spec["cdiVersion"] == "0.4.0"


def test_the_lowest_version_is_written() -> None:
    """Runtimes refuse versions they don't know: 0.3.0 unless something newer is in the spec."""
    made = prepared(claim("c", [result()]), container("x", "c"))
    assert rendered(made)["cdiVersion"] == "0.3.0"
    node = {made.shares[0].uuid: {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/run/nvidia/dev/nvidia0"}]}}
    assert rendered(made, edits=driver_edits([], per_gpu=node))["cdiVersion"] == "0.5.0"


def test_spec_level_edits_are_the_drivers() -> None:
    """What is the same for all GPUs stands once; nothing is written when there is nothing."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    edits = driver_edits([share.uuid for share in made.shares])
    assert rendered(made, edits=edits)["containerEdits"] == edits.common
    assert "containerEdits" not in rendered(made, edits=DriverEdits(per_gpu=edits.per_gpu))


def test_void_keeps_an_nvidia_runtime_from_injecting_again() -> None:
    """With edits of our own an NVIDIA runtime must do nothing."""
    spec = rendered(prepared(claim("c", FOUR), container("x", "c")))
    assert inject([spec], ids(spec)).env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_runtime_mode_names_the_containers_gpus() -> None:
    """`--driver-edits=runtime`: every device names all GPUs of its container, and no others."""
    spec = rendered(
        prepared(claim("c", FOUR), container("x", "c/r0", "c/r2"), container("y", "c/r1")),
        edits=DriverEdits(per_gpu={uuid: {} for uuid in UUID.values()}, visible="uuids"),
    )
    by_request = {name.split(".")[-3]: name for name in ids(spec)}
    for one in ("r0", "r2"):
        assert inject([spec], [by_request[one]]).env["NVIDIA_VISIBLE_DEVICES"] == f"{UUID[2]},{UUID[0]}"
    assert inject([spec], [by_request["r1"]]).env["NVIDIA_VISIBLE_DEVICES"] == UUID[1]


def test_without_libcuda_the_claim_is_refused() -> None:
    """The preload file without libcuda kills every program of the container."""
    with pytest.raises(ClaimError, match=r"claim default/c: without libcuda .* would die\. Mend the runtime"):
        rendered(prepared(claim("c", FOUR), container("x", "c")), edits=driver_edits([], no_libcuda="Mend the runtime"))


ADMIN = [result(i, None, None, request=f"r{i}", share=None, adminAccess=True) for i in (0, 2)]


def test_admin_access_shows_devices_and_limits_nothing() -> None:
    """No HAMi-core at all: neither variables nor mounts, so no libcuda is needed either."""
    made = prepared(claim("c", ADMIN), container("x", "c"))
    spec = rendered(made, edits=driver_edits([share.uuid for share in made.shares], no_libcuda="Mend the runtime"))
    seen = inject([spec], ids(spec))
    assert seen.gpus == tuple(sorted((UUID[0], UUID[2])))
    assert not [name for name in seen.env if name.startswith(("CUDA_", "GPU_CORE", "LIBCUDA"))]
    assert seen.hooks == ()
    assert set(seen.mounts) == {"/usr/lib/libcuda.so.1"}


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {"GPU_CORE_UTILIZATION_POLICY": "default", "CUDA_TASK_PRIORITY": "1", "LIBCUDA_LOG_LEVEL": "1"}),
        (
            {"corePolicy": "force", "priority": "high"},
            {"GPU_CORE_UTILIZATION_POLICY": "force", "CUDA_TASK_PRIORITY": "0"},
        ),
        (
            {"corePolicy": "disable", "priority": "low"},
            {"GPU_CORE_UTILIZATION_POLICY": "disable", "CUDA_TASK_PRIORITY": "1"},
        ),
        ({"logLevel": 0}, {"LIBCUDA_LOG_LEVEL": "0"}),
    ],
)
def test_config_becomes_variables(fields: Json, variables: dict[str, str | None]) -> None:
    """GpuConfig in HAMi-core's words; policy and priority are always said, or a pod's own variable would win."""
    spec = rendered(prepared(claim("c", [result()], configs=[config(**fields)]), container("x", "c")))
    env = inject([spec], ids(spec)).env
    assert {name: env.get(name) for name in variables} == variables


def test_names_are_unique_and_start_with_a_letter() -> None:
    """Two shares of one GPU, subrequests and share IDs never meet in one name; a leading digit would need CDI 0.5.0."""
    results = [
        result(0, request="a", share="s1"),
        result(0, request="a", share="s2"),
        result(0, request="a/b"),
        result(0, request="a-b"),
        *ADMIN,
    ]
    obj = claim("c", results, uid="0fa1c1e0-0000-4000-8000-000000000000")
    shares = prepared(obj, container("x", "c/a", "c/a-b"), container("y", "c/r0"), container("z", "c/r2"))
    names = [device["name"] for device in rendered(shares)["devices"]]
    assert len(set(names)) == 6
    assert all(name.startswith("claim-0fa1c1e0-") for name in names)
    assert [d.cdi_ids for d in shares.devices(KIND)] == [(f"{KIND}={name}",) for name in names]


def test_same_plan_same_bytes() -> None:
    """Nothing of the spec depends on anything but record and hardware."""
    made = prepared(claim("c", FOUR), container("x", "c"))
    assert rendered(made) == rendered(load(dump(made)))


def test_the_schema_of_these_tests_is_strict() -> None:
    """An unknown field fails, as it does in runtimes."""
    spec: Any = rendered(prepared(claim("c", FOUR), container("x", "c")))
    spec["devices"][0]["containerEdits"]["mounts"][0]["readOnly"] = True
    with pytest.raises(jsonschema.ValidationError):
        check(spec)
