"""The toleration that the API servers of GKE and AKS derive from a pod's resources. Pure.

Their nodes with GPUs have the taint `nvidia.com/gpu=present:NoSchedule`, for which people write no toleration: the plugin
ExtendedResourceToleration adds one for each resource that a pod names. It runs before webhooks, and once more after them, when
HAMi's has put in `nvidia.com/gpu` for who names memory only. Ours puts in none.
Contract: plugin/pkg/admission/extendedresourcetoleration/admission.go in Kubernetes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import Converted, Operation, Pod

_PATH: Final = "/spec/tolerations"
_EFFECT: Final = "NoSchedule"


def without_plugin(pod: Pod, converted: Converted, rules: Conversion, where: str) -> Iterator[Operation]:
    """For a pod that the plugin will not see as it was: the toleration of GPUs, which does no harm where there is no such taint.

    Args:
        pod: As it was.
        converted: What became of it.
        rules: The names of resources.
        where: As for `convert`.

    Raises:
        AdmissionError: `tolerations` is no list.
    """
    there = fields.checked_sequence(fields.at(pod, "spec", "tolerations"), f"{where}spec.tolerations")
    if converted.claims and not _has(there, rules.resource_count_name):
        yield {"op": "add", "path": _PATH, "value": [*there, _of(rules)]}


def after_plugin(pod: Pod, converted: Converted, rules: Conversion) -> Iterator[Operation]:
    """For a pod from an API server: the toleration of GPUs, if the plugin has added one for another of our resources."""
    there = fields.sequence(fields.at(pod, "spec", "tolerations"))
    others = (name for name in rules.resources if name != rules.resource_count_name)
    if not converted.claims or _has(there, rules.resource_count_name):
        return
    if any(_of(rules, name) in there for name in others):
        yield {"op": "add", "path": f"{_PATH}/-", "value": _of(rules)}


def was_added(converted: Converted) -> bool:
    """Whether it is among what was changed."""
    return any(operation["path"] == _PATH for operation in converted.patch)


def _of(rules: Conversion, resource: str = "") -> dict[str, str]:
    return {"key": resource or rules.resource_count_name, "operator": "Exists", "effect": _EFFECT}


def _has(tolerations: object, resource: str) -> bool:
    return any(_tolerates(each, resource) for _, each in fields.mappings(tolerations))


def _tolerates(toleration: Mapping[str, Any], resource: str) -> bool:
    return (
        toleration.get("operator") == "Exists"
        and toleration.get("key") in (None, "", resource)
        and toleration.get("effect") in (None, "", _EFFECT)
    )
