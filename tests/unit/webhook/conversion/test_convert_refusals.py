"""webhook.convert: pods that are refused, and in which words."""

from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.bounds import MOST_CONTAINERS, MOST_WITH_GPUS
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import GPU, MEMORY, Json, container, pod

SIZES = (GpuSize("NVIDIA A100-SXM4-40GB", 40960),)
SHARE = {GPU: 1, MEMORY: 4000}


def refusal(one: Any) -> str:
    """Why a pod is refused."""
    with pytest.raises(AdmissionError) as refused:
        convert(one, Conversion(), lambda: SIZES)
    return str(refused.value)


def claims_of(one: Json) -> list[str]:
    """The claims that a pod which is not refused gets."""
    return [use.claim for use in convert(one, Conversion(), lambda: SIZES).claims]


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_privileged_containers(where: str) -> None:
    """Anywhere in a GPU pod they are refused, as in HAMi: no limit would hold. Others' security contexts don't matter."""
    one = pod(container("main", SHARE))
    one["spec"].setdefault(where, []).append(container("root", securityContext={"privileged": True}))
    message = refusal(one)
    assert message.startswith(f"spec.{where}[{len(one['spec'][where]) - 1}].securityContext.privileged: ")
    assert message.endswith("ask for no GPU in main")
    for context in (None, {}, {"privileged": False}, {"runAsUser": 0}):
        one["spec"][where][-1]["securityContext"] = context
        assert claims_of(one)[0] == "gpu-main"


def test_a_node_named_beforehand() -> None:
    """Such a pod never meets the scheduler, and would wait for its claims for ever."""
    assert refusal(pod(container("a", SHARE), nodeName="n")).startswith("spec.nodeName: ")
    assert claims_of(pod(container("a", SHARE), nodeName="")) == ["gpu-a"]


def test_a_pod_that_would_keep_the_webhook_busy() -> None:
    """What would take seconds, in which nobody else is answered, is refused at once: the API server looks at names later."""
    most = [container("c", SHARE) for _ in range(MOST_WITH_GPUS)]
    assert len(convert(pod(*most), Conversion(max_placements=0), list).claims) == MOST_WITH_GPUS
    assert refusal(pod(*most, container("c", SHARE))).startswith(
        f"spec: {MOST_WITH_GPUS + 1} containers ask for GPUs, "
    )
    others = [container("c") for _ in range(MOST_CONTAINERS - 1)]
    assert claims_of(pod(*others, container("a", SHARE))) == ["gpu-a"]
    assert refusal(pod(*others, container("a", SHARE), initContainers=[container("b")])).startswith(
        f"spec: {MOST_CONTAINERS + 1} containers, at most {MOST_CONTAINERS} "
    )


def test_paths_in_workloads() -> None:
    """A pod template's paths begin where it is in its object."""
    for one, path in (
        (pod(container("a", {GPU: -1})), "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]: "),
        (pod(container("a", SHARE), nodeName="n"), "spec.template.spec.nodeName: "),
        (
            pod(container("a", SHARE), annotations={"nvidia.com/numa-bind": "x"}),
            "spec.template.metadata.annotations[nvidia.com/numa-bind]: ",
        ),
        (pod(container("a", SHARE), resourceClaims="x"), "spec.template.spec.resourceClaims: "),
        ({"spec": []}, "spec.template.spec: "),
    ):
        with pytest.raises(AdmissionError) as refused:
            convert(one, Conversion(), lambda: SIZES, where="spec.template.")
        assert str(refused.value).startswith(path)


GPU_CONTAINER = container("a", SHARE)


@pytest.mark.parametrize(
    ("one", "path"),
    [
        ({"spec": "x"}, "spec: must be an object"),
        ({"spec": [1]}, "spec: must be an object"),
        ({"metadata": [], "spec": {}}, "metadata: must be an object"),
        ({"metadata": {"labels": ["hami.io/webhook"]}}, "metadata.labels: must be an object"),
        ({"spec": {"containers": "abc"}}, "spec.containers: must be a list"),
        ({"spec": {"containers": {"a": 1}}}, "spec.containers: must be a list"),
        ({"spec": {"containers": [GPU_CONTAINER, 5]}}, "spec.containers[1]: must be an object"),
        ({"spec": {"containers": [None]}}, "spec.containers[0]: must be an object"),
        ({"spec": {"initContainers": 5}}, "spec.initContainers: must be a list"),
        (pod({"name": "a", "resources": []}), "spec.containers[0].resources: Invalid value: []: must be an object"),
        (pod({"name": "a", "resources": {"limits": "x"}}), "spec.containers[0].resources.limits: Invalid value: 'x': "),
        (
            {"metadata": {"annotations": "x"}, "spec": {"containers": [GPU_CONTAINER]}},
            "metadata.annotations: must be an object",
        ),
        (pod(GPU_CONTAINER, resourceClaims={"a": 1}), "spec.resourceClaims: must be a list"),
        (pod(GPU_CONTAINER | {"env": 5}), "spec.containers[0].env: Invalid value: 5: must be a list"),
        (
            pod(GPU_CONTAINER | {"resources": {"limits": SHARE, "claims": 5}}),
            "spec.containers[0].resources.claims: must be a list",
        ),
        (
            pod(container("m"), initContainers=[GPU_CONTAINER | {"resources": {"limits": SHARE, "claims": "gpu"}}]),
            "spec.initContainers[0].resources.claims: must be a list",
        ),
    ],
)
def test_pods_that_are_none(one: Any, path: str) -> None:
    """Refused with the path of what is wrong, never with an error of the program."""
    assert refusal(one).startswith(path)


@pytest.mark.parametrize("name", [None, 5, [], {}, "", "\ud800" * 100, "A" * 300, "a/b~c"])
def test_names_that_are_none(name: Any) -> None:
    """Names that the API server will refuse anyway go through, and come to claims that are named apart."""
    one = pod(
        container("main", SHARE) | {"name": name}, container("main", SHARE), resourceClaims=[{"name": [1]}, 7, {}]
    )
    assert len(set(claims_of(one))) == 2
