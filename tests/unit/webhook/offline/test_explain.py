"""webhook.explain: what each line became, and why, in words."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from hami_kubeletplugin.webhook.offline.documents import Change, Owner, convert_files
from hami_kubeletplugin.webhook.offline.explain import explain
from tests.unit.webhook.pods import RULES, SIZES, bad_pods, pod, unhurried
from tests.unit.webhook.pods import container as one_container

PATH = "spec.containers[0] (main)"


def explained(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, spec: Any = (), **rules: Any
) -> list[str]:
    """The lines about a pod, without those of its head, its claims' names and its toleration."""
    init = [one for one in containers if one.get("init")]
    main = [one for one in containers if not one.get("init")]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "annotations": annotations or {}},
        "spec": {"containers": main, "initContainers": init, **dict(spec)},
    }
    settings = Conversion(**rules)
    result = convert_files({"f": json.dumps(pod)}, settings, lambda: [GpuSize(None, 40960), GpuSize(None, 81920)])
    (change,) = result.changes
    first, *lines = explain(change, settings)
    assert first == "f, document 1 (Pod one):"
    return [line.strip() for line in lines if not line.strip().startswith("toleration of ")]


def container(name: str = "main", /, env: Any = (), **amounts: Any) -> dict[str, Any]:
    """A container that names these of HAMi's resources."""
    limits = {f"nvidia.com/{resource.replace('_', '-')}": amount for resource, amount in amounts.items()}
    return {"name": name, "env": list(env), "resources": {"limits": limits}}


@pytest.mark.parametrize(
    ("amounts", "rules", "lines"),
    [
        (
            {"gpu": 1, "gpumem": 4000},
            {},
            [
                "nvidia.com/gpu: 1 -> one GPU",
                "nvidia.com/gpumem: 4000 -> 4000 MiB of each GPU",
                "no nvidia.com/gpucores -> no limit on compute, and none set aside",
            ],
        ),
        (
            {"gpu": 1},
            {},
            ["nvidia.com/gpu: 1 -> one GPU", "no gpumem and no gpucores -> the whole GPU, nobody else on it"],
        ),
        (
            {"gpu": 1},
            {"default_memory": 4000},
            [
                "nvidia.com/gpu: 1 -> one GPU",
                "no memory -> 4000 MiB of each GPU, the default (--default-memory)",
                "no gpumem and no gpucores -> nobody else on it",
            ],
        ),
        (
            {"gpumemory": "5k", "gpucores": 30},
            {},
            [
                "no nvidia.com/gpu -> one GPU, the default (--default-gpu-num) where memory or cores are named",
                "nvidia.com/gpumemory: 5k -> 5000 MiB of each GPU",
                "nvidia.com/gpucores: 30 -> 30 percent of each GPU's compute",
            ],
        ),
        (
            {"gpu": 2, "gpumem_percentage": 50},
            {"default_cores": 20},
            [
                "nvidia.com/gpu: 2 -> 2 different GPUs",
                "nvidia.com/gpumem-percentage: 50 -> 50 percent of each GPU's memory: 20480 MiB of 40960, or 40960 MiB of 81920",
                "no nvidia.com/gpucores -> 20 percent of each GPU's compute, the default (--default-cores)",
            ],
        ),
        (
            {"gpu": 1, "gpumem_percentage": 100},
            {},
            [
                "nvidia.com/gpu: 1 -> one GPU",
                "nvidia.com/gpumem-percentage: 100 -> all of each GPU's memory",
                "all of the memory and no nvidia.com/gpucores -> all of each GPU's compute, nobody else on it",
            ],
        ),
        (
            {"gpu": 1, "gpumem": 0, "gpucores": 100, "priority": 0},
            {},
            [
                "nvidia.com/gpu: 1 -> one GPU",
                "nvidia.com/gpumem: 0 -> all of each GPU's memory",
                "nvidia.com/gpucores: 100 -> all of each GPU's compute, nobody else on it",
                "nvidia.com/priority: 0 -> priority high, in the claim's GpuConfig",
            ],
        ),
        (
            {"gpumem": 4000, "gpucores": 0},
            {"default_memory": 4000, "default_gpu_num": 2, "gpu_core_policy": "force"},
            [
                "no nvidia.com/gpu -> 2 different GPUs, the default (--default-gpu-num) where memory or cores are named",
                "nvidia.com/gpumem: 4000 -> 4000 MiB of each GPU",
                "nvidia.com/gpucores: 0 -> no limit on compute, and none set aside",
                "--gpu-core-policy force -> corePolicy force, in the claim's GpuConfig",
            ],
        ),
    ],
)
def test_each_line_of_a_container(amounts: dict[str, Any], rules: dict[str, Any], lines: list[str]) -> None:
    """What is there, what isn't, and which default stands in for it."""
    claim, *said = explained(container(**amounts), **rules)
    assert claim.startswith(f"{PATH}: claim gpu-main from ResourceClaimTemplate hami-gpu-")
    assert said == lines


