"""What is used, as tables for people and JSON for programs. Pure.

The JSON of a pool is that of KEP-5677's PoolStatus (resource.k8s.io/v1alpha3, 1.37), with `devices` of the same words besides.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from hami_kubeletplugin.api import names
from hami_kubeletplugin.kubectl.capacity import Amount, Amounts, canonical, shown
from hami_kubeletplugin.kubectl.inventory import Gpu, Inventory, Tenant
from hami_kubeletplugin.kubectl.pools import Pool
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.taints import KEEPS_AWAY
from hami_kubeletplugin.program import table

By = Literal["node", "gpu", "namespace"]

_SHOWN: Final = (names.MEMORY, names.CORES, names.SHARES)
_NAME: Final = 63
_HEADS: Final = [word for name in _SHOWN for word in (f"{name.upper()} TOTAL", "CONSUMED", "AVAILABLE")]


def tables(found: Inventory, by: By, *, wide: bool) -> str:
    """One table.

    Args:
        found: The cluster.
        by: What a line is.
        wide: With more columns.
    """
    made: dict[By, Callable[[], str]] = {
        "node": lambda: _nodes(found, wide=wide),
        "gpu": lambda: _gpus(found, wide=wide),
        "namespace": lambda: _namespaces(found),
    }
    return made[by]()


def notes(found: Inventory) -> list[str]:
    """What a table can't say."""
    lost = [
        f"{printable('/'.join(device), 317)} (of {', '.join(printable('/'.join(claim), 130) for claim in claims[:3])})"
        for device, claims in found.lost.items()
    ]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    told = [f"claims have GPUs that are not published now: {', '.join(lost[:3])}{more}"] if lost else []
    return told if found.pools else [f"no node publishes GPUs as driver {printable(found.driver, _NAME)}", *told]


def as_json(found: Inventory) -> dict[str, Any]:
    """All of it."""
    return {
        "driver": found.driver,
        "shareableSummary": _summary([gpu for pool, gpus in found.pools if not pool.trouble for gpu in gpus]),
        "pools": [_pool(pool, gpus) for pool, gpus in found.pools],
        "namespaces": [_tenant(name, tenant) for name, tenant in found.tenants.items()],
        "notPublished": [
            {"poolName": pool, "name": device, "claims": _claims(claims)}
            for (pool, device), claims in found.lost.items()
        ],
    }


def _nodes(found: Inventory, *, wide: bool) -> str:
    rows = [["NODE", "GPUS", "IN USE", *_HEADS, "STATE", *(["POOL", "GENERATION"] if wide else [])]]
    for pool, gpus in found.pools:
        more = [printable(pool.name, 253), str(pool.generation)] if wide else []
        # As KEP-5677 has it, nothing is counted of what the scheduler doesn't give out.
        counted = ["-"] * (2 + len(_HEADS)) if pool.trouble else [*_counts(gpus), *_amounts(gpus)]
        rows.append([_node(pool), *counted, pool.trouble or _state(gpus), *more])
    usable = [gpu for pool, gpus in found.pools if not pool.trouble for gpu in gpus]
    rows.append(["all", *_counts(usable), *_amounts(usable), _state(usable), *(["", ""] if wide else [])])
    return table(rows)


def _gpus(found: Inventory, *, wide: bool) -> str:
    rows = [["NODE", "GPU", "CLAIMS", *_HEADS, "STATE", *(["MODEL", "UUID", "CLAIMED BY"] if wide else [])]]
    for pool, gpus in found.pools:
        for gpu in gpus:
            claims = ", ".join(printable("/".join(claim), 130) for claim in dict.fromkeys(gpu.claims)) or "-"
            model, uuid = printable(gpu.text(names.PRODUCT_NAME), _NAME) or "-", printable(gpu.uuid, _NAME) or "-"
            state = [pool.trouble] if pool.trouble else [str(taint) for taint in gpu.taints]
            rows.append(
                [
                    _node(pool),
                    printable(gpu.name, _NAME),
                    str(len(gpu.claims)),
                    *_amounts([gpu]),
                    ", ".join(state) or "-",
                    *([model, uuid, claims] if wide else []),
                ]
            )
    return table(rows)


