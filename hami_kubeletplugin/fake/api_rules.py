"""What the fake API server checks and changes in objects on their way in (v1 form).

Contract: kubernetes pkg/registry (strategies: what may change) and pkg/apis/*/validation, as far as this program can get it
wrong; plugin/pkg/admission/namespace/lifecycle.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from hami_kubeletplugin.fake.api_kinds import RESOURCES, Object
from hami_kubeletplugin.fake.api_slices import add_times, check_slice
from hami_kubeletplugin.fake.api_store import Key, Refusal, Store


def admit(resource: str, obj: Object, old: Object | None, gates_off: frozenset[str]) -> Object:
    """An object as it gets stored, created (`old` is None) or updated.

    Raises:
        Refusal: 400 or 422.
    """
    match resource:
        case "resourceslices":
            obj = without_gates(obj, old, gates_off)
            check_slice(obj, old)
            add_times(obj)
        case "resourceclaimtemplates":
            if old is not None and obj.get("spec") != old.get("spec"):
                raise _invalid(resource, obj, "spec: Invalid value: field is immutable")
        case "leases":
            # Of the kinds here the only one that allows no update without it (AllowUnconditionalUpdate).
            if old is not None and not obj.get("metadata", {}).get("resourceVersion"):
                raise _invalid(
                    resource, obj, "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
                )
        case "secrets":
            obj = _secret(obj)
        case "mutatingwebhookconfigurations" | "validatingwebhookconfigurations":
            for webhook in obj.get("webhooks") or ():
                _decoded(resource, webhook.get("clientConfig", {}).get("caBundle", ""))
    return obj


def check_namespace(store: Store, key: Key) -> None:
    """Refuse what is created in a namespace that is going or isn't there; without any namespace object, all are there.

    Raises:
        Refusal: 403 or 404.
    """
    namespaces = {item["metadata"]["name"]: item for item in store.all("namespaces")}
    if not key.namespace or not namespaces:
        return
    if key.namespace not in namespaces:
        message = f'namespaces "{key.namespace}" not found'
        raise Refusal(HTTPStatus.NOT_FOUND, "NotFound", message, {"name": key.namespace, "kind": "namespaces"})
    if namespaces[key.namespace].get("status", {}).get("phase") == "Terminating":
        why = f"unable to create new content in namespace {key.namespace} because it is being terminated"
        details: Object = {"name": key.name, "kind": key.resource, "causes": [{"reason": "NamespaceTerminating"}]}
        raise Refusal(HTTPStatus.FORBIDDEN, "Forbidden", f'{key.resource} "{key.name}" is forbidden: {why}', details)


def without_gates(obj: Object, old: Object | None, gates_off: frozenset[str]) -> Object:
    """Drop what disabled feature gates drop, silently, from a ResourceSlice, unless the stored one has it already.

    Contract: kubernetes pkg/registry/resource/resourceslice/strategy.go, dropDisabled...Fields.
    """
    if (
        old is not None
        and "DRAConsumableCapacity" in gates_off
        and any("allowMultipleAllocations" in device for device in _devices(old))
    ):
        gates_off -= {"DRAConsumableCapacity"}
    for device in _devices(obj):
        if "DRAConsumableCapacity" in gates_off:
            device.pop("allowMultipleAllocations", None)
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)
        if "DRADeviceTaints" in gates_off:
            device.pop("taints", None)
    return obj


def _devices(slice_: Object) -> Iterator[Object]:
    yield from slice_.get("spec", {}).get("devices", [])


def _secret(obj: Object) -> Object:
    for value in (obj.get("data") or {}).values():
        _decoded("secrets", value)
    texts = {name: base64.b64encode(text.encode()).decode() for name, text in (obj.get("stringData") or {}).items()}
    kept = {field: value for field, value in obj.items() if field != "stringData"}
    data = {**(obj.get("data") or {}), **texts}
    return {"type": "Opaque", **kept, **({"data": data} if data else {})}


def _decoded(resource: str, text: Any) -> None:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        message = f"{RESOURCES[resource].kind} in version v1 cannot be handled: illegal base64 data: {error}"
        raise Refusal(HTTPStatus.BAD_REQUEST, "BadRequest", message) from error


def _invalid(resource: str, obj: Mapping[str, Any], problem: str) -> Refusal:
    kind, group = RESOURCES[resource].kind, RESOURCES[resource].group
    message = f'{kind}.{group} "{obj.get("metadata", {}).get("name", "")}" is invalid: {problem}'
    return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message)