def test_variables() -> None:
    """What HAMi's users say by variables is found in the claim."""
    env = [
        {"name": "CUDA_TASK_PRIORITY", "value": "1"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"},
        {"name": "LIBCUDA_LOG_LEVEL", "value": "3"},
    ]
    assert explained(container(env=env, gpu=1))[-3:] == [
        "variable CUDA_TASK_PRIORITY -> priority low, in the claim's GpuConfig",
        "variable GPU_CORE_UTILIZATION_POLICY -> corePolicy disable, in the claim's GpuConfig",
        "variable LIBCUDA_LOG_LEVEL -> logLevel 3, in the claim's GpuConfig",
    ]


PLACED = "has no effect: kube-scheduler places the pod; to spread pods over nodes use topologySpreadConstraints"


def test_annotations_and_what_is_not_kept() -> None:
    """Which GPUs; and the policies that nobody follows any more."""
    annotations = {
        "nvidia.com/use-gputype": "A100, V100",
        "nvidia.com/nouse-gpuuuid": "GPU-1",
        "nvidia.com/numa-bind": "true",
        "hami.io/gpu-scheduler-policy": "mutex",
        "hami.io/node-scheduler-policy": "spread",
    }
    lines = explained(container(gpu=2, gpumem=1000), annotations=annotations)[4:]
    assert lines == [
        "annotation nvidia.com/nouse-gpuuuid -> none of these GPUs: 'GPU-1'",
        "annotation nvidia.com/use-gputype -> only GPUs whose model contains: 'A100' or 'V100'",
        "annotation for resource.kubernetes.io/numaNode -> alike for all GPUs of a container; no effect on containers with one",
        "annotation gpu.hami.io/exclusive, or hami.io/gpu-scheduler-policy: mutex -> each GPU of this pod has nobody else on it",
        f"warning: metadata.annotations[hami.io/node-scheduler-policy] {PLACED}",
    ]


def test_init_containers() -> None:
    """They use the claim of a later container; it is said who gets more than he asked for, and who holds a GPU though he ends."""
    small = {**container("small", gpu=1, gpumem=1000), "init": True}
    large = {**container("large", gpu=1, gpumem=2000), "init": True}
    lines = explained(small, large, container(gpu=1, gpumem=1000))
    assert [line for line in lines if line.startswith(("uses", "warning"))] == [
        "uses the claim of main, which starts when it has ended: gets 2000 MiB",
        "uses the claim of main, which starts when it has ended",
        "warning: spec.containers[0] (main): gets 2000 MiB, as init container large asks for that",
    ]
    sidecar = {**container("side", gpu=1, gpumem=1000), "init": True, "restartPolicy": "Always"}
    lines = explained(sidecar, small, one_container("main"))
    assert [line for line in lines if line.startswith(("uses", "holds"))] == [
        (
            "holds its GPU share until the pod has ended, since a claim can't be given back early and no container that starts "
            "later asks for GPUs beside the same claims"
        )
    ]


def test_percentages_of_a_shared_claim() -> None:
    """Of a whole GPU no MiB are listed; with MiB of another one each size has the larger."""
    init = {**container("init", gpu=1, gpumem_percentage=10), "init": True}
    assert "nvidia.com/gpumem-percentage: 10 -> 10 percent of each GPU's memory" in explained(init, container(gpu=1))
    listed = (
        "nvidia.com/gpumem-percentage: 10 -> 10 percent of each GPU's memory: 5000 MiB of 40960, or 8192 MiB of 81920"
    )
    assert listed in explained(init, container(gpu=1, gpumem=5000))


def test_a_claim_that_is_there() -> None:
    """Only the amounts go, and the claim is named as what it is."""
    main = container(gpu=1, gpumem=1024)
    main["resources"]["claims"] = [{"name": "gpu-main"}]
    template = "hami-gpu-d33aa3d2c04f4c845566"
    spec = {"resourceClaims": [{"name": "gpu-main", "resourceClaimTemplateName": template}]}
    first, *_ = explained(main, spec=spec)
    assert first == f"{PATH}: claim gpu-main from ResourceClaimTemplate {template}, which it has already"
    percent = container(gpu=1, gpumem_percentage=50)
    percent["resources"]["claims"] = [{"name": "gpu-main"}]
    first, *lines = explained(percent, spec=spec)
    assert first == f"{PATH}: claim gpu-main from ResourceClaimTemplate {template}, which it has already"
    assert "nvidia.com/gpumem-percentage: 50 -> 50 percent of each GPU's memory" in lines


def test_schedulers() -> None:
    """HAMi's scheduler is replaced where that is set; any other one is kept, and that is said."""
    spec = {"schedulerName": "hami-scheduler"}
    assert explained(container(gpu=1), spec=spec, replace_scheduler="hami-scheduler")[-1] == (
        "schedulerName: hami-scheduler -> default-scheduler"
    )
    (told,) = [line for line in explained(container(gpu=1), spec=spec) if "scheduler" in line]
    assert told.startswith("warning: spec.schedulerName: 'hami-scheduler' is kept, and once HAMi is gone the pod waits")
    assert explained(container(gpu=1), spec={"schedulerName": "volcano"})[-1].startswith(
        "schedulerName: volcano is kept: that scheduler has to know DRA; for another one use --replace-scheduler volcano"
    )
    assert "scheduler" not in " ".join(explained(container(gpu=1), spec={"schedulerName": "default-scheduler"}))


def test_resources_without_a_gpu() -> None:
    """Only a priority, or a count of 0: no claim, and it is said what was left out."""
    assert explained(container(gpu=0, gpumem=4000)) == [
        "warning: spec.containers[0]: asks for no GPU, so nvidia.com/gpu, nvidia.com/gpumem is left out"
    ]


@settings(parent=unhurried, max_examples=100)
@given(bad_pods(), RULES, SIZES)
@example(pod(one_container("a", {"nvidia.com/gpu": 1}, env=[5, {"name": ["x"]}])), Conversion(), [])
def test_whatever_is_converted_is_explained(one: dict[str, Any], rules: Conversion, sizes: list[GpuSize]) -> None:
    """What stands in for a part that is none of ours never stops the words for the rest."""
    with contextlib.suppress(AdmissionError):
        made = convert(one, rules, lambda: sizes)
        assert all(explain(Change("f", Owner(), (), one, made), rules))


def test_the_toleration() -> None:
    """That it was added is said; not, if it was there."""
    made = pod(one_container(limits={"nvidia.com/gpu": 1}))
    for there, expected in (([], 1), ([{"operator": "Exists"}], 0)):
        made["spec"]["tolerations"] = there
        (change,) = convert_files({"f": json.dumps(made)}, Conversion(), list).changes
        told = [
            line for line in explain(change, Conversion()) if "toleration of nvidia.com/gpu:NoSchedule added" in line
        ]
        assert len(told) == expected
