"""HAMi's rules in a second, independent reading, and what a converted pod asks of DRA.

`asked()` and `admitted()` say what HAMi does (pkg/device/nvidia/device.go, pkg/device/devices.go); `granted()` and `stripped()`
read pods and claims. Nothing here calls the code that it is held against.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import ALIAS, CORES, GPU, MEMORY, OURS, PERCENT, Json

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class Asked:
    """What one container gets of each of its GPUs.

    Attributes:
        gpus: How many different ones.
        mib: For a GPU of so many MiB (key) so many MiB; for key 0, whatever the GPU has; None is all of it.
        cores: Percent.
        alone: Nobody else is on them.
        least: MiB that each GPU has to have, where all of it is given.
    """

    gpus: int
    mib: tuple[tuple[int, int | None], ...]
    cores: int
    alone: bool
    least: int = 0


def larger(all_of: Sequence[Asked]) -> Asked:
    """What there is room for each of these in, one after the other."""
    amounts = [dict(each.mib) for each in all_of]
    fixed = max(each.get(0) or 0 for each in amounts)
    mib: dict[int, int | None] = {0: fixed}
    if whole_gpu := any(each.get(0, 0) is None for each in amounts):
        mib = {0: None}
    elif sizes := {size for each in amounts for size in each if size}:
        sized = {size: max(fixed, *(each.get(size) or 0 for each in amounts)) for size in sizes}
        mib = {size: amount for size, amount in sized.items() if size >= fixed} or {**sized}
    return Asked(
        max(each.gpus for each in all_of),
        tuple(sorted(mib.items())),
        max(each.cores for each in all_of),
        any(each.alone for each in all_of),
        fixed if whole_gpu else 0,
    )


def whole(value: Any) -> int:
    """A quantity of the strategies below as a number."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([A-Za-z]*)", str(value))
    assert found, value
    number = Decimal(found[1]) * _UNITS[found[2]]
    assert number == int(number), value
    return int(number)


