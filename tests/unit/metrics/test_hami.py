"""HAMi's metrics under HAMi's names: what its dashboards find, and that sums are right."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.metrics.claims import ClaimUsage
from hami_kubeletplugin.metrics.hami import METRICS, Hami
from hami_kubeletplugin.metrics.view import View, view
from hami_kubeletplugin.usage.model import Memory, OfContainer, OfNode
from tests.unit.metrics.world import GIB, NODE, container, label_names, of_gpu, on_gpu, one, series, text, total
from tests.unit.publish.fakes import gpu

HOST: Final = "node device_index device_uuid device_type zone"
GPU: Final = "node device_uuid device_index device_type zone"
CORES: Final = "node device_uuid device_index device_cores device_type zone"
VGPU: Final = "namespace pod container vdevice_index device_uuid zone"
SHARE: Final = "namespace node pod container_index device_uuid zone"
HAMI: Final = {
    "hami_host_gpu_memory_used_bytes": HOST,
    "hami_host_gpu_utilization_ratio": HOST,
    "hami_host_gpu_memory_controller_utilization_ratio": HOST,
    "hami_gpu_memory_limit_bytes": GPU,
    "hami_gpu_core_limit_ratio": GPU,
    "hami_gpu_memory_allocated_bytes": CORES,
    "hami_gpu_shared_count": GPU,
    "hami_gpu_core_allocated_ratio": GPU,
    "hami_node_gpu_memory_allocated_ratio": GPU,
    "hami_node_gpu_overview": "node device_uuid device_index device_cores device_memory_limit device_type zone",
    "hami_vgpu_memory_allocated_bytes": SHARE,
    "hami_vgpu_core_allocated_ratio": SHARE,
    "hami_vgpu_memory_used_bytes": VGPU,
    "hami_vgpu_memory_limit_bytes": VGPU,
    "hami_container_device_memory_bytes": VGPU,
    "hami_container_device_utilization_ratio": VGPU,
    "hami_container_last_kernel_elapsed_seconds": VGPU,
    "hami_vgpu_memory_context_bytes": VGPU,
    "hami_vgpu_memory_module_bytes": VGPU,
    "hami_vgpu_memory_buffer_bytes": VGPU,
}
"""Project-HAMi/HAMi 2.10: names, and labels in their order; `node` of the memory controller's is ours, theirs has none."""
LEGACY: Final = {
    "HostGPUMemoryUsage": "nodeid deviceidx deviceuuid devicetype zone",
    "HostCoreUtilization": "nodeid deviceidx deviceuuid devicetype zone",
    "GPUDeviceMemoryLimit": "nodeid deviceuuid deviceidx devicetype zone",
    "GPUDeviceCoreLimit": "nodeid deviceuuid deviceidx devicetype zone",
    "GPUDeviceMemoryAllocated": "nodeid deviceuuid deviceidx devicecores devicetype zone",
    "GPUDeviceSharedNum": "nodeid deviceuuid deviceidx devicetype zone",
    "GPUDeviceCoreAllocated": "nodeid deviceuuid deviceidx devicetype zone",
    "nodeGPUMemoryPercentage": "nodeid deviceuuid deviceidx zone",
    "nodeGPUOverview": "nodeid deviceuuid deviceidx devicecores devicememorylimit devicetype zone",
    "vGPUMemoryAllocated": "podnamespace nodename podname containeridx deviceuuid zone",
    "vGPUCoreAllocated": "podnamespace nodename podname containeridx deviceuuid zone",
    "vGPU_device_memory_usage_in_bytes": "podnamespace podname ctrname vdeviceid deviceuuid zone",
    "vGPU_device_memory_limit_in_bytes": "podnamespace podname ctrname vdeviceid deviceuuid zone",
    "Device_memory_desc_of_container": "podnamespace podname ctrname vdeviceid deviceuuid zone",
    "Device_utilization_desc_of_container": "podnamespace podname ctrname vdeviceid deviceuuid zone",
    "Device_last_kernel_of_container": "podnamespace podname ctrname vdeviceid deviceuuid zone",
}
"""The same before 2.9; what the memory consists of was in labels of `Device_memory_desc_of_container`."""

