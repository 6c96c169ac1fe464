"""The cluster as checks read it: each object once, however many checks look at it, and of long lists only what they look at."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import ApiNotFound, ApiNotServed
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.paged import Reader
from hami_kubeletplugin.kube.resource_api import segment

T = TypeVar("T")
_ADMISSION: Final = "admissionregistration.k8s.io"
_GROUPS: Final[Mapping[str, str]] = {
    "daemonsets": "apps",
    "deployments": "apps",
    "endpointslices": "discovery.k8s.io",
    "poddisruptionbudgets": "policy",
    "mutatingwebhookconfigurations": _ADMISSION,
    "validatingwebhookconfigurations": _ADMISSION,
    "validatingadmissionpolicies": _ADMISSION,
    "validatingadmissionpolicybindings": _ADMISSION,
    "deviceclasses": "resource.k8s.io",
    "resourceslices": "resource.k8s.io",
    "resourceclaimtemplates": "resource.k8s.io",
    "gpuclusters": "nvidia.com",
    "clusterpolicies": "nvidia.com",
}
_VERSIONS: Final[Mapping[str, str]] = {"gpuclusters": "v1alpha1"}
_DAEMON_VARIABLE: Final = "HAMI_HOST_DRIVER_ROOT"


@dataclass(frozen=True, slots=True)
class Node:
    """What is looked at of a node.

    Attributes:
        name: Its name.
        gpus: It has a label by which others say that it has NVIDIA's GPUs.
        plugin: Resources that a device plugin serves there, such as `nvidia.com/gpu`, more than none of each.
    """

    name: str
    gpus: bool
    plugin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """What is looked at of a ResourceSlice.

    Attributes:
        name: Its name.
        driver: Who publishes it.
        node: Whose devices; empty: it doesn't say.
        pool: Its pool, the pool's generation and how many slices that has.
        devices: How many.
        shared: How many of them may be given to several claims.
        taints: Of devices that take nothing new: device -> the taints.
    """

    name: str
    driver: str
    node: str
    pool: tuple[str, int, int]
    devices: int
    shared: int
    taints: Mapping[str, tuple[str, ...]]


def daemon_sets(found: list[Object]) -> list[Object]:
    """Those of the node daemon, whatever they are called."""
    return [each for each in found if _DAEMON_VARIABLE in environment(each)]


def environment(workload: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a workload's containers are given in so many words, and the names of others."""
    found = {}
    for _, container in fields.mappings(fields.at(workload, "spec", "template", "spec", "containers")):
        for _, variable in fields.mappings(container.get("env")):
            found[str(variable.get("name"))] = str(variable.get("value") or "")
    return found


def name_of(obj: Mapping[str, Any]) -> str:
    """`namespace/name`, or the name of what is the cluster's."""
    namespace, name = (fields.at(obj, "metadata", part) or "" for part in ("namespace", "name"))
    return f"{namespace}/{name}" if namespace else str(name)


