"""A converted pod that is applied once more, from the manifest that still names our resources. Pure.

`kubectl apply` puts the manifest's limits back beside the claims that the pod has now. A pod's resources can't change, so
Kubernetes would refuse what changes nothing: taking them out again makes it the pod that is there.
"""

from collections.abc import Mapping
from typing import Final

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.bounds import MOST_WITH_GPUS
from hami_kubeletplugin.webhook.conversion.claims import field_path
from hami_kubeletplugin.webhook.conversion.convert import Operation, Pod, convert, names_ours
from hami_kubeletplugin.webhook.conversion.existing import OtherAmounts
from hami_kubeletplugin.webhook.conversion.template import LARGEST, SizeLookup

_NO_BOUNDS: Final = {"max_placements": 0, "max_pod_templates": MOST_WITH_GPUS, "max_pod_template_bytes": LARGEST}
"""It has its GPUs, and its templates are there."""
_OTHER: Final = "the GPUs of a pod can't change, and this asks for others than it has: delete the pod, then apply it"


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
    try:
        made = convert(_unscheduled(pod), rules.model_copy(update=_NO_BOUNDS), sizes)
    except OtherAmounts as error:
        raise AdmissionError(f"{str(error).split(':')[0]}: {_OTHER}") from None
    other = next((use for use in made.claims if not (use.was_there and use.template.spec)), None)
    if other is not None:
        raise AdmissionError(f"{field_path(other.place, '')}.resources: {_OTHER}")
    return tuple(operation for operation in made.patch if operation["path"].endswith("/resources"))


def _unscheduled(pod: Pod) -> Pod:
    """It has a node by now, which a new pod must not have."""
    spec = pod.get("spec")
    return {**pod, "spec": {**spec, "nodeName": None}} if isinstance(spec, Mapping) else pod
