"""The objects that give the webhook most to do: each list as long, each text as long, each name as much in the way as fits.

What somebody can send who may create pods or claims, or who only reaches the webhook's port: no API server has validated it yet.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bench.reviews import review

Json = dict[str, Any]
LARGEST: Final = 3_000_000
"""Bytes of an object that an API server takes."""
GPU: Final = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
LISTS: Final = (
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
)


def container(name: str = "main", limits: Mapping[str, Any] | None = None, **more: Any) -> Json:
    """One with a GPU."""
    return {"name": name, "image": "i", "resources": {"limits": {**GPU, **(limits or {})}}, **more}


def pod(*containers: Json, annotations: Json | None = None, **spec: Any) -> Json:
    """A pod of these."""
    metadata = {"name": "worst", "namespace": "default", "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers), **spec}}


def claim(**devices: Any) -> Json:
    """A claim for these."""
    metadata = {"name": "worst", "namespace": "default"}
    spec = {"devices": devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def repeated(make: Callable[[int], Any], size: int) -> list[Any]:
    """As many as fit into so many bytes of JSON."""
    return [make(number) for number in range(size // len(json.dumps(make(size), separators=(",", ":"))))]


def fields(size: int, start: str = "k", value: Any = "") -> Json:
    """An object of as many fields."""
    count = size // (len(start) + 9 + len(json.dumps(value)))
    return {f"{start}{number}": value for number in range(count)}


def nested(size: int, deep: int = 300) -> list[Any]:
    """Lists in lists."""
    one: Any = 1
    for _ in range(deep):
        one = [one]
    return [one for _ in range(size // (2 * deep + 2))]


def each_another(count: int, **more: Any) -> list[Json]:
    """Containers that all need another template."""
    return [container(f"c{number}", {"nvidia.com/gpumem": str(number + 1)}, **more) for number in range(count)]


def listed(size: int) -> Json:
    """Annotations with lists, none of them longer than is taken."""
    return {name: ",".join(f"GPU-{number:036}" for number in range(min(size // 180, 128))) for name in LISTS}


_CLASS: Final = "gpu.hami.io"
_OPAQUE: Final = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig"}
_APART: Final = "gpu.hami.io/uuid"
_MANY: Final = 32


def _request(number: int, size: int) -> Json:
    """With as many alternatives, and as many amounts in each, as are looked at."""
    amounts = fields(min(size, 900), value="x") | {"memory": "7", "shares": "3", "cores": "1e9"}
    alternative = {"name": "a", "deviceClassName": _CLASS, "count": 9, "capacity": {"requests": amounts}}
    return {"name": f"r{number}", "firstAvailable": [alternative for _ in range(_MANY)]}


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def _terms(size: int) -> Json:
    """As many, each as long as is looked at."""
    on = {"key": "gpu", "operator": "In", "values": ["on"]}
    return {"nodeSelectorTerms": repeated(lambda _: {"matchExpressions": [on] * _MANY}, size)}


HALF: Final = {"nvidia.com/gpumem-percentage": "50"}
PODS: Final[Mapping[str, Callable[[int], Json]]] = {
    "containers": lambda size: pod(*repeated(lambda number: container(f"c{number}"), size)),
    "containers without GPU": lambda size: pod(container(), *repeated(lambda _: {"name": "c"}, size)),
    "init containers": lambda size: pod(container(), initContainers=repeated(lambda _: {}, size)),
    "different containers": lambda size: pod(*each_another(min(size // 120, 128))),
    "different containers, lists": lambda size: pod(*each_another(min(size // 120, 128)), annotations=listed(size)),
    "containers of one name": lambda size: pod(
        *[container("x" * 63) for _ in range(128)],
        resourceClaims=repeated(lambda number: {"name": f"gpu-{'x' * 55}-{number}"}, size),
    ),
    "names that are taken": lambda size: pod(
        *[container("a") for _ in range(128)],
        resourceClaims=[{"name": "gpu-a"}, *repeated(lambda number: {"name": f"gpu-a-{number + 2}"}, size)],
    ),
    "a claim of ours that none of many names": lambda size: pod(
        *[container(f"c{number}", {"nvidia.com/gpu": "16", **HALF}) for number in range(128)],
        annotations=listed(size),
        resourceClaims=[{"name": "x", "resourceClaimTemplateName": f"hami-gpu-{'0' * 20}"}],
    ),
    "what a LimitRange is said to have set": lambda size: pod(
        container(), annotations={"kubernetes.io/limit-ranger": "x: " + "; " * (size // 2)}
    ),
    "variables": lambda size: pod(container(env=repeated(lambda _: {"name": "A"}, size))),
    "variables with warnings": lambda size: pod(container(env=repeated(lambda _: {"name": "LD_PRELOAD"}, size))),
    "mounts": lambda size: pod(container(volumeMounts=repeated(lambda _: {"mountPath": "/tmp"}, size))),
    "mounts, as many as are taken": lambda size: pod(
        container(volumeMounts=[{"mountPath": "/a" * max(size // 10_000, 1)} for _ in range(4900)])
    ),
    "block devices": lambda size: pod(container(volumeDevices=repeated(lambda _: {"devicePath": "/a/../b"}, size))),
    "one long path": lambda size: pod(container(volumeMounts=[{"mountPath": "/a/.." * (size // 5)}])),
    "claims of a container": lambda size: pod(
        {**container(), "resources": {"limits": GPU, "claims": repeated(lambda number: {"name": f"c{number}"}, size)}}
    ),
    "deep claims of a container": lambda size: pod(
        {**container(), "resources": {"limits": GPU, "claims": nested(size)}}
    ),
    "a claim of a long name": lambda size: pod(container(), resourceClaims=[{"name": "é" * (size // 6)}]),
    "claims of the pod": lambda size: pod(
        container(), resourceClaims=repeated(lambda number: {"name": f"c{number}"}, size)
    ),
    "amounts": lambda size: pod(container(limits=fields(size, "example.com/", "1"))),
    "amounts that are nearly ours": lambda size: pod(container(limits=fields(size, "nvidia.com/gpu-", "1"))),
    "amounts in our domain, alone": lambda size: pod(
        {**container(), "resources": {"limits": fields(size, "nvidia.com/xx", "1")}}
    ),
    "annotations in our domain": lambda size: pod(container(), annotations=fields(size, "nvidia.com/use-x")),
    "node affinities": lambda size: pod(container(), affinity={"nodeAffinity": {_REQUIRED: _terms(size)}}),
    "an amount that is an object": lambda size: pod(container(limits={"nvidia.com/gpu": fields(size)})),
    "a long amount": lambda size: pod(container(limits={"nvidia.com/gpu": "1" * size})),
    "numbers of many digits": lambda size: pod(container(), x=[int("9" * 4000)] * (size // 4001)),
    "annotations": lambda size: pod(container(), annotations=fields(size)),
    **{
        f"annotation {name}": lambda size, name=name: pod(container(), annotations={name: "a," * (size // 2)})  # type: ignore[misc]
        for name in (*LISTS, "hami.io/gpu-scheduler-policy", "nvidia.com/vgpu-mode")
    },
    "an annotation of halves": lambda size: pod(container(), annotations={LISTS[0]: "\ud800" * (size // 6)}),
    "tolerations": lambda size: pod(container(), tolerations=repeated(lambda _: {"key": "a"}, size)),
    "empty lists": lambda size: pod(container(), x=repeated(lambda _: [], size)),
    "fractions": lambda size: pod(container(), x=repeated(lambda _: 0.1, size)),
    "deep lists": lambda size: pod(container(), x=nested(size)),
    "a long name": lambda size: pod(container("n" * size)),
    "long names": lambda size: pod(*[container("n" * (size // 128)) for _ in range(128)]),
    "long values": lambda size: pod(container(env=[{"name": "A", "value": "v" * size}])),
}
CLAIMS: Final[Mapping[str, Callable[[int], Json]]] = {
    "requests": lambda size: claim(
        requests=repeated(
            lambda number: {"name": f"r{number}", "exactly": {"deviceClassName": _CLASS, "count": 2}}, size
        )
    ),
    "alternatives": lambda size: claim(
        requests=[_request(number, size // 1000) for number in range(_MANY)],
        constraints=[
            {"distinctAttribute": _APART, "requests": [f"s{number}" for number in range(_MANY)]} for _ in range(_MANY)
        ],
    ),
    "amounts": lambda size: claim(
        requests=[
            {"name": "r", "exactly": {"deviceClassName": _CLASS, "capacity": {"requests": fields(size, value="1")}}}
        ]
    ),
    "long names": lambda size: claim(
        requests=[
            {
                "name": "r" * (size // 40),
                "firstAvailable": [{"name": str(n), "deviceClassName": _CLASS} for n in range(40)],
            }
            for _ in range(40)
        ]
    ),
    "constraints": lambda size: claim(constraints=repeated(lambda _: {"distinctAttribute": _APART}, size)),
    "names in a constraint": lambda size: claim(
        requests=[_request(number, 1) for number in range(_MANY)],
        constraints=[{"distinctAttribute": _APART, "requests": repeated(lambda number: f"r{number}", size)}],
    ),
    "configs": lambda size: claim(
        config=repeated(lambda _: {"opaque": {"driver": _CLASS, "parameters": _OPAQUE | {"x": 1}}}, size)
    ),
    "a config of many fields": lambda size: claim(
        config=[{"opaque": {"driver": _CLASS, "parameters": _OPAQUE | fields(size)}}]
    ),
    "a config with an object": lambda size: claim(
        config=[{"opaque": {"driver": _CLASS, "parameters": _OPAQUE | {"corePolicy": fields(size)}}}]
    ),
    "selectors": lambda size: claim(
        requests=[
            {"name": "r", "exactly": {"deviceClassName": _CLASS, "selectors": repeated(lambda _: {"cel": {}}, size)}}
        ]
    ),
    "a long amount": lambda size: claim(
        requests=[
            {
                "name": "r",
                "exactly": {
                    "deviceClassName": _CLASS,
                    "capacity": {"requests": {"memory": "1" * size, "cores": ["x" * size]}},
                },
            }
        ]
    ),
}


def bodies(size: int = LARGEST) -> Iterator[tuple[str, str, bytes]]:
    """Path, what is too much, and the review, of each; about so many bytes, or as many as can be."""
    for what, make in PODS.items():
        yield "/mutate", what, review(make(size), "pods")
    for what, make in CLAIMS.items():
        yield "/validate", what, review(make(size), "resourceclaims")


_AGAIN: Final = (
    "different containers",
    "different containers, lists",
    "names that are taken",
    "mounts, as many as are taken",
    "claims of a container",
    "long names",
)


def updates(size: int = LARGEST) -> Iterator[tuple[str, str, bytes]]:
    """As `bodies`, of pods that are applied again: those are converted as two versions would."""
    for what in _AGAIN:
        sent = json.loads(review(PODS[what](size), "pods"))
        sent["request"] |= {"operation": "UPDATE", "oldObject": pod({"name": "main"})}
        yield "/mutate", f"{what}, applied again", json.dumps(sent, separators=(",", ":")).encode()
