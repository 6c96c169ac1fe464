"""From a prepared claim to its CDI spec. Pure: the same record and the same hardware give the same bytes.

CDI: https://github.com/cncf-tags/container-device-interface SPEC.md. The lowest version that the content needs is written,
since runtimes refuse versions they do not know.
"""

from collections.abc import Mapping
from pathlib import Path

from hami_kubeletplugin.api.cdi import ContainerEdits, Device, Mount, Spec
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.names import cdi_kind
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare, Use
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore import contract
from hami_kubeletplugin.hamicore.caches import cache_dir
from hami_kubeletplugin.hamicore.host import Installed

CLAIM_VARIABLE = "HAMI_DRA_CLAIM"
"""Names the claim (`namespace/name`) in the container, and lets a lost record be made anew from the spec."""

_READ_ONLY = ["ro", "nosuid", "nodev", "bind"]
_WRITABLE = ["rw", "nosuid", "nodev", "bind"]
_PRIVATE_CACHE = ["nosuid", "nodev", "mode=1777", "size=16m"]


def render(
    prepared: Prepared, *, gpus: Mapping[str, Gpu], edits: DriverEdits, installed: Installed, hami_dir: Path
) -> Spec:
    """Render the spec of one claim.

    Args:
        prepared: The claim's plan.
        gpus: The node's GPUs by UUID.
        edits: The driver's own edits for each GPU of the claim.
        installed: HAMi-core's files on the host.
        hami_dir: Where the cache directories are.

    Raises:
        ClaimError: A GPU is gone, or the driver's libcuda would not be in the container.
    """
    limited = any(not use.admin for use in prepared.uses)
    if limited and not edits.libcuda:
        raise ClaimError(
            f"{prepared.ref}: the driver's edits mount no libcuda.so, and with HAMi-core's preload file every program of "
            "the container would die; repair the driver installation (nvidia-ctk cdi generate has to list libcuda)"
        )
    devices: list[Device] = []
    for share in prepared.shares:
        own = _share_edits(prepared, share, gpus=gpus, edits=edits, installed=installed, hami_dir=hami_dir)
        devices.append({"name": prepared.cdi_device(share), "containerEdits": own})
    spec: Spec = {"cdiVersion": "", "kind": cdi_kind(prepared.driver), "devices": devices}
    if edits.common:
        spec["containerEdits"] = edits.common
    spec["cdiVersion"] = _minimum_version(spec)
    return spec


def _share_edits(
    prepared: Prepared,
    share: PreparedShare,
    *,
    gpus: Mapping[str, Gpu],
    edits: DriverEdits,
    installed: Installed,
    hami_dir: Path,
) -> ContainerEdits:
    index = share.use
    use = prepared.uses[index]
    limits = sorted(use.gpus, key=lambda limit: _gpu(gpus, limit.uuid).bus_order)
    visible = ",".join(limit.uuid for limit in limits) if edits.visible == "uuids" else "void"
    result = edits.per_gpu[share.uuid].copy()
    env = [f"NVIDIA_VISIBLE_DEVICES={visible}", f"{CLAIM_VARIABLE}={prepared.ref.full_name}"]
    mounts: list[Mount] = []
    if not use.admin:
        variables = contract.variables(
            [contract.Limit(limit.memory_mib, limit.cores) for limit in limits],
            core_policy=use.core_policy,
            priority=use.priority,
            log_level=use.log_level,
        )
        env += [f"{name}={value}" for name, value in variables.items()]
        mounts = _mounts(prepared, use, index, installed, hami_dir)
    result["env"] = [*result.get("env", []), *env]
    if mounts:
        result["mounts"] = [*result.get("mounts", []), *mounts]
    return result


def _mounts(prepared: Prepared, use: Use, index: int, installed: Installed, hami_dir: Path) -> list[Mount]:
    def bind(host: Path, container: str, options: list[str]) -> Mount:
        return {"hostPath": str(host), "containerPath": container, "options": options}

    mounts = [
        bind(installed.library, contract.CONTAINER_LIBRARY, _READ_ONLY),
        bind(installed.preload, contract.CONTAINER_PRELOAD, _READ_ONLY),
        bind(installed.lock_dir, contract.CONTAINER_LOCK_DIR, _WRITABLE),
    ]
    if use.cache == "private":
        mounts.append(
            {
                "hostPath": "tmpfs",
                "containerPath": contract.CONTAINER_CACHE_DIR,
                "type": "tmpfs",
                "options": _PRIVATE_CACHE,
            }
        )
    elif use.owner == prepared.uid:
        mounts.append(bind(cache_dir(hami_dir, prepared.uid, f"use-{index}"), contract.CONTAINER_CACHE_DIR, _WRITABLE))
    return mounts


def _gpu(gpus: Mapping[str, Gpu], uuid: str) -> Gpu:
    if uuid not in gpus:
        raise ClaimError(f"GPU {uuid} is not on this node any more; delete the pod so that another is allocated")
    return gpus[uuid]


def _minimum_version(spec: Spec) -> str:
    """The rules of CDI's specs-go/version.go for the fields that can occur here."""
    every = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    if any(edits.get("additionalGids") for edits in every):
        return "0.7.0"
    if any("hostPath" in node for edits in every for node in edits.get("deviceNodes", [])):
        return "0.5.0"
    if any("type" in mount for edits in every for mount in edits.get("mounts", [])):
        return "0.4.0"
    return "0.3.0"
