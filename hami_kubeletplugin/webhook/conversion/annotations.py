"""Which GPUs a pod may get, from its annotations: HAMi's, and a few of ours. Pure.

Contract: Project-HAMi/HAMi pkg/device/devices.go (CheckUUID, CheckType), pkg/device/nvidia/device.go (assertNuma, checkType),
pkg/util/types.go (policies).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.names import (
    EXCLUSIVE,
    GPU_POLICY,
    NODE_POLICY,
    NOUSE_TYPE,
    NOUSE_UUID,
    NUMA_BIND,
    NUMA_NODE,
    NVLINK_GROUP,
    PCIE_ROOT,
    SAME_NVLINK,
    SAME_PCIE_ROOT,
    SCORING_WEIGHTS,
    USE_TYPE,
    USE_UUID,
    UUID,
    VGPU_MODE,
    qualified,
)
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.webhook.conversion import cel

KNOWN: Final = (
    USE_UUID,
    NOUSE_UUID,
    USE_TYPE,
    NOUSE_TYPE,
    NUMA_BIND,
    VGPU_MODE,
    GPU_POLICY,
    NODE_POLICY,
    SCORING_WEIGHTS,
    SAME_PCIE_ROOT,
    SAME_NVLINK,
    EXCLUSIVE,
)
"""All that are read."""
OUR_MODE: Final = "hami-core"
"""What HAMi calls the way in which all of our devices are shared."""
MOST_VALUES: Final = 128
"""Elements of one list; so many of 63 characters still fit in an expression. The API server's cost limit is far off: a thousand
short ones keep below it."""

FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
"""As Go's strconv.ParseBool reads them."""
_TWICE: Final = re.compile(r"^(nvidia-)+(?=nvidia)", re.ASCII | re.IGNORECASE)
_TRUE: Final = {"1", "t", "T", "TRUE", "true", "True"}
_POLICIES: Final[Mapping[str, str]] = {
    "binpack": "",
    "mutex": "",
    "spread": f"the order of a node's GPUs is its administrator's (HAMI_GPU_ORDER); to have one alone set {EXCLUSIVE}",
    "topology-aware": f"to have GPUs joined by NVLink set {SAME_NVLINK}",
    "numa": f"to have GPUs of one NUMA node set {NUMA_BIND}",
}
"""HAMi's GPU policies, and for those that DRA can't express what to use instead."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which GPUs will do. Empty tuples are no constraint.

    Attributes:
        uuids: Only these.
        not_uuids: None of these.
        types: Only models that contain one of these, in whatever case.
        not_types: No model that contains one of these.
        same: Attributes, as constraints name them, that all GPUs of a container must share.
        exclusive: Nobody else on these GPUs.
        notes: What can't be kept, for people.
    """

    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    not_types: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    exclusive: bool = False
    notes: tuple[str, ...] = ()

    def expressions(self, driver: str) -> tuple[str, ...]:
        """The CEL expressions that a device has to satisfy, all of them."""
        made = (
            cel.one_of(driver, UUID, self.uuids) if self.uuids else "",
            cel.one_of(driver, UUID, self.not_uuids, wanted=False) if self.not_uuids else "",
            cel.model_contains(driver, self.types) if self.types else "",
            cel.model_contains(driver, self.not_types, wanted=False) if self.not_types else "",
        )
        return tuple(filter(None, made))

    def admits_model(self, name: str) -> bool:
        """Whether a GPU of this model will do, as `expressions` say it."""
        model = cel.lower_ascii(name if name.startswith("NVIDIA") else f"NVIDIA-{name}")
        wanted = not self.types or any(cel.lower_ascii(part) in model for part in self.types)
        return wanted and not any(cel.lower_ascii(part) in model for part in self.not_types)


def read_annotations(annotations: Mapping[str, Any], where: str, driver: str) -> Selection:
    """Read a pod's annotations.

    Args:
        annotations: All of them.
        where: Their field path, for messages.
        driver: Our driver name: the domain of the attributes.

    Raises:
        AdmissionError: A value that can't be kept.
    """
    read = _Annotations(annotations, where)
    mode = read.text(VGPU_MODE)
    if mode and OUR_MODE not in mode:
        raise read.invalid(VGPU_MODE, f"GPUs are shared by {OUR_MODE} here; MIG and MPS can't be had")
    policies = read.words(GPU_POLICY)
    notes = [
        f"{where}[{GPU_POLICY}]: {quoted(policy)} has no effect"
        + (f": {_POLICIES[policy]}" if policy in _POLICIES else f"; HAMi's are {', '.join(_POLICIES)}")
        for policy in policies
        if _POLICIES.get(policy) != ""
    ]
    notes += [
        f"{where}[{name}] has no effect: kube-scheduler places the pod; to spread pods over nodes use topologySpreadConstraints"
        for name in (NODE_POLICY, SCORING_WEIGHTS)
        if read.text(name)
    ]
    same = {
        NUMA_NODE: read.flag(NUMA_BIND),
        PCIE_ROOT: read.flag(SAME_PCIE_ROOT),
        qualified(driver, NVLINK_GROUP): read.flag(SAME_NVLINK),
    }
    found = Selection(
        uuids=read.words(USE_UUID),
        not_uuids=read.words(NOUSE_UUID),
        types=_models(read.words(USE_TYPE)),
        not_types=_models(read.words(NOUSE_TYPE)),
        same=tuple(attribute for attribute, wanted in same.items() if wanted),
        exclusive=read.flag(EXCLUSIVE) or "mutex" in policies,
        notes=tuple(notes),
    )
    for expression in found.expressions(driver):
        if len(expression) > cel.LONGEST:
            raise AdmissionError(
                f"{where}: the list of GPUs or types is too long: it makes {len(expression)} characters of CEL, and "
                f"Kubernetes takes {cel.LONGEST}"
            )
    return found


def _models(parts: Iterable[str]) -> tuple[str, ...]:
    """Up to 2.7.1 HAMi put `NVIDIA-` before every name, and its users took over what it showed: `NVIDIA-NVIDIA L40S`."""
    return tuple(sorted({_TWICE.sub("", part) for part in parts}))


class _Annotations:
    def __init__(self, annotations: Mapping[str, Any], where: str) -> None:
        self._annotations, self._where = annotations, where

    def text(self, name: str) -> str:
        value = self._annotations.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.invalid(name, "must be a string")
        if len(value) > cel.LONGEST:  # before it is split and escaped: a mutating webhook may get megabytes
            raise AdmissionError(
                f"{self._where}[{name}]: {len(value)} characters are too long: Kubernetes takes {cel.LONGEST} of CEL"
            )
        return value.strip()

    def words(self, name: str) -> tuple[str, ...]:
        """A comma list; empty elements, and a list of nothing, are no constraint. Order means nothing, so it is lost."""
        words = sorted({word.strip() for word in self.text(name).split(",") if word.strip()})
        if len(words) > MOST_VALUES:
            raise AdmissionError(
                f"{self._where}[{name}]: {len(words)} elements, at most {MOST_VALUES} can be told apart"
            )
        return tuple(words)

    def flag(self, name: str) -> bool:
        """A boolean as Go's strconv.ParseBool reads it. HAMi takes what isn't one for false; a typo would lose the wish."""
        text = self.text(name)
        if text not in _TRUE | FALSE | {""}:
            raise self.invalid(name, 'must be "true" or "false"')
        return text in _TRUE

    def invalid(self, name: str, reason: str) -> AdmissionError:
        return AdmissionError(f"{self._where}[{name}]: Invalid value: {quoted(self._annotations[name])}: {reason}")
