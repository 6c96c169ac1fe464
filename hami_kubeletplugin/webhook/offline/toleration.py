"""The toleration that the API servers of GKE and AKS add to a pod, as long as it still names the GPUs as a resource. Pure.

Their nodes with GPUs have the taint `nvidia.com/gpu=present:NoSchedule`, and people write no toleration for it. A toleration only
permits, so it does no harm elsewhere. The webhook needs none of this: it is asked after that plugin.
Contract: plugin/pkg/admission/extendedresourcetoleration/admission.go in Kubernetes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.webhook.conversion.convert import Converted, Operation

_PATH: Final = "/spec/tolerations"
_EFFECT: Final = "NoSchedule"


def toleration(pod: Mapping[str, Any], converted: Converted, resource: str, where: str) -> Iterator[Operation]:
    """What adds it to a pod: nothing if it is there, or the pod has no GPU.

    Args:
        pod: As it was.
        converted: What became of it.
        resource: That counts GPUs, such as `nvidia.com/gpu`.
        where: As for `convert`.

    Raises:
        AdmissionError: `tolerations` is no list.
    """
    if not converted.claims:
        return
    there = fields.checked_sequence(fields.at(pod, "spec", "tolerations"), f"{where}spec.tolerations")
    if not any(_tolerates(each, resource) for _, each in fields.mappings(there)):
        added = {"key": resource, "operator": "Exists", "effect": _EFFECT}
        yield {"op": "add", "path": _PATH, "value": [*there, added]}


def was_added(converted: Converted) -> bool:
    """Whether it is among what was changed."""
    return any(operation["path"] == _PATH for operation in converted.patch)


def _tolerates(toleration: Mapping[str, Any], resource: str) -> bool:
    return (
        toleration.get("operator") == "Exists"
        and toleration.get("key") in {None, "", resource}
        and toleration.get("effect") in {None, "", _EFFECT}
    )