def _namespaces(found: Inventory) -> str:
    rows = [["NAMESPACE", "CLAIMS", "GPUS", *(f"{name.upper()} CONSUMED" for name in _SHOWN)]]
    for name, tenant in found.tenants.items():
        amounts = [shown(each, tenant.consumed.get(each, 0)) for each in _SHOWN]
        rows.append([printable(name, _NAME), str(tenant.claims), str(tenant.devices), *amounts])
    return table(rows)


def _node(pool: Pool) -> str:
    return printable(pool.node, 253) or f"({printable(pool.name, 253)})"


def _counts(gpus: Sequence[Gpu]) -> list[str]:
    return [str(len(gpus)), str(sum(1 for gpu in gpus if gpu.claims))]


def _amounts(gpus: Sequence[Gpu]) -> Iterable[str]:
    for name in _SHOWN:
        total, consumed, available = _sums(gpus, name)
        yield from (shown(name, total), shown(name, consumed), shown(name, available))


def _state(gpus: Sequence[Gpu]) -> str:
    tainted = sum(1 for gpu in gpus if _kept_away(gpu))
    return f"{tainted} tainted" if tainted else "-"


def _kept_away(gpu: Gpu) -> bool:
    return any(taint.effect in KEEPS_AWAY for taint in gpu.taints)


def _sums(gpus: Iterable[Gpu], name: str) -> tuple[Amount, Amount, Amount]:
    having = [gpu for gpu in gpus if name in gpu.capacity]
    total = sum((gpu.capacity[name].total for gpu in having), 0)
    consumed = sum((gpu.consumed.get(name, 0) for gpu in having), 0)
    return total, consumed, max(total - consumed, 0)


def _pool(pool: Pool, gpus: Sequence[Gpu]) -> dict[str, Any]:
    about: dict[str, Any] = {"driver": pool.driver, "poolName": pool.name, "generation": pool.generation}
    if pool.node:
        about["nodeName"] = pool.node
    if pool.trouble:
        return about | {"validationError": pool.trouble, "devices": [_device(gpu) for gpu in gpus]}
    allocated, unavailable = sum(1 for gpu in gpus if gpu.claims), sum(1 for gpu in gpus if _kept_away(gpu))
    return about | {
        "resourceSliceCount": len(pool.slices),
        "totalDevices": len(gpus),
        "allocatedDevices": allocated,
        "availableDevices": max(0, len(gpus) - allocated - unavailable),
        "unavailableDevices": unavailable,
        "shareableSummary": _summary(gpus),
        "devices": [_device(gpu) for gpu in gpus],
    }


def _summary(gpus: Sequence[Gpu]) -> dict[str, Any]:
    shareable = [gpu for gpu in gpus if gpu.shareable]
    partly = sum(1 for gpu in shareable if gpu.claims)
    return {
        "fullyAvailableDevices": len(shareable) - partly,
        "partiallyAvailableDevices": partly,
        "capacity": [
            _capacity(name, *_sums(shareable, name))
            for name in sorted({name for gpu in shareable for name in gpu.capacity})
        ],
    }


def _device(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        names.PRODUCT_NAME: gpu.text(names.PRODUCT_NAME),
        "capacity": [_capacity(name, *_sums([gpu], name)) for name in sorted(gpu.capacity)],
        "taints": [taint._asdict() for taint in gpu.taints],
        "claims": _claims(gpu.claims),
    }


def _capacity(name: str, total: Amount, consumed: Amount, available: Amount) -> dict[str, str]:
    amounts = {"total": total, "consumed": consumed, "available": available}
    return {"name": name, **{word: canonical(name, value) for word, value in amounts.items()}}


def _tenant(name: str, tenant: Tenant) -> dict[str, Any]:
    return {"namespace": name, "claims": tenant.claims, "devices": tenant.devices, "consumed": written(tenant.consumed)}


def written(amounts: Amounts) -> dict[str, str]:
    """Amounts as the API server writes them, by name."""
    return {name: canonical(name, value) for name, value in sorted(amounts.items())}


def _claims(claims: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"namespace": namespace, "name": name} for namespace, name in dict.fromkeys(claims)]
