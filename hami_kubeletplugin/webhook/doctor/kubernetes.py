"""Is this Kubernetes one that the driver works with: version, API, feature gates by what they leave behind. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.cluster import Slice

_OLDEST: Final = (1, 35)
_GATED: Final = (1, 36)
"""From here on DRAConsumableCapacity is on by default."""
_kubernetes = partial(Finding, check="kubernetes")
_GATE: Final = "--feature-gates=DRAConsumableCapacity=true   # of all of the control plane and each kubelet"


def kubernetes(version: Mapping[str, Any] | None, group: Mapping[str, Any] | None) -> Iterator[Finding]:
    """What the API server is.

    Args:
        version: The answer of `/version`.
        group: Of `/apis/resource.k8s.io`; None: it isn't served.
    """
    told = fields.mapping(version)
    found = tuple(int(re.sub(r"\D", "", str(told.get(part))) or 0) for part in ("major", "minor"))
    text = str(told.get("gitVersion"))
    if found < _OLDEST:
        yield _kubernetes(
            level=Level.error,
            what=f"Kubernetes {text} is too old: 1.35 is the oldest that works",
            why="shares of GPUs need DRAConsumableCapacity; the allocator of 1.34 can stop the scheduler of the whole cluster",
        )
    elif found < _GATED:
        yield _kubernetes(
            level=Level.hint, what=f"Kubernetes {text} needs the feature gate DRAConsumableCapacity", mend=_GATE
        )
    else:
        yield _kubernetes(level=Level.ok, what=f"Kubernetes {text}")
    served = {str(each.get("version")) for _, each in fields.mappings(fields.at(group, "versions"))}
    if "v1" not in served:
        yield _kubernetes(
            level=Level.error,
            what="the API server does not serve resource.k8s.io/v1",
            why="there are no claims: nothing of this works",
            mend="--runtime-config=resource.k8s.io/v1=true   # an option of kube-apiserver",
        )


def gates(slices: Iterable[Slice], driver: str) -> Iterator[Finding]:
    """Whether what a gate guards is still in the slices that were written."""
    ours = [each for each in slices if each.driver == driver]
    if any(each.devices for each in ours) and not any(each.shared for each in ours):
        yield _kubernetes(
            level=Level.error,
            what="the API server has dropped what lets several claims have one GPU: DRAConsumableCapacity is off",
            why="each claim gets a whole GPU",
            mend=_GATE,
        )
