"""What the scheduler allocated: a ResourceClaim of the API in, our own shares of it out. Pure.

Contract: resource.k8s.io/v1 types.go, AllocationResult. `status.allocation` is alike in v1, v1beta2 and v1beta1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hami_kubeletplugin.api import gpuconfig, names
from hami_kubeletplugin.api.claim import LABEL, ClaimRef
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.gpuconfig import ALL_RIGHTS, ClaimRights, GpuConfig
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.kube import quantity

Json = Mapping[str, Any]

_LARGEST = 2**63 - 1
"""HAMi-core's numbers have 64 bits. One that overflows would be taken for no limit."""


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod that a claim is reserved for."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Share:
    """One allocation result of ours.

    Attributes:
        request: The request it serves, without the subrequest.
        subrequest: The chosen alternative of a prioritized list, or None.
        pool: Pool of the device: our node.
        device: Name of the device.
        share_id: UUID of this share; None only with admin access.
        admin: Admin access: the device is visible, nothing is limited or consumed.
        limit: What it consumes. Memory may exceed the device's own when scaled; nothing with admin access.
        slots: Sharing slots that it consumes, of `names.SHARES_TOTAL`: with all of them nobody else is on the device.
        config: The GpuConfig in force for its request.
    """

    request: str
    subrequest: str | None
    pool: str
    device: str
    share_id: str | None
    admin: bool
    limit: Limit
    slots: int
    config: GpuConfig


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim with at least one device of ours on this node.

    Attributes:
        ref: Which one it is.
        shares: Its allocation results of ours, in their order.
        consumers: Pods that it is reserved for.
        in_pod: What its pod calls it, if it was made from a template; else empty.
    """

    ref: ClaimRef
    shares: tuple[Share, ...]
    consumers: tuple[PodRef, ...]
    in_pod: str = ""


def has_devices_of(claim: Json, driver: str, *, node: str | None = None) -> bool:
    """Whether any device of `driver`, on that node if one is given, is allocated to the claim."""
    return any(result.get("driver") == driver and node in (None, result.get("pool")) for result in _results(claim))


def read_claim(
    claim: Json, ref: ClaimRef, *, driver: str, node: str, rights: ClaimRights = ALL_RIGHTS
) -> AllocatedClaim:
    """Check a ResourceClaim and take out what concerns us.

    Results and configs of other drivers are ignored.

    Args:
        claim: The object as the API server sent it.
        ref: What the kubelet asked for; the UID has to agree.
        driver: Our driver name.
        node: Our node.
        rights: What it may say about its own limits.

    Raises:
        ClaimError: Replaced, not allocated, allocated elsewhere, or with a result that can't be kept as a limit.
        ConfigError: A GpuConfig in it is wrong.
    """
    uid = claim.get("metadata", {}).get("uid")
    if uid != ref.uid:
        raise ClaimError(
            f"{ref} got replaced: the kubelet asks for UID {ref.uid}, the API server has {uid}; "
            "delete the pod so that it is created anew with the new claim"
        )
    if not claim.get("status", {}).get("allocation"):
        raise ClaimError(f"{ref} is not allocated (status.allocation is empty); the scheduler has to do that first")
    _check_node(claim, ref, node)
    configs = _configs(claim, ref, driver, rights)
    shares = tuple(
        _share(result, f"{ref}: status.allocation.devices.results[{index}]", node, configs)
        for index, result in enumerate(_results(claim))
        if result.get("driver") == driver
    )
    if not shares:
        raise ClaimError(f"{ref} holds no device of driver {driver}")
    if len({(s.request, s.subrequest, s.device, s.share_id) for s in shares}) < len(shares):
        raise ClaimError(
            f"{ref}: status.allocation.devices.results has the same share twice; whoever wrote it is broken"
        )
    return AllocatedClaim(ref, shares, _consumers(claim, ref), _in_pod(claim))


def _in_pod(claim: Json) -> str:
    """What the annotation says; anybody may write it, and what is no name in a pod is none."""
    name = (claim["metadata"].get("annotations") or {}).get(names.POD_CLAIM_NAME)
    return name if isinstance(name, str) and LABEL.fullmatch(name) else ""


def _results(claim: Json) -> list[Json]:
    devices = (claim.get("status", {}).get("allocation") or {}).get("devices") or {}
    results: list[Json] = devices.get("results") or []
    return results


def _check_node(claim: Json, ref: ClaimRef, node: str) -> None:
    """A node-local allocation selects one node by name (allocator createNodeSelector)."""
    selector = claim["status"]["allocation"].get("nodeSelector") or {}
    for term in selector.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and node not in (field.get("values") or []):
                raise ClaimError(f"{ref} is allocated to node {', '.join(field.get('values') or [])}, this is {node}")


def _share(result: Json, where: str, node: str, configs: "list[tuple[frozenset[str], GpuConfig]]") -> Share:
    full = str(result.get("request", ""))
    request, _, subrequest = full.partition("/")
    pool, device = result.get("pool"), result.get("device")
    if pool != node:
        raise ClaimError(f"{where}: unknown pool {pool!r}; this node publishes pool {node!r} alone")
    admin = bool(result.get("adminAccess"))
    share_id = result.get(names.SHARE_ID)
    limit, slots = Limit(0), 0
    if not admin:
        if not share_id:
            raise ClaimError(
                f"{where}: device {device} is shared, but the result has no shareID; "
                "is the feature gate DRAConsumableCapacity on in kube-apiserver and kube-scheduler?"
            )
        limit = Limit(_memory(result, where), _whole(result, names.CORES, where))
        # The limit doesn't depend on it: where nothing is said, others may be on the device.
        slots = _whole(result, names.SHARES, where) if names.SHARES in result["consumedCapacity"] else 0
    config = GpuConfig()
    for requests, layer in configs:
        if not requests or requests & {request, full}:
            config = layer.over(config)
    return Share(request, subrequest or None, str(pool), str(device), share_id, admin, limit, slots, config)


def _memory(result: Json, where: str) -> int:
    size = _whole(result, names.MEMORY, where)
    if size < names.MIB or size % names.MIB:
        raise ClaimError(
            f"{where}.consumedCapacity.memory: {result['consumedCapacity'][names.MEMORY]} is not a whole number of MiB "
            "of at least 1, and HAMi-core's limit can't be other; the device was published with another step"
        )
    return size // names.MIB


def _whole(result: Json, capacity: str, where: str) -> int:
    text = (result.get("consumedCapacity") or {}).get(capacity)
    if text is None:
        raise ClaimError(
            f"{where}.consumedCapacity.{capacity}: missing, so there is no limit to keep; "
            "is the feature gate DRAConsumableCapacity on in kube-apiserver and kube-scheduler?"
        )
    try:
        value = quantity.parse(str(text))
    except ValueError as error:
        raise ClaimError(f"{where}.consumedCapacity.{capacity}: {error}") from None
    if value.denominator != 1 or value < 0:
        raise ClaimError(f"{where}.consumedCapacity.{capacity}: {text} is not a whole, non-negative number")
    if value > _LARGEST:
        raise ClaimError(
            f"{where}.consumedCapacity.{capacity}: {text} is more than any GPU has; whoever wrote it is broken"
        )
    return int(value)


def _configs(claim: Json, ref: ClaimRef, driver: str, rights: ClaimRights) -> list[tuple[frozenset[str], GpuConfig]]:
    """Our configs, weakest first: those of the class, then those of the claim, each in order."""
    layers: dict[str, list[tuple[frozenset[str], GpuConfig]]] = {"FromClass": [], "FromClaim": []}
    entries: Iterable[Json] = (claim["status"]["allocation"].get("devices") or {}).get("config") or []
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        source = entry.get("source")
        where = f"{ref}: status.allocation.devices.config[{index}]"
        if source not in layers:
            raise ClaimError(f"{where}.source: {source!r} is neither FromClass nor FromClaim")
        config = gpuconfig.decode(opaque.get("parameters"), f"{where}.opaque.parameters")
        if source == "FromClaim":
            rights.check(config, f"{where}.opaque.parameters")
        layers[source].append((frozenset(entry.get("requests") or []), config))
    return layers["FromClass"] + layers["FromClaim"]


def _consumers(claim: Json, ref: ClaimRef) -> tuple[PodRef, ...]:
    consumers = []
    for index, entry in enumerate(claim.get("status", {}).get("reservedFor") or []):
        if entry.get("resource") != "pods" or entry.get("apiGroup"):
            raise ClaimError(
                f"{ref}: status.reservedFor[{index}] is {entry.get('resource')} {entry.get('name')!r}, not a pod; "
                "limits are kept per container, so reserve the claim for pods"
            )
        consumers.append(PodRef(ref.namespace, str(entry.get("name")), str(entry.get("uid"))))
    if not consumers:
        raise ClaimError(f"{ref} is reserved for no pod (status.reservedFor is empty)")
    return tuple(consumers)