def asked(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> Asked | None:
    """HAMi's webhook and scheduler, read line by line: MutateAdmission, then GenerateResourceRequests, then Fit."""
    resources = one.get("resources") or {}

    def value(*names: str) -> int | None:
        for kind in ("limits", "requests"):
            for name in names:
                if name in (resources.get(kind) or {}):
                    return whole(resources[kind][name])
        return None

    nums, percent, cores = value(GPU), value(PERCENT), value(CORES)
    memory = value(MEMORY, ALIAS)
    # MutateAdmission: the number of GPUs that something else implies.
    if nums is None and (memory is not None or percent is not None or cores is not None):
        nums = rules.default_gpu_num
    if not nums:
        return None
    # defaultExclusiveCoreIfNeeded: a literal 0 is there, too.
    if cores is None:
        if percent is not None:
            cores = 100 if percent == 100 else None
        elif memory is None:
            cores = 100
    # GenerateResourceRequests: 101 stands for "no percentage", and so does 0.
    memreq = 0 if memory is None else memory * rules.memory_factor
    mempercent = percent or 101
    if mempercent == 101 and memreq == 0:
        if rules.default_memory:
            memreq = rules.default_memory
        else:
            mempercent = 100
    coresreq = rules.default_cores if cores is None else cores
    # Fit: memory first; over 100 cores are 100, and 100 cores are a GPU that nobody else uses.
    coresreq = min(coresreq, 100)
    mib: dict[int, int | None]
    if memreq > 0:
        mib = {0: memreq}
    elif mempercent == 100:
        mib = {0: None}
    else:
        # Ours: never 0 MiB, which HAMi-core takes for no limit.
        mib = {size: size * mempercent // 100 or 1 for _, size in sizes}
    return Asked(nums, tuple(sorted(mib.items())), coresreq, coresreq == 100)


def admitted(model: str, use: str, nouse: str) -> bool:
    """CheckType: comma lists of parts of a model's name, in whatever case; blank is no constraint."""
    card = (model if model.startswith("NVIDIA") else "NVIDIA-" + model).upper()

    def match(listed: str) -> bool:
        parts = [part.strip() for part in listed.split(",")]
        return any(part != "" and part.upper() in card for part in parts)

    if use.strip() and not match(use):
        return False
    return not (nouse.strip() and match(nouse))


def granted(converted: Json, templates: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Asked]]:
    """By container, what it gets through the claims that it names and that come from `templates` (name to ClaimSpec)."""
    of_claim = {
        entry["name"]: templates[entry["resourceClaimTemplateName"]]
        for entry in converted["spec"].get("resourceClaims") or ()
        if entry.get("resourceClaimTemplateName") in templates
    }
    return {
        one["name"]: [
            _read(of_claim[entry["name"]])
            for entry in one.get("resources", {}).get("claims") or ()
            if entry["name"] in of_claim
        ]
        for _, one in containers(converted)
    }


def _read(spec: Mapping[str, Any]) -> Asked:
    requests = spec["devices"]["requests"]
    constraints = spec["devices"].get("constraints", [])
    apart = [next(iter(c.values())) for c in constraints if "distinctAttribute" in c]
    assert bool(apart) == (len(requests) > 1), "GPUs of one request are always different"
    devices = [{0: r["exactly"]} if "exactly" in r else {_of(a): a for a in r["firstAvailable"]} for r in requests]
    assert all(device == devices[0] for device in devices), "the GPUs of a container are alike"
    capacities = {size: one["capacity"]["requests"] for size, one in devices[0].items()}
    counts = {one["count"] for one in devices[0].values()}
    assert all(one["allocationMode"] == "ExactCount" for one in devices[0].values())
    assert len(counts) == 1
    assert 1 in (len(requests), *counts)
    some = next(iter(capacities.values()))
    assert all((c["cores"], c["shares"]) == (some["cores"], some["shares"]) for c in capacities.values())
    mib = {size: whole(c["memory"]) // 2**20 if "memory" in c else None for size, c in capacities.items()}
    return Asked(
        len(requests) * counts.pop(),
        tuple(sorted(mib.items())),
        whole(some["cores"]),
        whole(some["shares"]) == 10_000,
        max((_at_least(device) for device in devices[0].values()), default=0),
    )


def _at_least(device: Mapping[str, Any]) -> int:
    texts = [selector["cel"]["expression"] for selector in device.get("selectors", [])]
    return max((int(found[1]) for text in texts if (found := re.search(r'"(\d+)Mi"\)\) >= 0$', text))), default=0)


def _of(alternative: Mapping[str, Any]) -> int:
    found = re.search(r'quantity\("(\d+)Mi"\)', alternative["selectors"][-1]["cel"]["expression"])
    assert found
    return int(found[1])


def containers(one: Json) -> Iterator[tuple[str, Json]]:
    """Each with the list that it is in."""
    for kind in ("initContainers", "containers"):
        for entry in one["spec"].get(kind) or ():
            yield kind, entry


def stripped(one: Json, templates: Sequence[str] = ()) -> Json:
    """A pod without all that is ours: the resources, the claims from `templates`, and empty objects that held them."""
    rest = copy.deepcopy(one)
    spec = rest["spec"]
    claims = spec.pop("resourceClaims", None) or []
    gone = {entry["name"] for entry in claims if entry.get("resourceClaimTemplateName") in templates}
    if others := [entry for entry in claims if entry["name"] not in gone]:
        spec["resourceClaims"] = others
    for _, entry in containers(rest):
        resources = entry.pop("resources", None) or {}
        for kind in ("limits", "requests"):
            resources[kind] = {k: v for k, v in (resources.get(kind) or {}).items() if k not in OURS}
        resources["claims"] = [used for used in resources.get("claims") or [] if used["name"] not in gone]
        if kept := {key: value for key, value in resources.items() if value}:
            entry["resources"] = kept
    return rest