EVERYTHING: Final = OfNode(
    at=1000.0,
    gpus=(of_gpu(0, index=2, used=6 * GIB, utilization=70),),
    containers=(
        container(
            on_gpu(
                used=Memory(3 * GIB, GIB // 4, GIB // 4, 2 * GIB),
                utilization=45,
                region=Limit(4096, 30),
                index=1,
            ),
            last_kernel=990.5,
            place=3,
        ),
    ),
)


def seen(
    usage: OfNode,
    *minors: int,
    held: Mapping[str, Usage] | None = None,
    published: Sequence[int] | None = None,
    sharing: Sharing | None = None,
) -> View:
    """A node with these GPUs, all of them published unless it is said which are."""
    return view(
        NODE,
        usage,
        gpus=[gpu(minor) for minor in minors],
        published={gpu(minor).uuid for minor in (minors if published is None else published)},
        held=held,
        sharing=sharing or Sharing(),
        index={each.uuid: each.index for each in usage.gpus},
    )


def shown(found: View, *, legacy: bool = False) -> dict[str, Any]:
    """Series by name."""
    return series(text(Hami(lambda: found, legacy=legacy), ClaimUsage(lambda: found)))


def test_names_and_labels_are_hamis() -> None:
    """Each metric that HAMi has without MIG and quotas, with its labels in its order; the former names only if wanted."""
    found = seen(EVERYTHING, 0, held={gpu(0).uuid: Usage(1000, 4096, 30, 1)})
    assert label_names(Hami(lambda: found)) == {name: labels.split() for name, labels in HAMI.items()}
    both = {name: labels.split() for name, labels in (HAMI | LEGACY).items()}
    assert label_names(Hami(lambda: found, legacy=True)) == both


def test_values_are_in_hamis_units() -> None:
    """Bytes, percent from 0 to 100 where HAMi says ratio, 0 to 1 for the part of the memory."""
    sharing = Sharing(device_memory_scaling=2, device_core_scaling=1.5)
    found = shown(seen(EVERYTHING, 0, held={gpu(0).uuid: Usage(3000, 8192, 75, 3)}, sharing=sharing), legacy=True)
    memory = gpu(0).memory_bytes
    expected = {
        "hami_host_gpu_memory_used_bytes": 6 * GIB,
        "hami_host_gpu_utilization_ratio": 70,
        "hami_host_gpu_memory_controller_utilization_ratio": 35,
        "hami_gpu_memory_limit_bytes": 2 * memory,
        "hami_gpu_core_limit_ratio": 150,
        "hami_gpu_memory_allocated_bytes": 8 * GIB,
        "hami_gpu_shared_count": 3,
        "hami_gpu_core_allocated_ratio": 75,
        "hami_node_gpu_memory_allocated_ratio": 4 * GIB / memory,
        "hami_node_gpu_overview": 8 * GIB,
        "hami_vgpu_memory_allocated_bytes": 4 * GIB,
        "hami_vgpu_core_allocated_ratio": 30,
        "hami_vgpu_memory_used_bytes": 3 * GIB,
        "hami_vgpu_memory_limit_bytes": 4 * GIB,
        "hami_container_device_memory_bytes": 3 * GIB,
        "hami_container_device_utilization_ratio": 45,
        "hami_container_last_kernel_elapsed_seconds": 9.5,
        "hami_vgpu_memory_context_bytes": GIB / 4,
        "hami_vgpu_memory_module_bytes": GIB / 4,
        "hami_vgpu_memory_buffer_bytes": 2 * GIB,
    }
    former = {metric.legacy: expected[metric.name] for metric in METRICS if metric.legacy}
    claims = {
        "hami_claim_memory_limit_bytes": 4 * GIB,
        "hami_claim_memory_used_bytes": 3 * GIB,
        "hami_claim_core_limit_ratio": 0.3,
        "hami_claim_utilization_ratio": 0.45,
    }
    assert {name: one(of)[1] for name, of in found.items()} == expected | former | claims
    assert one(found["hami_node_gpu_overview"])[0] == {
        "node": NODE,
        "device_uuid": gpu(0).uuid,
        "device_index": "2",
        "device_cores": "150",
        "device_memory_limit": str(2 * memory // MIB),
        "device_type": gpu(0).name,
        "zone": "vGPU",
    }
    assert one(found["hami_host_gpu_memory_used_bytes"])[0]["device_type"] == f"NVIDIA-{gpu(0).name}"
    assert one(found["hami_vgpu_memory_allocated_bytes"])[0]["container_index"] == "3"
    assert one(found["hami_vgpu_memory_used_bytes"])[0]["vdevice_index"] == "1"


def test_series_are_there_before_the_first_cuda_call() -> None:
    """With the GPU's UUID, which only the claim knows then: nothing used, and what may be used."""
    found = shown(seen(OfNode(1.0, (), (container(on_gpu(used=Memory(0, 0, 0, 0))),)), 0))
    labels = {
        "namespace": "team",
        "pod": "p",
        "container": "x",
        "vdevice_index": "0",
        "device_uuid": gpu(0).uuid,
        "zone": "vGPU",
    }
    assert one(found["hami_vgpu_memory_used_bytes"]) == (labels, 0)
    assert one(found["hami_vgpu_memory_limit_bytes"]) == (labels, 4 * GIB)
    assert "hami_container_last_kernel_elapsed_seconds" not in found


def test_what_is_not_known_is_left_out() -> None:
    """NVML hangs, a region can't be read, the disk hangs: no zeros that nobody has seen; what is known is there."""
    found = shown(seen(OfNode(1.0, (), (container(on_gpu()),)), 0))
    assert set(found) == {
        "hami_gpu_memory_limit_bytes",
        "hami_gpu_core_limit_ratio",
        "hami_vgpu_memory_allocated_bytes",
        "hami_vgpu_core_allocated_ratio",
        "hami_vgpu_memory_limit_bytes",
        "hami_claim_memory_limit_bytes",
        "hami_claim_core_limit_ratio",
    }
    nvml = OfNode(1.0, (), (container(on_gpu(used=Memory(GIB))),))
    assert not {name for name in shown(seen(nvml, 0)) if name.endswith(("context_bytes", "buffer_bytes"))}


def test_a_region_that_has_another_limit() -> None:
    """HAMi shows what the region says, which is what holds; the claim's own metric what it was given."""
    found = shown(seen(OfNode(1.0, (), (container(on_gpu(region=Limit(8192, 0))),)), 0))
    assert one(found["hami_vgpu_memory_limit_bytes"])[1] == 8 * GIB
    assert one(found["hami_claim_memory_limit_bytes"])[1] == 4 * GIB


def test_admin_access_takes_nothing_and_has_no_limit() -> None:
    """What it uses is shown; no limit of zero, by which a dashboard would divide."""
    found = shown(seen(OfNode(1.0, (), (container(on_gpu(memory_mib=0, cores=0, used=Memory(GIB))),)), 0))
    assert not [name for name in found if name.startswith(("hami_vgpu", "hami_claim")) and "used" not in name]
    assert one(found["hami_vgpu_memory_used_bytes"])[1] == GIB


@pytest.mark.parametrize(
    ("model", "monitor", "scheduler"),
    [("NVIDIA A100", "NVIDIA-NVIDIA A100", "NVIDIA A100"), ("Tesla P4", "NVIDIA-Tesla P4", "NVIDIA-Tesla P4")],
)
def test_models_are_said_as_hami_says_them(model: str, monitor: str, scheduler: str) -> None:
    """Its monitor puts a prefix before each, its scheduler where it is missing: dashboards filter on either."""
    found = view(
        NODE,
        OfNode(1.0, (of_gpu(0, index=0, used=1),)),
        gpus=[gpu(0, name=model)],
        published={gpu(0).uuid},
        held={},
        sharing=Sharing(),
        index={},
    )
    assert one(shown(found)["hami_host_gpu_memory_used_bytes"])[0]["device_type"] == monitor
    assert one(shown(found)["hami_gpu_memory_limit_bytes"])[0]["device_type"] == scheduler


def test_two_drivers_on_a_node_show_each_gpu_once() -> None:
    """Who publishes it does; of one that another publishes, who has prepared claims on it: both of them add up."""
    usage = OfNode(1.0, tuple(of_gpu(minor, index=minor, used=GIB) for minor in range(3)))
    held = {gpu(2).uuid: Usage(1000, 4096, 0, 1)}
    ours = shown(seen(usage, 0, 1, 2, published=[0], held=held))
    theirs = shown(seen(usage, 0, 1, 2, published=[1], held={}))
    for name in ("hami_host_gpu_memory_used_bytes", "hami_gpu_memory_limit_bytes", "hami_gpu_memory_allocated_bytes"):
        uuids = [dict(labels)["device_uuid"] for page in (ours, theirs) for labels in page[name]]
        assert sorted(uuids) == sorted(gpu(minor).uuid for minor in range(3))


def test_an_init_container_and_the_one_after_it() -> None:
    """What they have one after the other was given once: it is said of the latter; what each may use is said of both."""
    both = (container(on_gpu(), name="init", place=0), container(on_gpu(), name="main", place=1))
    found = shown(seen(OfNode(1.0, (), both), 0))
    assert one(found["hami_vgpu_memory_allocated_bytes"])[0]["container_index"] == "1"
    assert len(found["hami_vgpu_memory_limit_bytes"]) == 2


def test_a_container_with_two_claims_on_one_gpu() -> None:
    """HAMi's series have no claim: one of them, with the limit of both; those of claims have it by claim."""
    on = on_gpu(memory_mib=6144, used=Memory(GIB))
    found = shown(seen(OfNode(1.0, (), (container(on, claim="a"), container(on, claim="b"))), 0))
    for name in ("hami_vgpu_memory_used_bytes", "hami_vgpu_memory_allocated_bytes"):
        assert len(found[name]) == 1
    assert total(found["hami_vgpu_memory_allocated_bytes"]) == 6 * GIB
    assert {dict(labels)["resourceclaim_name"] for labels in found["hami_claim_memory_used_bytes"]} == {"a", "b"}


def test_a_pod_that_is_made_anew_under_its_name() -> None:
    """As of a StatefulSet, while the claim of the former one is still there: the one that uses its GPU is shown."""
    old = container(on_gpu(used=Memory(0)), claim="old", pod_uid="1", processes=0)
    new = container(on_gpu(used=Memory(GIB)), claim="new", pod_uid="2", processes=2)
    for order in ((old, new), (new, old)):
        found = shown(seen(OfNode(1.0, (), order), 0))
        assert one(found["hami_vgpu_memory_used_bytes"])[1] == GIB
        assert total(found["hami_vgpu_memory_allocated_bytes"]) == 8 * GIB  # both hold it


def test_joins_with_kube_state_metrics() -> None:
    """By the labels that kube_pod_resourceclaim_info has: namespace, resourceclaim_name; and pod."""
    found = shown(seen(EVERYTHING, 0))
    assert one(found["hami_claim_memory_used_bytes"])[0] == {
        "namespace": "team",
        "resourceclaim_name": "c",
        "pod": "p",
        "container": "x",
        "device": "hami-gpu-0",
        "device_uuid": gpu(0).uuid,
    }


names = st.sampled_from(["a", "b", 'q"\\\n'])
containers = st.builds(
    lambda on, claim, use, pod, uid, name, place: container(
        *{each.uuid: each for each in on}.values(),
        claim=claim,
        use=use,
        pod=pod,
        pod_uid=uid,
        name=name,
        place=place,
    ),
    st.lists(st.builds(on_gpu, st.integers(0, 2), used=st.none() | st.builds(Memory, st.integers(0, 9))), max_size=3),
    names,
    st.integers(0, 1),
    names,
    names,
    names,
    st.none() | st.integers(0, 2),
)


@given(st.lists(containers, max_size=6))
def test_no_series_is_there_twice(found: list[OfContainer]) -> None:
    """Whatever pods and containers are called, and whatever they share: Prometheus would refuse the page."""
    shown(seen(OfNode(1.0, (), tuple(found)), 0, 1), legacy=True)


uses = st.tuples(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True), st.integers(0, 2), st.integers(1, 9)
)


@given(st.lists(st.lists(uses, min_size=1, max_size=3), max_size=4))
def test_sums_are_what_was_given_out(claims: list[list[tuple[list[str], int, int]]]) -> None:
    """Of any claims whose shares several containers have together: each share counts once, on its GPU."""
    given_out = Counter[int]()
    found = []
    for number, of_claim in enumerate(claims):
        for use, (having, minor, mib) in enumerate(of_claim):
            given_out[minor] += mib
            found += [
                container(
                    on_gpu(minor, mib), claim=f"c{number}", use=use, pod=f"p{number}", name=f"{use}{name}", place=place
                )
                for place, name in enumerate(having)
            ]
    sums = shown(seen(OfNode(1.0, (), tuple(found)), 0, 1, 2)).get("hami_vgpu_memory_allocated_bytes", {})
    assert {minor: total(sums, device_uuid=gpu(minor).uuid) for minor in given_out} == {
        minor: mib * MIB for minor, mib in given_out.items()
    }
