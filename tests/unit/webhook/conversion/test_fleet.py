"""webhook.fleet: what no GPU that is published has."""

from typing import Any

import pytest

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.admission.review import LONGEST_WARNING
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.fleet import CONTEXT_MIB, Kind, Node
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import CORES, GPU, MEMORY, PERCENT, container, pod

A100, T4 = Kind("NVIDIA A100-SXM4-40GB", 40960), Kind("Tesla T4", 15360, 50)
USE_UUID, USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gpuuuid", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
SOON = "the pod waits until there is one"
TOO_FEW = (
    f"of a GPU's memory are less than a CUDA context takes, some {CONTEXT_MIB}: programs will fail to allocate any"
)


class Gpus:
    """Four A100s on a node, two T4s on another, and both kinds on a third."""

    nodes: frozenset[Node] = frozenset({((A100, 4),), ((T4, 2),), ((A100, 1), (T4, 2))})

    def has(self, uuid: str) -> bool:
        """See `fleet.Fleet`."""
        return uuid in {"GPU-1", "GPU-2"}


class NoGpus(Gpus):
    """A cluster whose GPU nodes are yet to come."""

    nodes: frozenset[Node] = frozenset()


def warned(limits: dict[str, Any], fleet: Gpus | None, **annotations: str) -> list[str]:
    """What is said of a container that asks for that, each short enough for the API server."""
    one = pod(container("main", limits), annotations=annotations)
    sizes = (GpuSize(A100.model, A100.memory_mib), GpuSize(T4.model, T4.memory_mib))
    warnings = [*convert(one, Conversion(), lambda: sizes, fleet=fleet).warnings]
    assert all(len(warning.encode()) <= LONGEST_WARNING for warning in warnings)
    return warnings


@pytest.mark.parametrize(
    ("limits", "annotations", "told"),
    [
        (
            {GPU: 1, MEMORY: 500000},
            {},
            f"spec.containers[0]: {MEMORY}: no GPU that is published now has 500000 MiB, the most is 40960: {SOON}",
        ),
        (
            {GPU: 1, MEMORY: 20000},
            {USE_TYPE: "t4"},
            f"spec.containers[0]: {MEMORY}: no GPU that is published now has 20000 MiB, the most is 15360: {SOON}",
        ),
        (
            {GPU: 1, MEMORY: 1000, CORES: 60},
            {USE_TYPE: "t4"},
            f"spec.containers[0]: {CORES}: no GPU that is published now has 60 percent, the most is 50: {SOON}",
        ),
        (
            {GPU: 5, MEMORY: 1000},
            {},
            f"spec.containers[0]: {GPU}: no node has 5 GPUs now, the most is 4: the pod waits until one has",
        ),
        (
            {GPU: 3, MEMORY: 1000},
            {USE_TYPE: "T4"},
            f"spec.containers[0]: {GPU}: no node has 3 GPUs now, the most is 2: the pod waits until one has",
        ),
        (
            {GPU: 5, MEMORY: 20000},
            {},
            f"spec.containers[0]: {GPU}: no node has 5 GPUs now, the most is 4: the pod waits until one has",
        ),
        (
            {GPU: 1, MEMORY: 1000},
            {USE_UUID: "GPU-9"},
            f"metadata.annotations[{USE_UUID}]: no GPU that is published now is 'GPU-9': {SOON}",
        ),
        (
            {GPU: 1, MEMORY: 1000},
            {USE_UUID: "GPU-1,gpu-2,GPU-9"},
            f"metadata.annotations[{USE_UUID}]: no GPU that is published now is 'GPU-9' or 'gpu-2'",
        ),
        (
            {GPU: 1, MEMORY: 1000},
            {USE_TYPE: "H100"},
            f"metadata.annotations[{USE_TYPE}]: no GPU that is published now is a 'H100': {SOON}",
        ),
        (
            {GPU: 1, MEMORY: 1000},
            {USE_TYPE: "H100,A100"},
            f"metadata.annotations[{USE_TYPE}]: no GPU that is published now is a 'H100'",
        ),
        (
            {GPU: 1, MEMORY: 1000},
            {NOUSE_TYPE: "A100,T4"},
            f"metadata.annotations[{NOUSE_TYPE}]: leaves no GPU that is published now: {SOON}",
        ),
        (
            {GPU: 1, PERCENT: 2},
            {},
            f"spec.containers[0]: 307 MiB {TOO_FEW}",
        ),
    ],
)
def test_what_no_gpu_has(limits: dict[str, Any], annotations: dict[str, str], told: str) -> None:
    """A warning says what is missing and how much there is; the pod is created, as such a node may be on its way."""
    assert warned(limits, Gpus(), **annotations) == [told]
    unknown = [warned(limits, fleet, **annotations) for fleet in (None, NoGpus())]
    assert unknown == [[], []], "nothing is said where nothing is known, and before the first GPU is published"


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({GPU: 4, MEMORY: 40960}, {}),
        ({GPU: 1}, {}),
        ({GPU: 4, PERCENT: 50}, {}),
        ({GPU: 2, MEMORY: 15360, CORES: 50}, {USE_TYPE: "T4"}),
        ({GPU: 1, MEMORY: 1000}, {USE_UUID: "GPU-1, GPU-2"}),
        ({GPU: 1, MEMORY: 1000}, {USE_TYPE: "NVIDIA-NVIDIA A100"}),
        ({GPU: 1, MEMORY: 1000}, {NOUSE_TYPE: "H100"}),
        ({GPU: 1, MEMORY: CONTEXT_MIB}, {}),
    ],
)
def test_what_there_is(limits: dict[str, Any], annotations: dict[str, str]) -> None:
    """Nothing is said of what a GPU, or a node, has."""
    assert warned(limits, Gpus(), **annotations) == []


