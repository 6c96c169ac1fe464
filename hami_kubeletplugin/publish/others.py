"""What others say of this node's GPUs, as conditions of them. Pure.

Contracts: Project-HAMi/HAMi pkg/device/nvidia/device.go (the cordon); k8s.io/dynamic-resource-allocation structured (of a pool
only the slices of the highest generation count, and those with a node selector or for all nodes are looked at for each node).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, What

DEVICE_PLUGIN: Final = "device-plugin"
"""Value of the condition that a device plugin gives out the GPUs."""
_MOST_CORDONED: Final = 1024
_UUIDS: Final = frozenset({"uuid", "parentuuid"})
"""Attributes, in small letters, in which drivers publish the UUID of a GPU, or of that which a device is a part of."""


@dataclass(frozen=True, slots=True)
class NodeSays:
    """What the Node object says.

    Attributes:
        cordoned: UUIDs, as somebody wrote them.
        plugins: Amounts by resource that device plugins offer.
    """

    cordoned: tuple[str, ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TheirSlice:
    """What counts of a ResourceSlice of somebody else's.

    Attributes:
        name: Its name.
        driver: Whose it is.
        generation: Of its pool.
        uuids: GPUs in it.
    """

    name: str
    driver: str
    generation: int
    uuids: frozenset[str] = frozenset()


def node_says(node: Mapping[str, Any], resources: Collection[str]) -> NodeSays:
    """What a Node says of its GPUs.

    Args:
        node: The object.
        resources: Those of device plugins that count.
    """
    listed = (node["metadata"].get("annotations") or {}).get(names.DEVICE_CORDON) or ""
    cordoned = (part.strip() for part in islice(listed.split(",", _MOST_CORDONED), _MOST_CORDONED))
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    plugins = ((name, str(allocatable[name])) for name in sorted(resources) if name in allocatable)
    return NodeSays(
        tuple(dict.fromkeys(filter(None, cordoned))), tuple((name, amount) for name, amount in plugins if amount != "0")
    )


def same_gpus(slice_: Mapping[str, Any]) -> TheirSlice | None:
    """A slice of another driver, if there are GPUs in it that say which."""
    found = frozenset(
        str(value["string"])
        for device in slice_["spec"].get("devices") or ()
        for name, value in (device.get("attributes") or {}).items()
        if name.rpartition("/")[2].lower() in _UUIDS and value.get("string")
    )
    return _their(slice_, found) if found else None


def same_pool(slice_: Mapping[str, Any], pool: str) -> TheirSlice | None:
    """A slice of our driver that is no node's, if it is in this pool."""
    return _their(slice_, frozenset()) if slice_["spec"]["pool"]["name"] == pool else None


def _their(slice_: Mapping[str, Any], uuids: frozenset[str]) -> TheirSlice:
    spec = slice_["spec"]
    return TheirSlice(slice_["metadata"]["name"], spec["driver"], spec["pool"].get("generation", 0), uuids)


def found(
    gpus: Collection[str], node: NodeSays, others: Iterable[TheirSlice], hiding: Iterable[TheirSlice]
) -> dict[str, list[Condition]]:
    """The conditions that all of it makes; none without GPUs.

    Args:
        gpus: UUIDs of those that we serve.
        node: What the Node says.
        others: Slices of other drivers on this node, in which GPUs are.
        hiding: Slices of our driver in this node's pool that are no node's.
    """
    if not gpus:
        return {}
    every = [_hidden(each) for each in sorted(hiding, key=lambda each: each.name)][:1]
    if node.plugins:
        every.append(_plugin(node.plugins))
    conditions = {EVERY: every} if every else {}
    for uuid in node.cordoned:
        if uuid in gpus:
            conditions.setdefault(uuid, []).append(_CORDONED)
    for other in sorted(others, key=lambda each: each.name):
        for uuid in sorted(other.uuids.intersection(gpus)):
            conditions.setdefault(uuid, []).append(_other_driver(other))
    return conditions


def unknown(gpus: Collection[str], node: NodeSays) -> tuple[str, ...]:
    """What is cordoned and no GPU of this node."""
    return tuple(uuid for uuid in node.cordoned if uuid not in gpus)


_CORDONED: Final = Condition(
    What.CORDONED,
    f"nothing new is put on it, since its UUID stands in the node's annotation {names.DEVICE_CORDON}; take it out there",
)


def _plugin(plugins: Iterable[tuple[str, str]]) -> Condition:
    offered = ", ".join(f"{name}: {amount}" for name, amount in plugins)
    return Condition(
        What.GIVEN_OUT_TWICE,
        f"a device plugin gives out the GPUs of this node, too (allocatable {offered}), and neither knows what the other gave "
        "away: keep either the device plugin or this driver off the node",
        DEVICE_PLUGIN,
    )


def _other_driver(other: TheirSlice) -> Condition:
    return Condition(
        What.GIVEN_OUT_TWICE,
        f"DRA driver {other.driver} gives out the same GPU (ResourceSlice {other.name}), and neither knows what the other gave "
        "away: keep either of them off the node",
        other.driver,
    )


def _hidden(other: TheirSlice) -> Condition:
    return Condition(
        What.HIDDEN,
        f"ResourceSlice {other.name} is in this node's pool, but is not the node's (generation {other.generation}): of a "
        "pool the scheduler heeds the highest generation alone, so that it may see no GPU of this node. Nothing of ours makes "
        f"such slices; find out who did, and delete it: kubectl delete resourceslice {other.name}",
        other.name,
    )
