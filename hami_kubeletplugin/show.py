"""Tables for people: what would be published, and what is prepared. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.claims import record_schema
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.gpu.conditions import Condition, Found, of
from hami_kubeletplugin.hamicore.storage import Storage, storage
from hami_kubeletplugin.inforce.running import Loaded
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.program import table

Running = Mapping[tuple[str, str, int], Loaded]
"""By namespace, name and index of use."""

_KEPT: Final[Mapping[Storage, str]] = {"region": "region", "directory": "variables", "tmpfs": "variables", "none": "-"}
"""In variables only: a process without its environment is not limited."""


def devices_table(devices: Iterable[Mapping[str, Any]], conditions: Found | None = None) -> str:
    """Devices in ResourceSlice form as a table.

    Args:
        devices: The devices.
        conditions: What is to be said of their GPUs; None: it is not known.
    """
    rows = [["NAME", "UUID", "MODEL", "MEMORY", "CORES", "SHARERS", "PCIE ROOT", "NUMA", "CONDITION"]]
    for device in devices:
        attributes, capacity = device["attributes"], device["capacity"]
        shares = capacity[names.SHARES]
        sharers = quantity.parse(shares["value"]) / quantity.parse(shares["requestPolicy"]["default"])
        rows.append(
            [
                device["name"],
                attributes[names.UUID]["string"],
                attributes[names.PRODUCT_NAME]["string"],
                f"{int(quantity.parse(capacity[names.MEMORY]['value']) / names.MIB)}Mi",
                capacity[names.CORES]["value"],
                str(int(sharers)),
                attributes.get(names.PCIE_ROOT, {}).get("string", "-"),
                str(attributes.get(names.NUMA_NODE, {}).get("int", "-")),
                "?" if conditions is None else _conditions(of(conditions, attributes[names.UUID]["string"])),
            ]
        )
    return table(rows)


def claims_table(claims: Iterable[Prepared], running: Running | None = None) -> str:
    """Prepared claims as a table, a line for each share.

    Args:
        claims: The claims.
        running: What is known of their containers' processes.
    """
    rows = [["CLAIM", "REQUEST", "DEVICE", "MEMORY", "CORES", "LIMIT IN", "LOADED BY", "CONTAINERS"]]
    for claim in claims:
        for share in claim.shares:
            use = claim.uses[share.use]
            rows.append(
                [
                    claim.ref.full_name,
                    f"{share.request}/{share.subrequest}" if share.subrequest else share.request,
                    share.device,
                    "unlimited" if use.admin else f"{share.limit.memory_mib}Mi",
                    "unlimited" if use.admin or not share.limit.cores else f"{share.limit.cores}%",
                    "whole GPU" if use.is_whole else _KEPT[storage(claim, use)],
                    _loaded((running or {}).get((claim.ref.namespace, claim.ref.name, share.use))),
                    ", ".join(use.containers) or "-",
                ]
            )
    return table(rows)


def claims_json(claims: Iterable[Prepared], running: Running | None = None) -> str:
    """Prepared claims as JSON; each use has its `processes`, and how many of them have `loaded` HAMi-core, null if unknown."""
    found = []
    for claim in claims:
        dumped = record_schema.dump(claim)
        for index, use in enumerate(dumped["uses"]):
            seen = (running or {}).get((claim.ref.namespace, claim.ref.name, index))
            use |= {"processes": seen.processes if seen else None, "loaded": seen.loaded if seen else None}
        found.append(dumped)
    return json.dumps(found, indent=2)


def _conditions(found: Iterable[Condition]) -> str:
    return ", ".join(f"{each.what}={each.value}" if each.value else str(each.what) for each in found) or "-"


def _loaded(seen: Loaded | None) -> str:
    """How many processes have HAMi-core. Without one of them there is no limit."""
    return f"{seen.loaded or 'NONE'} of {seen.processes}" if seen else "-"
