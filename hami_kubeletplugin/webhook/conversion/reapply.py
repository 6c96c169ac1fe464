"""A converted pod that is applied once more, from the manifest that still names our resources. Pure.

`kubectl apply` puts the manifest's limits back beside the claims that the pod has now. A pod's resources can't change, so
Kubernetes would refuse what changes nothing: taking them out again makes it the pod that is there.
"""

from collections.abc import Mapping
from typing import Any

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import Operation, Pod, convert, names_ours
from hami_kubeletplugin.webhook.conversion.template import SizeLookup


def reapplied(pod: Pod, old: Pod, rules: Conversion, sizes: SizeLookup) -> tuple[Operation, ...]:
    """What to take out of an update of a pod.

    Args:
        pod: As it is to be.
        old: As it is. One that names our resources itself was never converted, and is left alone.
        rules: Names and defaults.
        sizes: As for `convert`.

    Raises:
        AdmissionError: It asks for other GPUs than it has.
    """
    if names_ours(old, rules):
        return ()
    made = convert(_unscheduled(pod), rules, sizes)
    if not made.patch:
        return ()
    template_of = {
        str(claim.get("name")): claim.get("resourceClaimTemplateName")
        for _, claim in fields.mappings(pod["spec"].get("resourceClaims"))
    }
    for use in made.claims:
        claims = _claims(pod, use.place.pointer)
        had = [template_of.get(str(claim.get("name"))) for _, claim in fields.mappings(claims)]
        if use.template.name not in had:
            raise AdmissionError(
                f"spec.{use.place.list}[{use.place.number}].resources: the GPUs of a pod can't change, and this asks for "
                "others than it has: delete the pod, then apply it"
            )
    return tuple(
        _without_new_claim(pod, operation) for operation in made.patch if operation["path"].endswith("/resources")
    )


def _unscheduled(pod: Pod) -> Pod:
    """It has a node by now, which a new pod must not have."""
    spec = pod.get("spec")
    return {**pod, "spec": {**spec, "nodeName": None}} if isinstance(spec, Mapping) else pod


def _without_new_claim(pod: Pod, operation: Operation) -> Operation:
    claims = _claims(pod, operation["path"].removesuffix("/resources"))
    rest = {name: value for name, value in operation["value"].items() if name != "claims"}
    return {**operation, "value": {**rest, "claims": claims} if claims else rest}


def _claims(pod: Pod, pointer: str) -> list[Any]:
    _, spec, kind, number = pointer.split("/")
    return list(pod[spec][kind][int(number)]["resources"].get("claims") or ())
