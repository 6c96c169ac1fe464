"""Pods as people write them.

`pods()` makes pods that any API server takes once they are converted, and that there is no reason to refuse; `bad_pods()`
makes anything. `webhook_oracle` says what HAMi makes of them.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.template import GpuSize

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
ALIAS = "nvidia.com/gpumemory"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
OURS = (GPU, MEMORY, ALIAS, PERCENT, CORES, PRIORITY)
IMAGE = "registry.k8s.io/pause:3.10"


def container(name: str = "main", limits: Mapping[str, Any] | None = None, **more: Any) -> Json:
    """A container with these limits."""
    return {"name": name, "image": IMAGE, "resources": {"limits": dict(limits or {})}, **more}


def pod(*containers: Json, annotations: Mapping[str, Any] | None = None, **spec: Any) -> Json:
    """A pod of these containers."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": dict(annotations or {})},
        "spec": {"containers": list(containers), **spec},
    }


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""For all tests here: the first text that hypothesis makes on a machine takes seconds."""

LABELS = st.one_of(
    st.sampled_from(["main", "a", "a-2", "gpu-a", "x" * 63, "x" * 62 + "y", "x" * 50 + "-" * 12 + "z"]),
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True).filter(str.isascii),
)
"""Container names: DNS labels, some as long as can be."""

TEXTS = st.text(max_size=30)
"""What an annotation can hold. The API server sends no lone surrogates."""

SURROGATES = st.lists(st.integers(0xD800, 0xE000).map(chr), min_size=1, max_size=80).map("".join)
"""Halves of characters, which Python reads out of JSON."""

PARTS = st.lists(
    st.one_of(st.sampled_from(["A100", "h100", " NVIDIA ", "", '"', "\\", '"] || true || "" in ["', "é\n\0"]), TEXTS),
    max_size=4,
).map(",".join)


def _plain(least: int, most: int) -> st.SearchStrategy[Any]:
    """A number as JSON, as text, or in one of the forms that Kubernetes itself makes of it."""
    number = st.integers(least, most)
    thousands = st.integers(-(-least // 1000), most // 1000).map(lambda n: f"{n}k")
    return st.one_of(number, number.map(str), number.map(lambda n: f"{n}.0"), *([thousands] if most >= 1000 else []))


COUNTS = st.sampled_from([0, 1, 1, 1, 2, 3, 16, "1", "2"])
AMOUNTS: Mapping[str, st.SearchStrategy[Any]] = {
    GPU: COUNTS,
    MEMORY: st.one_of(st.sampled_from([0, "1Ki", 2**31 - 1, 1_999_000]), _plain(0, 200_000)),
    PERCENT: st.one_of(st.sampled_from([0, 1, 50, 99, 100]), _plain(0, 100)),
    CORES: st.one_of(st.sampled_from([0, 30, 100, 101]), _plain(0, 400)),
    PRIORITY: st.sampled_from([0, 1, "0", "1"]),
}
OTHERS: Mapping[str, st.SearchStrategy[Any]] = {
    "cpu": st.sampled_from(["1", "500m"]),
    "memory": st.sampled_from(["64Mi", "1Gi"]),
    "example.com/fpga": st.sampled_from(["1", 2]),
    "nvidia.com/gpu.shared": st.just(1),
}


@st.composite
def resources(draw: st.DrawFn, claims: Sequence[str]) -> Json:
    """Resources of one container: none, ours in limits, requests or both, others beside them, claims of its own."""
    wanted = draw(st.sets(st.sampled_from(list(AMOUNTS)), max_size=4))
    limits = {(draw(st.sampled_from([MEMORY, ALIAS])) if n == MEMORY else n): draw(AMOUNTS[n]) for n in sorted(wanted)}
    requests = {name: value for name, value in limits.items() if draw(st.integers(0, 3)) == 0}
    for name in [name for name in requests if draw(st.integers(0, 3)) == 0]:
        del limits[name]
    for name in draw(st.sets(st.sampled_from(list(OTHERS)), max_size=2)):
        limits[name] = draw(OTHERS[name])
        if draw(st.booleans()):
            requests[name] = limits[name]
    made: Json = {}
    if draw(st.booleans()) or limits:
        made["limits"] = limits
    if requests:
        made["requests"] = requests
    if claims and (used := draw(st.lists(st.sampled_from(claims), unique=True, max_size=2))):
        made["claims"] = [{"name": name} for name in used]
    return made


ENVIRONMENTS = st.lists(
    st.sampled_from(
        [
            {"name": "CUDA_TASK_PRIORITY", "value": "0"},
            {"name": "CUDA_TASK_PRIORITY", "value": "7"},
            {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"},
            {"name": "GPU_CORE_UTILIZATION_POLICY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "OTHER", "value": "x"},
        ]
    ),
    max_size=2,
)


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """A pod that any API server takes after conversion, and that conversion has no reason to refuse."""
    names = draw(st.lists(LABELS, min_size=1, max_size=6, unique=True))
    first = draw(st.integers(0, min(3, len(names) - 1)))
    existing = draw(st.lists(st.one_of(st.sampled_from([f"gpu-{names[0]}"[:58].rstrip("-"), "net"])), unique=True))
    lists: dict[str, list[Json]] = {"initContainers": [], "containers": []}
    for index, name in enumerate(names):
        made: Json = {"name": name, "image": IMAGE}
        if draw(st.integers(0, 5)):
            made["resources"] = draw(resources(existing))
        if env := draw(ENVIRONMENTS):
            made["env"] = env
        if index < first and draw(st.booleans()):
            made["restartPolicy"] = "Always"
        lists["initContainers" if index < first else "containers"].append(made)
    spec: Json = {kind: entries for kind, entries in lists.items() if entries}
    if existing:
        spec["resourceClaims"] = [{"name": name, "resourceClaimName": "theirs"} for name in existing]
    if draw(st.booleans()):
        spec["schedulerName"] = draw(st.sampled_from(["default-scheduler", "hami-scheduler", "other"]))
    metadata: Json = draw(st.sampled_from([{"name": "some-pod"}, {"generateName": "some-pod-"}]))
    if annotations := draw(_annotations(types=not any(PERCENT in _listed(one) for one in lists_of(lists)))):
        metadata = metadata | {"annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": dict(metadata), "spec": spec}


def lists_of(lists: Mapping[str, list[Json]]) -> list[Json]:
    """All containers."""
    return [one for entries in lists.values() for one in entries]


def _listed(one: Json) -> set[str]:
    return {name for kind in ("limits", "requests") for name in one.get("resources", {}).get(kind, {})}


@st.composite
def _annotations(draw: st.DrawFn, *, types: bool) -> Json:
    # A percentage needs a GPU that the types admit, which a text made by chance hardly does.
    flags = st.sampled_from(["true", "false", "1", "F", ""])
    known: dict[str, st.SearchStrategy[str]] = {
        "nvidia.com/use-gpuuuid": PARTS,
        "nvidia.com/nouse-gpuuuid": PARTS,
        "nvidia.com/numa-bind": flags,
        "nvidia.com/vgpu-mode": st.sampled_from(["hami-core", "hami-core,mig", ""]),
        "hami.io/gpu-scheduler-policy": st.sampled_from(["binpack", "spread", "mutex", "numa,binpack", "?"]),
        "hami.io/node-scheduler-policy": st.sampled_from(["binpack", "spread"]),
        "gpu.hami.io/same-pcie-root": flags,
        "gpu.hami.io/same-nvlink": flags,
        "gpu.hami.io/exclusive": flags,
        "example.com/other": TEXTS,
    }
    if types:
        known |= {"nvidia.com/use-gputype": PARTS, "nvidia.com/nouse-gputype": PARTS}
    return {name: draw(known[name]) for name in sorted(draw(st.sets(st.sampled_from(list(known)), max_size=3)))}


SIZES = st.lists(
    st.builds(
        GpuSize,
        st.sampled_from(["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "Tesla P4", "NVIDIA A10"]),
        st.one_of(st.sampled_from([40960, 81559, 1, 99]), st.integers(1, 300_000)),
    ),
    min_size=1,
    max_size=8,
)
"""The GPUs of a cluster."""

RULES = st.builds(
    Conversion,
    default_gpu_num=st.sampled_from([1, 1, 0, 2]),
    default_memory=st.sampled_from([0, 0, 2000]),
    default_cores=st.sampled_from([0, 0, 25, 100]),
    gpu_core_policy=st.sampled_from(["default", "force", "disable"]),
    kubernetes=st.sampled_from(["", "1.37", "1.35"]),
    max_placements=st.just(0),
    replace_scheduler=st.sampled_from([None, "hami-scheduler"]),
)
"""Settings, with the names that HAMi ships."""

GARBAGE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.text(max_size=8),
        SURROGATES,
        st.sampled_from(["", "1", "500m", "-1", "4Gi", "1e999", "1e-9", "\u0661", "x" * 300, [], {}, "nan", 1e308]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from([GPU, "name", "value", "limits", "claims"]), st.text(max_size=5)), inner
        ),
    ),
    max_leaves=6,
)
"""Any JSON, and texts with lone surrogates."""


@st.composite
def bad_pods(draw: st.DrawFn) -> Json:
    """A pod in which up to three places hold, or one more holds, anything at all."""
    one = copy.deepcopy(draw(pods()))
    one["spec"]["containers"][0].setdefault("resources", {}).setdefault("limits", {})[GPU] = 1
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(_places(one))))
        if isinstance(parent, dict) and draw(st.integers(0, 3)) == 0:
            key = draw(
                st.sampled_from(["env", "claims", "labels", "resourceClaims", "nodeName", "securityContext", *OURS])
            )
        parent[key] = draw(GARBAGE)
    return one


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])
