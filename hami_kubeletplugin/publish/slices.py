"""A pool of ResourceSlices: how devices are split over slices, and what to write so that the API server has them. Pure.

Contract: resource.k8s.io/v1 types.go (limits), k8s.io/dynamic-resource-allocation resourceslice/resourceslicecontroller.go
(names, generations, order of writes).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.publish.devices import Device
from hami_kubeletplugin.publish.taints import timed, times

Slice = dict[str, Any]
"""A ResourceSlice in its v1 JSON form."""

_INDEX: Final = re.compile(r"([0-9a-f]{5,})-")
DEVICES_PER_SLICE: Final = 128
TAINTED_PER_SLICE: Final = 64
"""Devices of a slice in which any has a taint. One that appears must not make a slice invalid, so where there may be taints no
slice is ever larger."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Whose slices these are.

    Attributes:
        driver: The driver's name.
        node: The node; also the pool's name.
        owner: The Node's UID, so that the slices go when the node does.
    """

    driver: str
    node: str
    owner: str

    @property
    def owner_references(self) -> list[dict[str, Any]]:
        """One, to the node."""
        return [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.owner, "controller": True}]


@dataclass(frozen=True, slots=True)
class Write:
    """One request to make."""

    verb: Literal["delete", "update", "create"]
    slice: Slice


def split(devices: Sequence[Device], most: int = TAINTED_PER_SLICE) -> list[list[Device]]:
    """Devices per slice, `most` of them. No devices give one empty slice: the pool is known and empty, not unknown."""
    return [list(devices[i : i + most]) for i in range(0, len(devices), most)] or [[]]


def reconcile(pool: Pool, desired: Sequence[Sequence[Device]], observed: Iterable[Slice]) -> list[Write]:
    """The writes that turn what is there into what should be there, in order; none if it is there already.

    A generation is kept while at most one slice has to be rewritten in place. Otherwise all slices get the next one, so that
    the scheduler never combines old slices with new ones. A taint that goes on keeps its `timeAdded`, from which tolerations
    count; a difference in that alone is none.

    Args:
        pool: Whose they are.
        desired: Devices per slice, as `split` makes them; none withdraws the pool.
        observed: All slices of the driver on the node, in any order.
    """
    there = sorted(observed, key=lambda s: s["metadata"]["name"])
    ours = [s for s in there if s["spec"]["pool"]["name"] == pool.node]
    generation = max((s["spec"]["pool"]["generation"] for s in ours), default=0)
    since = times(device for s in ours for device in s["spec"].get("devices") or ())
    desired = [timed(devices, since) for devices in desired]
    wanted = [_spec(pool, generation, len(desired), devices) for devices in desired]
    kept, right = _keep(pool, wanted, [s for s in ours if s["spec"]["pool"]["generation"] == generation])
    names = {s["metadata"]["name"] for s in kept.values()}
    writes = [Write("delete", s) for s in there if s["metadata"]["name"] not in names]
    changed = [i for i in kept if i not in right]
    if len(kept) < len(desired) or len(changed) > 1:
        wanted = [_spec(pool, generation + 1, len(desired), devices) for devices in desired]
        changed = list(kept)
    writes += [Write("update", _rewritten(pool, kept[i], wanted[i])) for i in sorted(changed)]
    writes += [Write("create", _new(pool, i, spec)) for i, spec in enumerate(wanted) if i not in kept]
    return writes


def _keep(
    pool: Pool, wanted: Sequence[Mapping[str, Any]], current: Iterable[Slice]
) -> tuple[dict[int, Slice], set[int]]:
    """The slice that stays for each index, and the indices where it is right already."""
    kept: dict[int, Slice] = {}
    right: set[int] = set()
    for candidate in current:
        index = _index(candidate, len(wanted))
        if index is None:
            continue
        if _right(pool, candidate, wanted[index]):
            right.add(index)
            kept[index] = candidate  # of duplicates, one that needs no write
        else:
            kept.setdefault(index, candidate)
    return kept, right


def differences(sent: Sequence[Device], stored: Sequence[Device]) -> list[str]:
    """What the API server dropped or changed, as paths in a device; each once, without the device's number."""
    found: dict[str, None] = {}
    if len(sent) != len(stored):
        found["devices"] = None
    for ours, theirs in zip(sent, stored, strict=False):
        _compare(_canonical(ours), _canonical(theirs), "", found)
    return list(found)


def _compare(ours: object, theirs: object, path: str, found: dict[str, None]) -> None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            _compare(ours.get(key), theirs.get(key), f"{path}.{key}".lstrip("."), found)
    elif ours != theirs:
        found[path] = None


def _index(slice_: Slice, count: int) -> int | None:
    # Slices of older versions have no index in their name; they are replaced, as the scheduler sorts by name.
    found = _INDEX.match(slice_["metadata"]["name"])
    index = int(found[1], 16) if found else count
    return index if index < count else None


def _spec(pool: Pool, generation: int, count: int, devices: Sequence[Device]) -> dict[str, Any]:
    return {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.node, "generation": generation, "resourceSliceCount": count},
        "devices": list(devices),
    }


def _right(pool: Pool, slice_: Slice, spec: Mapping[str, Any]) -> bool:
    owners = slice_["metadata"].get("ownerReferences")
    return bool(_canonical(slice_["spec"]) == _canonical(spec) and owners == pool.owner_references)


def _rewritten(pool: Pool, slice_: Slice, spec: Mapping[str, Any]) -> Slice:
    metadata = {k: v for k, v in slice_["metadata"].items() if k != "managedFields"}
    return {"metadata": metadata | {"ownerReferences": pool.owner_references}, "spec": dict(spec)}


def _new(pool: Pool, index: int, spec: Mapping[str, Any]) -> Slice:
    name = f"{index:05x}-{pool.driver}-{pool.node}-"
    return {"metadata": {"generateName": name, "ownerReferences": pool.owner_references}, "spec": dict(spec)}


def _canonical(value: object, *, quantities: bool = False) -> object:
    """A form in which what means the same is equal: no empty fields, capacities as numbers, no times of taints."""
    if isinstance(value, Mapping):
        fields = {
            k: _canonical(v, quantities=quantities or k == "capacity") for k, v in value.items() if k != "timeAdded"
        }
        return {k: v for k, v in fields.items() if v not in (None, [], {})}
    if isinstance(value, list):
        return [_canonical(item, quantities=quantities) for item in value]
    return quantity.parse(value) if quantities and isinstance(value, str) else value
