"""From a prepared claim to its CDI spec. Pure: the same record and the same hardware give the same bytes.

CDI: https://github.com/cncf-tags/container-device-interface SPEC.md. The lowest version that the content needs is written,
since runtimes refuse versions they do not know.
"""

from collections.abc import Callable, Mapping

from hami_kubeletplugin.api.cdi import ContainerEdits, Device, Mount, Spec
from hami_kubeletplugin.api.names import CLAIM, NVIDIA_VISIBLE_DEVICES, cdi_kind
from hami_kubeletplugin.claims.numbering import numbered
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu


def render(
    prepared: Prepared,
    *,
    gpus: Mapping[str, Gpu],
    edits: DriverEdits,
    enforced: Callable[[PreparedShare], ContainerEdits],
    metadata: Callable[[PreparedShare], list[Mount]] = lambda _: [],
) -> Spec:
    """Render the spec of one claim.

    Args:
        prepared: The claim's plan.
        gpus: The node's GPUs by UUID.
        edits: The driver's own edits for each GPU of the claim.
        enforced: What a share brings along so that its limits are kept.
        metadata: The mounts by which it says what it is.

    Raises:
        ClaimError: A GPU is gone.
    """
    devices: list[Device] = []
    for share in prepared.shares:
        own = _share_edits(share, prepared, gpus=gpus, edits=edits, ours=enforced(share), metadata=metadata(share))
        devices.append({"name": prepared.cdi_device(share), "containerEdits": own})
    spec: Spec = {"cdiVersion": "", "kind": cdi_kind(prepared.driver), "devices": devices}
    if edits.common:
        spec["containerEdits"] = edits.common
    spec["cdiVersion"] = _minimum_version(spec)
    return spec


def _share_edits(
    share: PreparedShare,
    prepared: Prepared,
    *,
    gpus: Mapping[str, Gpu],
    edits: DriverEdits,
    ours: ContainerEdits,
    metadata: list[Mount],
) -> ContainerEdits:
    """The driver's edits of one share, with our variables and what enforces its limits."""
    visible = ",".join(numbered(prepared.uses[share.use], gpus)) if edits.visible == "uuids" else "void"
    result = edits.per_gpu[share.uuid].copy()
    env = [f"{NVIDIA_VISIBLE_DEVICES}={visible}", f"{CLAIM}={prepared.ref.full_name}"]
    result["env"] = [*result.get("env", []), *env, *ours.get("env", [])]
    if mounts := [*ours.get("mounts", []), *metadata]:
        result["mounts"] = [*result.get("mounts", []), *mounts]
    if hooks := ours.get("hooks"):
        result["hooks"] = [*result.get("hooks", []), *hooks]
    return result


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
