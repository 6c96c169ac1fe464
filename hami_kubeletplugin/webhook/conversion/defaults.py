"""What a LimitRange puts into a container that has its GPUs already. Pure.

Kubernetes fills a LimitRange's defaults in before webhooks are asked, and, as ours has changed the pod, once more after it: into
what has just been taken out. So the webhook is asked again, and must not take that for another GPU.
Contract: plugin/pkg/admission/limitranger/admission.go (mergePodResourceRequirements), with the annotation that it writes.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.names import TEMPLATE_PREFIX
from hami_kubeletplugin.api.webhook_settings import Conversion

ANNOTATION: Final = "kubernetes.io/limit-ranger"
_SET: Final = re.compile(r"([^;:]+) (?:request|limit) for (init container|container) ([^;]+)")
"""`LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; nvidia.com/gpu limit for init container first`."""


class Defaults:
    """What was filled into the containers of a pod.

    Args:
        pod: `metadata` and `spec`, with claims that are well-formed.
    """

    def __init__(self, pod: Mapping[str, Any]) -> None:
        said = fields.mapping(fields.mapping(pod.get("metadata")).get("annotations")).get(ANNOTATION)
        self._set: dict[tuple[str, str], set[str]] = {}
        for found in _SET.finditer(said if isinstance(said, str) else ""):
            list_name = "containers" if found[2] == "container" else "initContainers"
            self._set.setdefault((list_name, found[3]), set()).update(found[1].strip().split(", "))
        self._ours = {
            claim.get("name")
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
        filled = self._set.get((list_name, str(container.get("name"))), set[str]())
        if not filled.issuperset(amounts):
            return False
        claims = fields.mappings(fields.at(container, "resources", "claims"))
        return any(claim.get("name") in self._ours for _, claim in claims)


def zeroed(resources: Mapping[str, Any], rules: Conversion) -> dict[str, Any]:
    """The resources of a container with zeros in place of our limits; requests alone can't be there, and go."""
    limits, requests = (fields.mapping(resources.get(name)) for name in ("limits", "requests"))
    limits, requests = (
        {**amounts, **{name: "0" for name in rules.resources if name in limits}} for amounts in (limits, requests)
    )
    rest = {name: amount for name, amount in requests.items() if name not in rules.resources or name in limits}
    made = {"limits": limits, "requests": rest}
    return {name: made.get(name, value) for name, value in resources.items() if made.get(name, True)}
