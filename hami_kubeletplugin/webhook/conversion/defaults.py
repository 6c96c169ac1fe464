"""What a LimitRange puts into a container that has its GPUs already. Pure.

Kubernetes fills a LimitRange's defaults in before webhooks are asked, and, as ours has changed the pod, once more after it: into
what has just been taken out. So the webhook is asked again, and must not take that for another GPU.
Contract: plugin/pkg/admission/limitranger/admission.go (mergePodResourceRequirements), with the annotation that it writes.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.names import TEMPLATE_PREFIX
from hami_kubeletplugin.api.webhook_settings import Conversion

ANNOTATION: Final = "kubernetes.io/limit-ranger"
_LISTS: Final = {"container": "containers", "init container": "initContainers"}


_LONGEST: Final = 256 * 1024
"""What all annotations of a pod may have (apimachinery, TotalAnnotationSizeLimitB)."""
_PARTS: Final = 1024
"""Limits and requests of all containers that a pod can have and a few more; who writes the annotation himself may have many."""


class Defaults:
    """What was filled into the containers of a pod.

    Args:
        pod: `metadata` and `spec`, with claims that are well-formed.
    """

    def __init__(self, pod: Mapping[str, Any]) -> None:
        said = fields.mapping(fields.mapping(pod.get("metadata")).get("annotations")).get(ANNOTATION)
        self._set: dict[tuple[str, str], set[str]] = defaultdict(set)
        for place, resources in _read(said if isinstance(said, str) and len(said) <= _LONGEST else ""):
            self._set[place].update(resources)
        self._ours = {
            str(claim.get("name"))
            for _, claim in fields.mappings(fields.at(pod, "spec", "resourceClaims"))
            if str(claim.get("resourceClaimTemplateName")).startswith(TEMPLATE_PREFIX)
        }

    def are_all(self, list_name: str, container: Mapping[str, Any], amounts: Collection[str]) -> bool:
        """Whether a container has a claim of the webhook's making, and all these amounts are but filled in.

        Args:
            list_name: `containers` or `initContainers`.
            container: One of them.
            amounts: The resources of ours that it names.
        """
        filled = self._set.get((list_name, str(container.get("name"))))
        if filled is None or not filled.issuperset(amounts):
            return False
        claims = fields.mappings(fields.at(container, "resources", "claims"))
        return any(str(claim.get("name")) in self._ours for _, claim in claims)


def _read(said: str) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Containers and what was put in: `LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; …`."""
    for part in said.partition(": ")[2].split("; ", _PARTS)[:_PARTS]:
        for verb in (" request for ", " limit for "):
            resources, found, where = part.partition(verb)
            kind, _, name = where.rpartition(" ")
            if found and kind in _LISTS:
                yield (_LISTS[kind], name), resources.split(", ")


def zeroed(resources: Mapping[str, Any], rules: Conversion) -> dict[str, Any]:
    """The resources of a container with zeros in place of our limits; requests alone can't be there, and go."""
    limits, requests = (fields.mapping(resources.get(name)) for name in ("limits", "requests"))
    limits, requests = (
        {**amounts, **{name: "0" for name in rules.resources if name in limits}} for amounts in (limits, requests)
    )
    rest = {name: amount for name, amount in requests.items() if name not in rules.resources or name in limits}
    made = {"limits": limits, "requests": rest}
    return {name: made.get(name, value) for name, value in resources.items() if made.get(name, True)}
