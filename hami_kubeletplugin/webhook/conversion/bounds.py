"""How much of a pod is looked at, so that no pod keeps the webhook busy: whoever sends one chose its size. Pure.

Mutating webhooks see objects before the API server has validated them, so none of its own bounds hold yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.demand import Container

MOST_CONTAINERS: Final = 512
"""Of one pod, with GPUs or without. The kubelet runs 110 pods on a node; all of them together hardly have so many."""
MOST_WITH_GPUS: Final = 128
"""Of them."""
MOST_ENTRIES: Final = 5000
"""Variables, volumes, amounts and claims of all GPU containers of one pod. Large ones have some hundred."""

_LISTS: Final = ("env", "volumeMounts", "volumeDevices", "resources.claims", "resources.limits", "resources.requests")
"""All that is walked of a GPU container."""


def check_containers(spec: Mapping[str, Any], where: str) -> None:
    """See that a pod has no more containers than are looked at.

    Raises:
        AdmissionError: It has.
    """
    kinds = ("initContainers", "containers")
    count = sum(len(fields.checked_sequence(spec.get(kind), f"{where}spec.{kind}")) for kind in kinds)
    if count > MOST_CONTAINERS:
        raise AdmissionError(
            f"{where}spec: {count} containers, at most {MOST_CONTAINERS} are taken: make more pods of it"
        )


def check_entries(spec: Mapping[str, Any], asking: Iterable[tuple[str, Container]], where: str) -> None:
    """See that what is walked of a pod is no longer than any sane pod's.

    Args:
        spec: The pod's.
        asking: Its containers that name our resources, each with its field path.
        where: As for `convert`.

    Raises:
        AdmissionError: It is; the message names the longest list.
    """
    lists = list(_walked(spec, asking, where))
    if sum(length for _, length in lists) > MOST_ENTRIES:
        path, length = max(lists, key=lambda each: each[1])
        raise AdmissionError(
            f"{path}: {length} entries, at most {MOST_ENTRIES} are taken of the variables, volumes, amounts and claims of all "
            "GPU containers of a pod together: make more pods of it, or put what is in there into a volume"
        )


def _walked(spec: Mapping[str, Any], asking: Iterable[tuple[str, Container]], where: str) -> Iterator[tuple[str, int]]:
    yield f"{where}spec.resourceClaims", len(fields.sequence(spec.get("resourceClaims")))
    for path, container in asking:
        for name in _LISTS:
            entries = fields.at(container, *name.split("."))
            if isinstance(entries, list | tuple | Mapping):
                yield f"{path}.{name}", len(entries)


def check_needs(needs: Sized, rules: Conversion, where: str) -> None:
    """See that a pod needs no more templates than it may.

    Args:
        needs: The different demands of its containers.
        rules: The bound.
        where: As for `convert`.

    Raises:
        AdmissionError: It does.
    """
    if len(needs) > rules.max_pod_templates:
        raise AdmissionError(
            f"{where}spec: its containers ask for GPUs in {len(needs)} different ways, each of which needs a "
            f"ResourceClaimTemplate, and a pod may have {rules.max_pod_templates}: let containers that can do with the same ask "
            "for the same, make more pods of it, or have an administrator raise --max-pod-templates"
        )


def check_size(total: int, rules: Conversion, where: str) -> None:
    """See that a pod's templates are not too long together.

    Raises:
        AdmissionError: They are.
    """
    if total > rules.max_pod_template_bytes:
        raise AdmissionError(
            f"{where}metadata.annotations: the lists of GPUs and types, once for each request and each memory size, make "
            f"ResourceClaimTemplates of {total} bytes, and those of a pod may have {rules.max_pod_template_bytes} together: "
            "shorten the lists, let containers ask for the same, or have an administrator raise --max-pod-template-bytes"
        )
