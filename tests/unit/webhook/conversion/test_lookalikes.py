"""webhook.lookalikes: names that look like ours, and ours in the wrong place."""

import time
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.admission.review import LONGEST_WARNING
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from tests.unit.webhook.pods import GPU, MEMORY, Json, container, pod

LIMITS = "spec.containers[0].resources.limits"


def warned(one: Json, **rules: Any) -> list[str]:
    """What is said when it is created, each short enough for the API server."""
    warnings = [*convert(one, Conversion.checked(**rules), lambda: ()).warnings]
    assert all(len(warning.encode()) <= LONGEST_WARNING for warning in warnings)
    return warnings


@pytest.mark.parametrize(
    ("name", "meant", "option"),
    [
        ("nvidia.com/vgpu", "nvidia.com/gpu", "resource-count-name"),
        ("nvidia.com/gpualloc", "nvidia.com/gpu", "resource-count-name"),
        ("nvidia.com/gpu.shared", "nvidia.com/gpu", "resource-count-name"),
        ("nvidia.com/gpus", "nvidia.com/gpu", "resource-count-name"),
        ("nvidia.com/gpu-count", "nvidia.com/gpu", "resource-count-name"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores", "resource-core-name"),
        ("nvidia.com/cores", "nvidia.com/gpucores", "resource-core-name"),
        ("nvidia.com/vgpu-cores", "nvidia.com/gpucores", "resource-core-name"),
        ("nvidia.com/gpumen", "nvidia.com/gpumem", "resource-memory-name"),
        ("nvidia.com/gpu-memory", "nvidia.com/gpumem", "resource-memory-name"),
        ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage", "resource-memory-percentage-name"),
        ("nvidia.com/gpupercentage", "nvidia.com/gpumem-percentage", "resource-memory-percentage-name"),
        ("nvidia.com/prioritiy", "nvidia.com/priority", "resource-priority-name"),
        ("volcano.sh/vgpu-number", "nvidia.com/gpu", "resource-count-name"),
        ("volcano.sh/vgpu-memory", "nvidia.com/gpumem", "resource-memory-name"),
        ("volcano.sh/vgpu-memory-percentage", "nvidia.com/gpumem-percentage", "resource-memory-percentage-name"),
        ("volcano.sh/vgpu-cores", "nvidia.com/gpucores", "resource-core-name"),
        ("nvida.com/gpu", "nvidia.com/gpu", "resource-count-name"),
    ],
)
def test_a_name_that_is_nearly_ours(name: str, meant: str, option: str) -> None:
    """It stays in the pod, which may wait for ever: the warning has the name that was meant, and the option for this one."""
    one = pod(container("main", {GPU: 1, MEMORY: 3000, name: 2}))
    (told,) = warned(one)
    assert told == (
        f"{LIMITS}[{name}]: is not converted, and where no device plugin serves it the pod waits for ever: write {meant}, or set "
        f"--{option} to this name"
    )
    assert name in str(convert(one, Conversion(), lambda: ()).patch)


@pytest.mark.parametrize("name", ["nvidia.com/vgpu", "volcano.sh/vgpu-number", "nvidia.com/gpualloc"])
def test_the_option_that_is_named_helps(name: str) -> None:
    """With it the name counts GPUs, and nothing is said."""
    one = pod(container("main", {name: 2, MEMORY: 3000}))
    made = convert(one, Conversion(resource_count_name=name), lambda: ())
    assert made.warnings == ()
    assert [use.demand.gpus for use in made.claims] == [2]


@pytest.mark.parametrize(
    "name",
    ["cpu", "nvidia.com/hostdev", "amd.com/gpu", "intel.com/gpu", "example.com/fpga", "nvidia.com/rdma_shared", 7],
)
def test_names_of_others(name: Any) -> None:
    """What has nothing to do with ours goes without a word."""
    assert warned(pod(container("main", {GPU: 1, MEMORY: 3000, name: 1}))) == []


@pytest.mark.parametrize("name", ["nvidia.com/mig-3g.20gb", "nvidia.com/mig-1g.5gb.shared"])
def test_mig(name: str) -> None:
    """It is warned about and never refused, with ours or alone: NVIDIA's device plugin may serve it in the same cluster."""
    words = "MIG is not served here, and where no device plugin serves it the pod waits for ever: for a share of a GPU write"
    told = f"{LIMITS}[{name}]: {words} nvidia.com/gpu and nvidia.com/gpumem"
    alone = convert(pod(container("main", {name: 1})), Conversion(), lambda: ())
    assert alone == Converted(warnings=(told,))
    assert warned(pod(container("main", {name: 1, GPU: 1}))) == [told]


def test_each_name_is_told_once() -> None:
    """Limits and requests, and many containers, say the same."""
    both = {"limits": {"nvidia.com/vgpu": 1}, "requests": {"nvidia.com/vgpu": 1}}
    one = pod({"name": "a", "resources": both}, container("b", {"nvidia.com/vgpu": 1, GPU: 1, MEMORY: 3000}))
    assert [warning.partition(":")[0] for warning in warned(one)] == [f"{LIMITS}[nvidia.com/vgpu]"]


def test_in_init_containers_of_a_template() -> None:
    """The path is that of the file."""
    one = pod(container("a", {GPU: 1, MEMORY: 3000}), initContainers=[container("i", {"nvidia.com/vgpu": 1})])
    (told,) = convert(one, Conversion(), lambda: (), where="spec.template.").warnings
    assert told.startswith("spec.template.spec.initContainers[0].resources.limits[nvidia.com/vgpu]: ")


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu\x1b[31m", "nvidia.com/gpu" + "x" * 200, "nvidia.com/gpu\n", "nvidia.com/gpu é"]
)
def test_names_that_the_api_server_refuses(name: str) -> None:
    """It says so itself, and nobody's terminal shows them."""
    assert warned(pod(container("main", {name: 1, GPU: 1, MEMORY: 3000}), annotations={name: "x"})) == []


def test_a_pod_full_of_such_names_costs_little() -> None:
    """Of names without end only some are compared with ours: ten times as many cost about the same."""

    def seconds(count: int) -> float:
        one = pod(container("a", {f"nvidia.com/x{number:06}": 1 for number in range(count)}))
        started = time.process_time()
        assert len(warned(one)) <= 32
        return time.process_time() - started

    assert seconds(50_000) < 20 * max(seconds(5_000), 0.01)


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/priority"])
def test_amounts_as_annotations(name: str) -> None:
    """Who writes them there would get the whole GPU: refused, with where they belong. A pod without GPUs is warned."""
    path = f"spec.template.metadata.annotations[{name}]: has no effect, as amounts are no annotations"
    one = pod(container("main", {GPU: 1}), annotations={name: "4000"})
    with pytest.raises(AdmissionError) as refused:
        convert(one, Conversion(), lambda: (), where="spec.template.")
    assert str(refused.value) == f"{path}: write it into resources.limits of the container"
    without = pod(container("main"), annotations={name: "4000"})
    assert convert(without, Conversion(), lambda: (), where="spec.template.") == Converted(warnings=(path,))


@pytest.mark.parametrize(
    ("annotations", "labels", "told"),
    [
        (
            {"nvidia.com/use-gpuuid": "GPU-1"},
            {},
            "annotations[nvidia.com/use-gpuuid] has no effect: the name is nvidia.com/use-gpuuuid",
        ),
        (
            {"nvidia.com/use-gpu-type": "A100"},
            {},
            "annotations[nvidia.com/use-gpu-type] has no effect: the name is nvidia.com/use-gputype",
        ),
        (
            {"hami.io/use-gputype": "A100"},
            {},
            "annotations[hami.io/use-gputype] has no effect: the name is nvidia.com/use-gputype",
        ),
        (
            {"gpu.hami.io/exclusiv": "true"},
            {},
            "annotations[gpu.hami.io/exclusiv] has no effect: the name is gpu.hami.io/exclusive",
        ),
        (
            {"hami.io/gpu-schedule-policy": "mutex"},
            {},
            "annotations[hami.io/gpu-schedule-policy] has no effect: the name is hami.io/gpu-scheduler-policy",
        ),
        (
            {"hami.io/webhook": "ignore"},
            {},
            "annotations[hami.io/webhook] has no effect: it belongs in metadata.labels",
        ),
        (
            {},
            {"nvidia.com/use-gputype": "A100"},
            "labels[nvidia.com/use-gputype] has no effect: it belongs in metadata.annotations",
        ),
    ],
)
def test_annotations_that_nobody_reads(annotations: Json, labels: Json, told: str) -> None:
    """Spelt wrong, in another's domain, or a label: the warning has the right one."""
    one = pod(container("main", {GPU: 1, MEMORY: 3000}), annotations=annotations)
    one["metadata"]["labels"] = labels
    assert warned(one) == [f"metadata.{told}"]


@pytest.mark.parametrize(
    "name",
    [
        "hami.io/vgpu-node",
        "hami.io/vgpu-devices-allocated",
        "hami.io/bind-time",
        "nvidia.com/gpu.present",
        "example.com/use-gputype",
        "kubectl.kubernetes.io/last-applied-configuration",
    ],
)
def test_annotations_of_others(name: str) -> None:
    """What HAMi itself writes on pods, and all else, goes without a word."""
    assert warned(pod(container("main", {GPU: 1, MEMORY: 3000}), annotations={name: "x"})) == []
