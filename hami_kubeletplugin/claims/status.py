"""What `status.devices` of a claim says of its devices that are prepared. Pure.

Contract: KEP-4817; resource.k8s.io/v1 types.go, AllocatedDeviceStatus. Entries are told apart by driver, pool, device and
shareID, all of which have to be as in an allocation result; `Ready` is the only condition that the API names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare

Json = Mapping[str, Any]
_SINCE: Final = "lastTransitionTime"


def entries(claim: Prepared, since: str) -> list[Json]:
    """One for each device of the claim.

    Args:
        claim: The claim.
        since: RFC 3339: when it was prepared.
    """
    devices = claim.devices(names.cdi_kind(claim.driver))
    return [_entry(claim, share, device, since) for share, device in zip(claim.shares, devices, strict=True)]


def are_there(found: Json, wanted: Sequence[Json]) -> bool:
    """Whether a claim has these entries, whenever they were written."""
    there = [_timeless(entry) for entry in found.get("status", {}).get("devices") or []]
    return all(_timeless(entry) in there for entry in wanted)


def has_devices_of(found: Json, pool: str) -> bool:
    """Whether anything is said of devices of a pool. What is said of another node's is its own daemon's, under our name."""
    return any(entry.get("pool") == pool for entry in found.get("status", {}).get("devices") or [])


def _entry(claim: Prepared, share: PreparedShare, device: PreparedDevice, since: str) -> Json:
    limits = {"memoryMiB": share.limit.memory_mib, "cores": share.limit.cores}
    return {
        "driver": claim.driver,
        "pool": share.pool,
        "device": share.device,
        **({names.SHARE_ID: share.share_id} if share.share_id else {}),
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Prepared", "message": "prepared by the node", _SINCE: since}
        ],
        "data": {
            "uuid": share.uuid,
            **{name: value for name, value in limits.items() if value},
            "cdiDeviceIDs": list(device.cdi_ids),
        },
    }


def _timeless(entry: Json) -> Json:
    conditions = entry.get("conditions") or []
    return {**entry, "conditions": [{k: v for k, v in each.items() if k != _SINCE} for each in conditions]}