class Cluster:
    """Thread-safe. All methods raise `ApiError`.

    Args:
        reader: Who asks.
        driver: The driver's name.
    """

    def __init__(self, reader: Reader, driver: str = names.DRIVER) -> None:
        self.driver = driver
        self._reader = reader
        self._lock = threading.Lock()
        self._known: dict[object, Future[Any]] = {}

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """An object; None: there is none, or no such API."""
        call = Call(
            "get", _qualified(resource), _path(resource, namespace, name), f"{namespace}/{name}" if namespace else name
        )
        return self._once(call.path, lambda: self._if_there(call))

    def path(self, path: str, what: str, mark: str = "kind") -> Object | None:
        """What is at a path that is no object's; None: nothing.

        Args:
            path: Where.
            what: In the words of RBAC.
            mark: A field that it has.
        """
        return self._once(path, lambda: self._if_there(Call("get", what, path, mark=mark)))

    def all(self, resource: str, namespace: str = "", labels: Mapping[str, str] | None = None) -> list[Object]:
        """Objects, of one namespace or of all; none if the API isn't served."""
        return self._once(
            (resource, namespace, *(labels or {}).items()), lambda: list(self._each(resource, namespace, labels))
        )

    def nodes(self) -> dict[str, Node]:
        """By name."""
        return self._once("nodes", lambda: {node.name: node for node in map(_node, self._each("nodes"))})

    def slices(self) -> list[Slice]:
        """Of all drivers."""
        return self._once("slices", lambda: [*map(_slice, self._each("resourceslices"))])

    def each_template(self) -> Iterator[Object]:
        """The webhook's templates, one at a time."""
        return self._each("resourceclaimtemplates", "", {names.MANAGED_BY: names.WEBHOOK})

    def pods(self, workload: Mapping[str, Any]) -> list[Object]:
        """Those that a workload's selector finds, but of other DaemonSets: the chart's `nodeProfiles` share labels."""
        labels = fields.mapping(fields.at(workload, "spec", "selector", "matchLabels"))
        found = self.all("pods", str(fields.at(workload, "metadata", "namespace") or ""), labels) if labels else []
        return [pod for pod in found if not _is_anothers(pod, fields.at(workload, "metadata", "uid"))]

    def _each(self, resource: str, namespace: str = "", labels: Mapping[str, str] | None = None) -> Iterator[Object]:
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}
        call = Call("list", _qualified(resource), _path(resource, namespace), namespace, query)
        try:
            for found in self._reader.all(call):
                if (labels or {}).items() <= fields.mapping(fields.at(found, "metadata", "labels")).items():
                    yield found
        except (ApiNotFound, ApiNotServed):
            return

    def _if_there(self, call: Call) -> Object | None:
        try:
            return self._reader.get(call)
        except (ApiNotFound, ApiNotServed):
            return None

    def _once(self, key: object, read: Callable[[], T]) -> T:
        with self._lock:
            known = self._known.get(key)
            future: Future[Any] = self._known.setdefault(key, Future())
        if known is None:
            try:
                future.set_result(read())
            except BaseException as error:  # noqa: BLE001 - told to all who ask
                future.set_exception(error)
        result: T = future.result()
        return result


def _is_anothers(pod: Object, uid: object) -> bool:
    """Whether another DaemonSet than that with the UID made it. ReplicaSets make those of a Deployment."""
    return any(
        fields.at(owner, "kind") == "DaemonSet" and fields.at(owner, "uid") != uid
        for owner in fields.sequence(fields.at(pod, "metadata", "ownerReferences"))
    )


def _qualified(resource: str) -> str:
    return f"{resource}.{_GROUPS[resource]}" if resource in _GROUPS else resource


def _path(resource: str, namespace: str, name: str = "") -> str:
    group = _GROUPS.get(resource)
    root = f"/apis/{group}/{_VERSIONS.get(resource, 'v1')}" if group else "/api/v1"
    within = f"/namespaces/{segment(namespace)}" if namespace else ""
    return f"{root}{within}/{resource}" + (f"/{segment(name)}" if name else "")


_LABELS: Final = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)


def _node(node: Object) -> Node:
    labels = fields.mapping(fields.at(node, "metadata", "labels"))
    offered = fields.mapping(fields.at(node, "status", "allocatable"))
    plugin = tuple(sorted(str(name) for name, amount in offered.items() if _is_gpu(str(name)) and str(amount) != "0"))
    return Node(name_of(node), any(labels.get(label) == "true" for label in _LABELS), plugin)


def _is_gpu(resource: str) -> bool:
    return resource.startswith((names.GPU_COUNT, "nvidia.com/mig-", "nvidia.com/vgpu", "volcano.sh/vgpu-"))


def _slice(slice_: Object) -> Slice:
    spec = fields.mapping(slice_.get("spec"))
    pool = fields.mapping(spec.get("pool"))
    devices = [device for _, device in fields.mappings(spec.get("devices"))]
    tainted = {}
    for device in devices:
        taints = [taint for _, taint in fields.mappings(device.get("taints"))]
        if away := [taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute")]:
            tainted[str(device.get("name"))] = tuple(f"{taint.get('key')}:{taint.get('effect')}" for taint in away)
    numbers = (pool.get(field) for field in ("generation", "resourceSliceCount"))
    generation, count = (number if isinstance(number, int) else 0 for number in numbers)
    return Slice(
        name_of(slice_),
        str(spec.get("driver") or ""),
        str(spec.get("nodeName") or ""),
        (str(pool.get("name") or ""), generation, count),
        len(devices),
        sum(device.get("allowMultipleAllocations") is True for device in devices),
        tainted,
    )
