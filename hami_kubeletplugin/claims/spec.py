"""From a prepared claim to its CDI spec. Pure: the same record and the same hardware give the same bytes.

CDI: https://github.com/cncf-tags/container-device-interface SPEC.md. The lowest version that the content needs is written,
since runtimes refuse versions they do not know.
"""

from collections.abc import Mapping
from pathlib import Path

from hami_kubeletplugin.api.cdi import ContainerEdits, Device, Hook, Mount, Spec
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.names import cdi_kind
from hami_kubeletplugin.claims.prepared import GpuLimit, Prepared, PreparedShare, Use, use_name
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore import contract
from hami_kubeletplugin.hamicore.caches import cache_dir
from hami_kubeletplugin.hamicore.host import Installed
from hami_kubeletplugin.hamicore.region import Region, region
from hami_kubeletplugin.hamicore.regions import RegionFiles, region_files

CLAIM_VARIABLE = "HAMI_DRA_CLAIM"
"""Names the claim (`namespace/name`) in the container, and lets a lost record be made anew from the spec."""

_READ_ONLY = ["ro", "nosuid", "nodev", "bind"]
_WRITABLE = ["rw", "nosuid", "nodev", "bind"]
_PRIVATE_CACHE = ["nosuid", "nodev", "mode=1777", "size=16m"]
_HOOK_ENVIRONMENT = ["PATH="]
"""Something, or runtimes hand their own environment down, or the container's (runc 1.1 with createContainer)."""
_HOOK_SECONDS = 10


def regions(prepared: Prepared, *, gpus: Mapping[str, Gpu], installed: Installed) -> dict[str, Region]:
    """The pristine regions that belong to a claim, by the name of their use; the limits are those of the spec's variables.

    Raises:
        ClaimError: A GPU is gone.
    """
    if installed.renewal is None:
        return {}
    layout = installed.renewal.layout
    return {
        name: region(
            layout,
            {limit.uuid: contract.Limit(limit.memory_mib, limit.cores) for limit in _numbered(use, gpus)},
            core_policy=use.core_policy,
            priority=use.priority,
        )
        for name, use in prepared.stored("region").items()
    }


def render(
    prepared: Prepared,
    *,
    gpus: Mapping[str, Gpu],
    edits: DriverEdits,
    installed: Installed,
    made: Mapping[str, Region],
    hami_dir: Path,
) -> Spec:
    """Render the spec of one claim.

    Args:
        prepared: The claim's plan.
        gpus: The node's GPUs by UUID.
        edits: The driver's own edits for each GPU of the claim.
        installed: HAMi-core's files on the host.
        made: The claim's regions, as `regions` made them.
        hami_dir: Where the cache directories are.

    Raises:
        ClaimError: A GPU is gone, or the driver's libcuda would not be in the container.
    """
    limited = any(not use.admin for use in prepared.uses)
    if limited and edits.no_libcuda is not None:
        raise ClaimError(
            f"{prepared.ref}: without libcuda and with HAMi-core's preload file every program of the container would die. "
            f"{edits.no_libcuda}"
        )
    files = {name: region_files(hami_dir, prepared.uid, name, region) for name, region in made.items()}
    devices: list[Device] = []
    hooked: set[int] = set()
    for share in prepared.shares:
        use = prepared.uses[share.use]
        own = _share_edits(share, use, prepared, gpus=gpus, edits=edits)
        if not use.admin:
            mounts = _mounts(prepared, share.use, installed, files, hami_dir)
            own["mounts"] = [*own.get("mounts", []), *mounts]
        # One run is enough, and whoever sees one share of a use sees all of them.
        if (paths := files.get(use_name(share.use))) and installed.renewal and share.use not in hooked:
            own["hooks"] = [*own.get("hooks", []), _renewal(prepared, paths, installed.renewal.hook)]
            hooked.add(share.use)
        devices.append({"name": prepared.cdi_device(share), "containerEdits": own})
    spec: Spec = {"cdiVersion": "", "kind": cdi_kind(prepared.driver), "devices": devices}
    if edits.common:
        spec["containerEdits"] = edits.common
    spec["cdiVersion"] = _minimum_version(spec)
    return spec


