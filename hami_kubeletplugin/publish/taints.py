"""Conditions of GPUs as taints of their devices. Pure.

Contract: KEP-5055, resource.k8s.io/v1 types.go DeviceTaint. At most 16 of a device and 64 devices of a slice where any has one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.taint_settings import Effect
from hami_kubeletplugin.gpu.conditions import Condition, Found, of
from hami_kubeletplugin.publish.devices import Device, uuid

_NOT_OF_LABELS: Final = re.compile(r"[^-A-Za-z0-9_.]")
_LONGEST_VALUE: Final = 63


def tainted(devices: Iterable[Device], found: Found, effects: Mapping[str, Effect]) -> list[Device]:
    """The devices, with a taint for each condition of their GPUs that is to have one.

    Args:
        devices: Without taints.
        found: The conditions.
        effects: By kind.
    """
    return [_tainted(device, of(found, uuid(device)), effects) for device in devices]


def allocatable(devices: Iterable[Device]) -> list[Device]:
    """For servers that know no taints: without them, and without devices on which nothing new may be put."""
    return [
        {field: value for field, value in device.items() if field != "taints"}
        for device in devices
        if not any(taint["effect"] in {"NoSchedule", "NoExecute"} for taint in device.get("taints", ()))
    ]


Times = Mapping[tuple[str, str, str, str], str]
"""When each taint was added, by device, key, value and effect."""


def times(devices: Iterable[Device]) -> Times:
    """When the taints of these devices were added; the first time, where they differ."""
    found: dict[tuple[str, str, str, str], str] = {}
    for device in devices:
        for taint in device.get("taints") or ():
            if added := taint.get("timeAdded"):
                found[_one(device, taint)] = min(added, found.get(_one(device, taint), added))
    return found


def timed(devices: Sequence[Device], since: Times) -> list[Device]:
    """The devices, with the times of those taints that go on. The API server sets those of others."""
    return [
        device
        | {
            "taints": [
                taint | {"timeAdded": since[_one(device, taint)]} if _one(device, taint) in since else taint
                for taint in device["taints"]
            ]
        }
        if device.get("taints")
        else device
        for device in devices
    ]


def _tainted(device: Device, conditions: Iterable[Condition], effects: Mapping[str, Effect]) -> Device:
    taints = [
        _taint(condition, effects[condition.what]) for condition in conditions if effects[condition.what] != "Off"
    ]
    return device | {"taints": taints} if taints else device


def _taint(condition: Condition, effect: Effect) -> dict[str, Any]:
    # A value that is no label value would have the API server refuse the whole slice.
    value = _NOT_OF_LABELS.sub("-", condition.value)[:_LONGEST_VALUE].strip("-_.")
    return {"key": f"{names.TAINT}{condition.what}", **({"value": value} if value else {}), "effect": effect}


def _one(device: Device, taint: Mapping[str, str]) -> tuple[str, str, str, str]:
    return device["name"], taint["key"], taint.get("value", ""), taint["effect"]
