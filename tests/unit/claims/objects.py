"""Objects for the claims' tests: GPUs, and claims and pods as the API server has them."""

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.names import CONFIG_API_VERSION, CONFIG_KIND, DRIVER, MIB
from hami_kubeletplugin.gpu.model import Gpu, Inventory

NODE = "node-1"
NAMESPACE = "default"
Json = dict[str, Any]


def gpu(minor: int, bus: int, *, name: str = "") -> Gpu:
    """A GPU with 80 GiB. Its UUID follows from `name`, or else its minor."""
    tail = hashlib.sha256(f"{name or minor}".encode()).hexdigest()[:12]
    return Gpu(
        uuid=f"GPU-00000000-0000-0000-0000-{tail}",
        minor=minor,
        pci_bus_id=f"0000:{bus:02x}:00.0",
        name="NVIDIA A100",
        brand="Nvidia",
        architecture="Ampere",
        compute_capability=(8, 0),
        memory_bytes=81920 * MIB,
        driver_version="550.54.15",
        cuda_driver_version=(12, 4),
        pcie_root=None,
        numa_node=None,
    )


def inventory(gpus: Iterable[Gpu]) -> Inventory:
    """As `GpuSource` gives it: in bus order."""
    return Inventory(tuple(sorted(gpus, key=lambda g: g.bus_order)))


GPUS = inventory([gpu(0, 0xAF), gpu(1, 0x86), gpu(2, 0x3B), gpu(3, 0x5E)])
"""Minors against bus order: whoever numbers by minor, name or list order gets limits wrong here. By bus: 2, 3, 1, 0."""
UUID = {g.minor: g.uuid for g in GPUS.gpus}
"""UUIDs of these by minor."""


def uid_of(kind: str, name: str) -> str:
    """A UUID that stays the same for a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{name}"))


def result(
    device: int | str = 0,
    memory: str | None = "4000Mi",
    cores: str | None = "30",
    *,
    request: str = "gpu",
    share: str | None = "s",
    slots: str | None = "1k",
    **more: Any,
) -> Json:
    """One allocation result of ours; `share` names the share, None leaves the shareID out."""
    name = f"hami-gpu-{device}" if isinstance(device, int) else device
    made: Json = {"request": request, "driver": DRIVER, "pool": NODE, "device": name}
    if share is not None:
        made["shareID"] = uid_of("share", f"{request}/{name}/{share}")
    capacity = {k: v for k, v in (("memory", memory), ("cores", cores), ("shares", slots)) if v is not None}
    return made | {"consumedCapacity": capacity} | more


def config(source: str = "FromClaim", requests: Sequence[str] = (), driver: str = DRIVER, **fields: Any) -> Json:
    """An opaque config with a GpuConfig of these fields."""
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": CONFIG_KIND, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim(
    name: str,
    results: Sequence[Json],
    *,
    pods: Sequence[str] = ("p",),
    configs: Sequence[Json] = (),
    uid: str | None = None,
    node: str = NODE,
) -> Json:
    """An allocated ResourceClaim, reserved for pods by name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": uid or uid_of("claim", name)},
        "spec": {},
        "status": {
            "allocation": {
                "devices": {"results": list(results), "config": list(configs)},
                "nodeSelector": {"nodeSelectorTerms": [term]},
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid_of("pod", pod)} for pod in pods],
        },
    }


def ref(obj: Json) -> ClaimRef:
    """A claim as the kubelet names it."""
    meta = obj["metadata"]
    return ClaimRef(meta["namespace"], meta["name"], meta["uid"])


def container(name: str, *uses: str, **more: Any) -> Json:
    """A container; a use is `claim` or `claim/request`."""
    entries = []
    for use in uses:
        entry, _, request = use.partition("/")
        entries.append({"name": entry} | ({"request": request} if request else {}))
    return {"name": name, "resources": {"claims": entries}} | more


def pod(name: str, *containers: Json, init: Sequence[Json] = (), phase: str = "Pending", **status: Any) -> Json:
    """A pod whose claims are named in it as they are in the API server."""
    used = {entry["name"] for c in (*containers, *init) for entry in c["resources"]["claims"]}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": uid_of("pod", name)},
        "spec": {
            "nodeName": NODE,
            "resourceClaims": [{"name": n, "resourceClaimName": n} for n in sorted(used)],
            "initContainers": list(init),
            "containers": list(containers),
        },
        "status": {"phase": phase} | status,
    }


def simple(number: int, device: int = 0) -> tuple[Json, Json]:
    """A claim of 1 GiB and 1 percent, of which a GPU has room for 80, and its pod."""
    obj = claim(f"c{number}", [result(device, "1Gi", "1", slots="100")], pods=[f"p{number}"])
    return obj, pod(f"p{number}", container("x", f"c{number}"))
