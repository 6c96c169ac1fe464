"""A converted pod that is applied once more, from the manifest that still names our resources. Pure.

`kubectl apply` puts the manifest's limits back beside the claims that the pod has now. A pod's resources can't change, so
Kubernetes would refuse what changes nothing: taking them out again makes it the pod that is there.
"""

from collections.abc import Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.bounds import MOST_WITH_GPUS
from hami_kubeletplugin.webhook.conversion.claims import field_path
from hami_kubeletplugin.webhook.conversion.convert import Converted, Operation, Pod, convert, names_ours
from hami_kubeletplugin.webhook.conversion.existing import OtherAmounts
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
    made, other = _made(new, rules, sizes)
    if made is None:
        made, _ = _made(_as_by_0_1_0(new), rules, sizes)
    if made is None:
        raise AdmissionError(
            f"{other}: the GPUs of a pod can't change, and this asks for others than it has: delete the pod, then apply it"
        )
    return tuple(operation for operation in made.patch if operation["path"].endswith("/resources"))


def _made(pod: Pod, rules: Conversion, sizes: SizeLookup) -> tuple[Converted | None, str]:
    """What is made of a pod that has all its claims, or the field path of the first container that has another one."""
    try:
        made = convert(pod, rules, sizes)
    except OtherAmounts as error:
        return None, str(error).split(":", maxsplit=1)[0]
    for use in made.claims:
        if not (use.was_there and use.template.spec):
            return None, f"{field_path(use.place, '')}.resources"
    return made, ""


def _as_by_0_1_0(pod: Pod) -> Pod:
    """Without the variables that did not go into claims then."""

    def counted(variable: Any) -> bool:
        name, value = fields.at(variable, "name"), fields.at(variable, "value")
        in_capitals = name == names.GPU_CORE_UTILIZATION_POLICY and value in ("FORCE", "DISABLE")
        return name != names.LIBCUDA_LOG_LEVEL and not in_capitals

    def without(container: Any) -> Any:
        env = fields.at(container, "env")
        return {**container, "env": [*filter(counted, env)]} if isinstance(env, list) else container

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