def test_gpus_with_as_much_on_one_node() -> None:
    """GPUs that are too small don't count, and the warning says so."""
    fleet = Gpus()
    fleet.nodes = frozenset({((A100, 1), (T4, 2))})
    assert warned({GPU: 2, MEMORY: 20000}, fleet) == [
        f"spec.containers[0]: {GPU}: no node has 2 GPUs that have as much now, the most is 1: the pod waits until one has"
    ]


def test_whole_gpus_of_all_containers() -> None:
    """They are all on one node, which has to have as many; shares fit beside each other, and init containers are gone by then."""

    def of(*limits: dict[str, Any], **spec: Any) -> tuple[str, ...]:
        containers = [container(f"c{number}", each) for number, each in enumerate(limits)]
        return convert(pod(*containers, **spec), Conversion(), lambda: (), fleet=Gpus()).warnings

    (told,) = of({GPU: 2}, {GPU: 3})
    words = "its containers ask for 5 whole GPUs together, and no node has so many now, the most is 4"
    assert told == f"spec: {words}: the pod waits until one has"
    assert of({GPU: 2}, {GPU: 2}) == of({GPU: 3, MEMORY: 1000}, {GPU: 3, MEMORY: 1000}) == ()
    assert of({GPU: 3}, initContainers=[container("first", {GPU: 3})]) == ()
    assert len(of({GPU: 5})) == 1


def said(init: dict[str, Any], *mains: dict[str, Any]) -> list[str]:
    """What is said of a pod with one init container, of 40 and 15 GiB GPUs on each node."""

    class OneOfEach(Gpus):
        nodes: frozenset[Node] = frozenset({((A100, 1), (T4, 1))})

    one = pod(*(container(f"m{n}", each) for n, each in enumerate(mains)), initContainers=[container("i", init)])
    return [*convert(one, Conversion(), lambda: (), fleet=OneOfEach()).warnings]


def test_claims_that_an_init_container_has_raised() -> None:
    """What counts is the claim as it becomes: more than there is of it is said, and what fits then is not."""
    raised = said({GPU: 1, MEMORY: 30000}, {GPU: 2, MEMORY: 4000})
    assert raised[0] == (
        f"spec.containers[0]: {GPU}: no node has 2 GPUs that have as much now, the most is 1: the pod waits until one has"
    )
    assert said({GPU: 1, MEMORY: 100}, {GPU: 1, MEMORY: 8000}) == []


def test_a_share_beside_whole_gpus() -> None:
    """It needs a GPU of its own: two of them and a share are three."""
    shared = {GPU: 1, MEMORY: 4000}
    alone = said(shared, {GPU: 1}, {GPU: 1}, shared)
    assert any(
        "2 whole GPUs and 1 to share together, and no node has so many now, the most is 2" in one for one in alone
    )
    assert said(shared, {GPU: 1}, shared) == []


def test_models_that_are_not_known() -> None:
    """Of sizes that people name, any may be of the wanted type."""
    fleet = Gpus()
    fleet.nodes = frozenset({((Kind(None, 40960), 16),)})
    assert warned({GPU: 1, MEMORY: 1000}, fleet, **{USE_TYPE: "H100", NOUSE_TYPE: "A100"}) == []
    assert len(warned({GPU: 1, MEMORY: 50000}, fleet, **{USE_TYPE: "H100"})) == 1


def test_less_than_a_context() -> None:
    """So few MiB are never enough, whatever the cluster has."""
    for mib in (1, 100, CONTEXT_MIB - 1):
        (told,) = warned({GPU: 1, MEMORY: mib}, None)
        assert told == (f"spec.containers[0]: {mib} MiB {TOO_FEW}")


def test_more_gpus_than_are_named() -> None:
    """Two different GPUs of one can't be had anywhere."""
    assert warned({GPU: 2, MEMORY: 1000}, None, **{USE_UUID: "GPU-1"}) == [
        f"spec.containers[0]: {GPU}: asks for 2 different GPUs, and {USE_UUID} names 1: the pod waits for ever"
    ]


def test_many_that_are_not_there() -> None:
    """Some are named."""
    (told,) = warned(
        {GPU: 1, MEMORY: 1000}, Gpus(), **{USE_UUID: ",".join(f"GPU-{number}" for number in range(10, 99))}
    )
    assert told.endswith(f"is 'GPU-10' or 'GPU-11' or 'GPU-12' or ...: {SOON}")
