"""webhook.leftovers: what counts on HAMi's scheduler and nodes."""

from typing import Any

import pytest

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.admission.review import LONGEST_WARNING
from hami_kubeletplugin.webhook.conversion.convert import convert
from tests.unit.webhook.pods import GPU, MEMORY, container, pod

TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def warned(rules: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    """What is said of a GPU pod with these fields, each short enough for the API server."""
    one = pod(container("main", {GPU: 1, MEMORY: 3000}), **spec)
    warnings = [*convert(one, Conversion(**(rules or {})), lambda: ()).warnings]
    assert all(len(warning.encode()) <= LONGEST_WARNING for warning in warnings)
    return warnings


@pytest.mark.parametrize("name", ["hami-scheduler", "my-hami-scheduler", "HAMi"])
def test_hamis_scheduler(name: str) -> None:
    """A pod that names it waits once it is gone: the setting that replaces it is named; with it nothing is said."""
    (told,) = warned(schedulerName=name)
    assert told == (
        f"spec.schedulerName: {name!r} is kept, and once HAMi is gone the pod waits for ever: leave it out, or set "
        "HAMI_REPLACE_SCHEDULER (--replace-scheduler) to it"
    )
    assert warned({"replace_scheduler": name}, schedulerName=name) == []


@pytest.mark.parametrize("name", ["default-scheduler", "volcano", "", None, 5])
def test_other_schedulers(name: Any) -> None:
    """They may know DRA."""
    assert warned(schedulerName=name) == []


def affinity(*terms: Any, kind: str = "requiredDuringSchedulingIgnoredDuringExecution") -> dict[str, Any]:
    """Of nodes."""
    return {"nodeAffinity": {kind: {"nodeSelectorTerms": list(terms)}}}


def term(key: Any, operator: Any, values: Any) -> dict[str, Any]:
    """Of a node affinity."""
    return {
        "matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": key, "operator": operator, "values": values}]
    }


def test_the_label_of_hamis_nodes() -> None:
    """A node that moves loses it, so that a pod that selects it waits: in a selector, and in an affinity."""
    words = (
        "gpu=on labels nodes with HAMi's device plugin; where that is gone no node has it, and the pod waits for ever: leave it "
        "out"
    )
    assert warned(nodeSelector={"gpu": "on", "a": "b"}) == [f"spec.nodeSelector[gpu]: {words}"]
    found = warned(affinity=affinity(term("a", "In", ["on"]), term("gpu", "In", ["on"])))
    assert found == [f"spec.{TERMS}[1].matchExpressions[1]: {words}"]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"gpu": "off"}},
        {"nodeSelector": {"example.com/gpu": "on"}},
        {"nodeSelector": ["gpu"]},
        {"affinity": affinity(term("gpu", "NotIn", ["on"]))},
        {"affinity": affinity(term("gpu", "In", ["on", "true"]))},
        {"affinity": affinity(term([], {}, 5), 5, None)},
        {"affinity": affinity(term("gpu", "In", ["on"]), kind="preferredDuringSchedulingIgnoredDuringExecution")},
    ],
)
def test_what_keeps_no_pod_waiting(spec: dict[str, Any]) -> None:
    """Other labels, other values beside it, and wishes."""
    assert warned(**spec) == []


@pytest.mark.parametrize("value", ["binpack", "spread", "x"])
def test_policies_for_nodes(value: str) -> None:
    """As the documents say: no effect, with a warning, whatever they are, and what to use."""
    for name in ("hami.io/node-scheduler-policy", "hami.io/device-scoring-weights"):
        one = pod(container("main", {GPU: 1, MEMORY: 3000}), annotations={name: value})
        (told,) = convert(one, Conversion(), lambda: ()).warnings
        assert told.startswith(f"metadata.annotations[{name}] has no effect: kube-scheduler places the pod; ")
        assert "topologySpreadConstraints" in told


def test_what_is_alike_in_one_gpu() -> None:
    """To have the GPUs of a container alike means nothing where each has one, and is said."""
    annotations = {"nvidia.com/numa-bind": "true"}
    one = convert(pod(container("main", {GPU: 1, MEMORY: 3000}), annotations=annotations), Conversion(), lambda: ())
    assert one.warnings == (
        "metadata.annotations: resource.kubernetes.io/numaNode: has no effect, no container asks for more than one GPU",
    )
    two = pod(container("a", {GPU: 1, MEMORY: 3000}), container("b", {GPU: 2, MEMORY: 3000}), annotations=annotations)
    assert convert(two, Conversion(), lambda: ()).warnings == ()


def test_what_keeps_it_waiting_comes_first() -> None:
    """People read no more than some lines, so what only has no effect comes behind."""
    one = pod(
        container("main", {GPU: 1, MEMORY: 3000, "nvidia.com/vgpu": 1}, env=[{"name": "LD_PRELOAD", "value": "x"}]),
        annotations={"hami.io/node-scheduler-policy": "spread"},
        schedulerName="hami-scheduler",
    )
    told = convert(one, Conversion(), lambda: ()).warnings
    assert ["waits for ever" in each for each in told] == [True, True, False, False]
