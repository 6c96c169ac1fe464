"""A converted pod that is applied once more, from the manifest that still names our resources. Pure.

`kubectl apply` puts the manifest's limits back beside the claims that the pod has now. A pod's resources can't change, so
Kubernetes would refuse what changes nothing: taking them out again makes it the pod that is there.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.bounds import MOST_WITH_GPUS
from hami_kubeletplugin.webhook.conversion.claims import ContainerPath
from hami_kubeletplugin.webhook.conversion.convert import Converted, Operation, Pod, convert, names_ours
from hami_kubeletplugin.webhook.conversion.template import LARGEST, SizeLookup

_NO_BOUNDS: Final = {"max_placements": 0, "max_pod_templates": MOST_WITH_GPUS, "max_pod_template_bytes": LARGEST}
"""It has its GPUs, and its templates are there."""


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
    new = _as_created(pod, rules)
    rules = rules.model_copy(update=_NO_BOUNDS)
    made = convert(new, rules, sizes)
    if not made.patch:
        return ()
    other = _first_other(made, pod)
    if other is not None and all(
        _first_other(convert(one, each, sizes), pod)
        for one in (new, _as_by_0_1_0(new))
        for each in (rules, *_as_elsewhere(rules))
    ):
        raise AdmissionError(
            f"spec.{other.list}[{other.number}].resources: the GPUs of a pod can't change, and this asks for others than it has: "
            "delete the pod, then apply it"
        )
    return tuple(
        _without_new_claim(pod, operation) for operation in made.patch if operation["path"].endswith("/resources")
    )


def _first_other(made: Converted, pod: Pod) -> ContainerPath | None:
    """The first container that would have another claim than it has."""
    template_of = {
        str(claim.get("name")): claim.get("resourceClaimTemplateName")
        for _, claim in fields.mappings(pod["spec"].get("resourceClaims"))
    }
    for use in made.claims:
        claims = _claims(pod, use.place.pointer)
        if use.template.name not in [template_of.get(str(claim.get("name"))) for _, claim in fields.mappings(claims)]:
            return use.place
    return None


def _as_elsewhere(rules: Conversion) -> Iterator[Conversion]:
    """As pods are converted on newer versions of Kubernetes, or on 1.35 and by 0.1.0: some live through an upgrade, or back."""
    for version in ("", "1.35"):
        other = rules.model_copy(update={"kubernetes": version})
        if other.separate_requests != rules.separate_requests:
            yield other


def _as_by_0_1_0(pod: Pod) -> Pod:
    """Without the variables that did not go into claims then."""

    def without(container: Any) -> Any:
        env = fields.at(container, "env")
        if not isinstance(env, list):
            return container
        return {**container, "env": [one for one in env if fields.at(one, "name") != names.LIBCUDA_LOG_LEVEL]}

    lists = {
        kind: [without(container) for container in fields.sequence(pod["spec"].get(kind))]
        for kind in ("initContainers", "containers")
    }
    return {**pod, "spec": {**pod["spec"], **lists}}


def _as_created(pod: Pod, rules: Conversion) -> Pod:
    """It has a node by now, which a new pod must not have, nor amounts among its annotations, which 0.1.0 took."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    annotations = fields.at(metadata, "annotations")
    if isinstance(metadata, Mapping) and isinstance(annotations, Mapping):
        rest = {name: value for name, value in annotations.items() if name not in rules.resources}
        pod = {**pod, "metadata": {**metadata, "annotations": rest}}
    return {**pod, "spec": {**spec, "nodeName": None}} if isinstance(spec, Mapping) else pod


def _without_new_claim(pod: Pod, operation: Operation) -> Operation:
    claims = _claims(pod, operation["path"].removesuffix("/resources"))
    rest = {name: value for name, value in operation["value"].items() if name != "claims"}
    return {**operation, "value": {**rest, "claims": claims} if claims else rest}


def _claims(pod: Pod, pointer: str) -> list[Any]:
    _, spec, kind, number = pointer.split("/")
    return list(pod[spec][kind][int(number)]["resources"].get("claims") or ())
