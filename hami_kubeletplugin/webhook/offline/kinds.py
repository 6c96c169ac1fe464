"""Kinds of objects that are more than their pod templates: their controllers read or refuse what is converted, or count it. Pure.

Known by patterns of GROUP/KIND, with the wildcards of a shell; the first that fits counts. The core group is empty:
`/LimitRange`.
Contract: KubeRay's ray-operator/controllers/ray/common/pod.go (num-gpus), knative/serving#15332, Kubernetes'
plugin/pkg/admission/limitranger/admission.go.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.quoting import quoted

_FOR_ALL: Final = "its pods are made in other namespaces, where there would be no template for their claims"

LEFT: Final[Mapping[str, str]] = {
    "serving.knative.dev/*": "Knative takes no claims here",
    "ray.io/*": "KubeRay tells Ray from it how many GPUs a worker has, and the autoscaler goes by that",
    "trainer.kubeflow.org/*": "Kubeflow Trainer makes as many processes on a node as this says",
    "sparkoperator.k8s.io/*": "Spark asks for GPUs by this name only",
    "scheduling.koordinator.sh/Reservation": "Koordinator sets these amounts aside",
    "kueue.x-k8s.io/Workload": "Kueue makes it of another object",
    "work.open-cluster-management.io/*": "it brings its objects to other clusters",
    "types.kubefed.io/*": "it brings its objects to other clusters",
    # Most of those that are there once for all namespaces are called so: Trainer's runtimes, KServe's, Argo's, Tekton's.
    "*/Cluster*": _FOR_ALL,
}
"""What is left as it is, templates of pods in it too, and why."""

_NOTHING: Final = (
    "will count nothing, since pods no longer name it: limit claims instead (docs/migrating-from-hami.md, Quotas)"
)
_KUEUE: Final = f"{_NOTHING}, or count them by deviceClassMappings (docs/with-other-controllers.md, Kueue)"
_WAITS: Final = "will be waited for in vain, since pods and nodes no longer name it: take it out"

COUNTING: Final[Mapping[str, str]] = {
    "/ResourceQuota": _NOTHING,
    "quota.openshift.io/ClusterResourceQuota": _NOTHING,
    "kueue.x-k8s.io/ClusterQueue": _KUEUE,
    "kueue.x-k8s.io/Cohort": _KUEUE,
    "kueue.x-k8s.io/*": _NOTHING,
    "scheduling.volcano.sh/Queue": _NOTHING,
    "*/ElasticQuota": _NOTHING,
    "*/ElasticQuotaProfile": _NOTHING,
    "*/CompositeElasticQuota": _NOTHING,
    "karpenter.sh/*": _NOTHING,
    "*/PodGroup": _WAITS,
}
"""Quotas and queues: what they name is what pods named. What becomes of that."""

_WITHOUT_PODS: Final = ("/Node", "resource.k8s.io/*")
"""May name our resources, and make no pods: a node's status, a DeviceClass's extendedResourceName."""

_REFUSES: Final = "refuses all pods of the namespace, since they no longer name it"
_FILLED_IN: Final = "is put into each container that doesn't name it, which without the webhook waits for ever"
_LIMIT_RANGE: Final[Mapping[str, str]] = {
    "max": f"bounds nothing any more, but {_FILLED_IN}, or, with type: Pod, {_REFUSES}",
    "min": _REFUSES,
    "maxLimitRequestRatio": _REFUSES,
    "default": _FILLED_IN,
    "defaultRequest": _FILLED_IN,
}


def why_left(group: str, kind: str, more: Iterable[str] = (), *, in_namespace: bool = False) -> str | None:
    """Why an object is left as it is; None if pod templates in it are converted.

    Args:
        group: Of its `apiVersion`, without the version.
        kind: As it says.
        more: Patterns beside `LEFT`.
        in_namespace: Whether it names a namespace, so that it is not there for all of them.
    """
    why = _of(LEFT, group, kind)
    if why is not None and not (in_namespace and why == _FOR_ALL):
        return why
    return "--leave says so" if _of(dict.fromkeys(more, ""), group, kind) is not None else None


def has_no_pods(group: str, kind: str) -> bool:
    """Whether an object is none of our business, whatever it names."""
    return any(fnmatchcase(f"{group}/{kind}", pattern) for pattern in _WITHOUT_PODS)


def what_of_count(group: str, kind: str, path: Iterable[str | int]) -> str | None:
    """What becomes of a place where an object counts, bounds or queues by one of our names; None if it does none of that.

    Args:
        group: Of its `apiVersion`, without the version.
        kind: As it says.
        path: Where the name is.
    """
    if (group, kind) == ("", "LimitRange"):
        found = next((_LIMIT_RANGE[str(step)] for step in path if step in _LIMIT_RANGE), _NOTHING)
        return f"{found}: take it out, and limit claims instead (docs/migrating-from-hami.md, LimitRanges)"
    return _of(COUNTING, group, kind)


def check(patterns: Iterable[str]) -> None:
    """Refuse what fits nothing.

    Raises:
        SettingsError: One is not GROUP/KIND.
    """
    for pattern in patterns:
        _, slash, kind = pattern.partition("/")
        if not slash or not kind or "/" in kind:
            raise SettingsError(
                f"--leave: must be GROUP/KIND, with * for any, such as ray.io/* or batch.volcano.sh/Job; got {quoted(pattern)}"
            )


def _of(table: Mapping[str, str], group: str, kind: str) -> str | None:
    return next((text for pattern, text in table.items() if fnmatchcase(f"{group}/{kind}", pattern)), None)