def _share_edits(
    share: PreparedShare, use: Use, prepared: Prepared, *, gpus: Mapping[str, Gpu], edits: DriverEdits
) -> ContainerEdits:
    """The driver's edits of one share, with our variables."""
    limits = _numbered(use, gpus)
    visible = ",".join(limit.uuid for limit in limits) if edits.visible == "uuids" else "void"
    result = edits.per_gpu[share.uuid].copy()
    env = [f"NVIDIA_VISIBLE_DEVICES={visible}", f"{CLAIM_VARIABLE}={prepared.ref.full_name}"]
    if not use.admin:
        ours = prepared.storage(use) == "region"
        variables = contract.variables(
            [contract.Limit(limit.memory_mib, limit.cores) for limit in limits],
            region=contract.CONTAINER_REGION if ours else f"{contract.CONTAINER_CACHE_DIR}/{contract.CACHE_FILE}",
            core_policy=use.core_policy,
            priority=use.priority,
            log_level=use.log_level,
        )
        env += [f"{name}={value}" for name, value in variables.items()]
    result["env"] = [*result.get("env", []), *env]
    return result


def _numbered(use: Use, gpus: Mapping[str, Gpu]) -> list[GpuLimit]:
    """The limits of a use in the order in which its containers number the GPUs."""
    return sorted(use.gpus, key=lambda limit: _gpu(gpus, limit.uuid).bus_order)


def _mounts(
    prepared: Prepared, index: int, installed: Installed, files: Mapping[str, RegionFiles], hami_dir: Path
) -> list[Mount]:
    def bind(host: Path, container: str, options: list[str]) -> Mount:
        return {"hostPath": str(host), "containerPath": container, "options": options}

    use, name = prepared.uses[index], use_name(index)
    storage = prepared.storage(use)
    mounts = [
        bind(installed.library, contract.CONTAINER_LIBRARY, _READ_ONLY),
        bind(installed.preload, contract.CONTAINER_PRELOAD, _READ_ONLY),
        bind(installed.lock_dir, contract.CONTAINER_LOCK_DIR, _WRITABLE),
    ]
    if storage == "tmpfs":
        mounts.append(
            {
                "hostPath": "tmpfs",
                "containerPath": contract.CONTAINER_CACHE_DIR,
                "type": "tmpfs",
                "options": _PRIVATE_CACHE,
            }
        )
    elif name in files:
        mounts.append(bind(files[name].target, contract.CONTAINER_REGION, _WRITABLE))
    elif storage == "directory" and use.owner == prepared.uid:
        mounts.append(bind(cache_dir(hami_dir, prepared.uid, name), contract.CONTAINER_CACHE_DIR, _WRITABLE))
    return mounts


def _renewal(prepared: Prepared, paths: RegionFiles, program: Path) -> Hook:
    """Run in the host's name space at each start, before the container's program; its failure fails the start."""
    arguments = ["--template", paths.template, "--region", paths.target, "--claim", prepared.ref.full_name]
    pods = [argument for pod in prepared.pods for argument in ("--pod", pod.uid)]
    return {
        "hookName": "createRuntime",
        "path": str(program),
        "args": [str(argument) for argument in (program, *arguments, *pods)],
        "env": _HOOK_ENVIRONMENT,
        "timeout": _HOOK_SECONDS,
    }


def _gpu(gpus: Mapping[str, Gpu], uuid: str) -> Gpu:
    if uuid not in gpus:
        raise ClaimError(f"GPU {uuid} is not on this node any more; delete the pod so that another is allocated")
    return gpus[uuid]


def _minimum_version(spec: Spec) -> str:
    """The rules of CDI's specs-go/version.go for the fields that can occur here; hooks need none, with or without time-out."""
    every = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    if any(edits.get("additionalGids") for edits in every):
        return "0.7.0"
    if any("hostPath" in node for edits in every for node in edits.get("deviceNodes", [])):
        return "0.5.0"
    if any("type" in mount for edits in every for mount in edits.get("mounts", [])):
        return "0.4.0"
    return "0.3.0"
