"""What the API server refuses in a ResourceSlice (v1 form), as far as a GPU driver can get it wrong.

Contract: kubernetes pkg/apis/resource/validation/validation.go of 1.37.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from http import HTTPStatus
from typing import Any, Final

from hami_kubeletplugin.fake.api_kinds import Object
from hami_kubeletplugin.fake.api_store import Refusal
from hami_kubeletplugin.kube import quantity

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z_][A-Za-z0-9_]{0,31}"
)
_SEMVER: Final = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LABEL_KEY: Final = re.compile(r"([-a-z0-9.]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_IMMUTABLE: Final = ("driver", "nodeName", "pool.name")


def check_slice(slice_: Object, old: Object | None) -> None:
    """Check a slice that is created (`old` is None) or updated.

    Raises:
        Refusal: 422 with every reason.
    """
    problems = list(_problems(slice_.get("spec") or {}, old["spec"] if old else None))
    if problems:
        name = slice_.get("metadata", {}).get("name", "")
        message = f'ResourceSlice.resource.k8s.io "{name}" is invalid: {"; ".join(problems)}'
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message)


def add_times(slice_: Object) -> None:
    """Give taints without a time the present one (pkg/apis/resource/v1/defaults.go, SetDefaults_DeviceTaint)."""
    for device in slice_["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _problems(spec: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[str]:
    pool = spec.get("pool") or {}
    for field in _IMMUTABLE:
        if not _at(spec, field):
            yield f"spec.{field}: Required value"
        elif old is not None and _at(spec, field) != _at(old, field):
            yield f"spec.{field}: Invalid value: field is immutable"
    if pool.get("resourceSliceCount", 0) < 1 or pool.get("generation", 0) < 0:
        yield "spec.pool: resourceSliceCount must be at least 1, generation not negative"
    devices = spec.get("devices") or []
    limit = 64 if any(device.get("taints") for device in devices) else 128
    if len(devices) > limit:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {limit} items"
    names = [device["name"] for device in devices]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"spec.devices: Duplicate value: {name}"
    for index, device in enumerate(devices):
        for problem in _device_problems(device):
            yield f"spec.devices[{index}].{problem}"


def _at(spec: Mapping[str, Any], path: str) -> object:
    value: Any = spec
    for part in path.split("."):
        value = (value or {}).get(part)
    return value


def _device_problems(device: Mapping[str, Any]) -> Iterator[str]:
    if not _LABEL.fullmatch(device["name"]):
        yield f"name: Invalid value: {device['name']!r}"
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    yield from _taint_problems(device.get("taints") or ())
    if len(attributes) + len(capacity) > 32:
        yield "attributes: Too many"
    for name, attribute in attributes.items():
        if not _NAME.fullmatch(name) or len(attribute) != 1 or not _allowed(attribute):
            yield f"attributes[{name}]: Invalid value: {attribute}"
    for name, entry in capacity.items():
        if "requestPolicy" in entry and not device.get("allowMultipleAllocations"):
            yield f"capacity[{name}].requestPolicy: Forbidden: allowMultipleAllocations must be true"
        for problem in _policy_problems(quantity.parse(entry["value"]), entry.get("requestPolicy", {})):
            yield f"capacity[{name}].requestPolicy.{problem}"


def _taint_problems(taints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(taints) > 16:
        yield "taints: Too many"
    for taint in taints:
        valid = _LABEL_KEY.fullmatch(taint["key"]) and _LABEL_VALUE.fullmatch(taint.get("value", ""))
        if not valid or taint["effect"] not in {"None", "NoSchedule", "NoExecute"}:
            yield f"taints: Invalid value: {taint}"


def _allowed(attribute: Mapping[str, Any]) -> bool:
    match attribute:
        case {"int": int()} | {"bool": bool()}:
            return True
        case {"string": str() as text}:
            return len(text.encode()) <= 64
        case {"version": str() as text}:
            return len(text) <= 64 and _SEMVER.fullmatch(text) is not None
    return False


def _policy_problems(value: Fraction, policy: Mapping[str, Any]) -> Iterator[str]:
    valid, bounds = [quantity.parse(v) for v in policy.get("validValues", [])], policy.get("validRange")
    default = quantity.parse(policy["default"]) if "default" in policy else None
    if (valid or bounds) and default is None:
        yield "default: Required value"
    if valid and (valid != sorted(set(valid)) or len(valid) > 10 or valid[-1] > value or default not in valid):
        yield f"validValues: Invalid value: {policy['validValues']}"
    if bounds:
        low, step = quantity.parse(bounds["min"]), quantity.parse(bounds.get("step", "0"))
        high = quantity.parse(bounds.get("max", str(value)))
        on_grid = all(not step or (v - low) % step == 0 for v in [default, *([high] if "max" in bounds else [])] if v)
        if default is None or not low <= default <= high <= value or low + step > value or not on_grid:
            yield f"validRange: Invalid value: {bounds}"
