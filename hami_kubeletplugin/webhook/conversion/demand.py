"""How much of how many GPUs a container asks for, by HAMi's rules. Pure.

Contract: Project-HAMi/HAMi pkg/device/nvidia/device.go (MutateAdmission, defaultExclusiveCoreIfNeeded,
GenerateResourceRequests, Fit). Where HAMi ignores a value that it can't read, and so gives a pod something else than what it
asks for, or nothing for ever, the pod is refused here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeVar

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.gpuconfig import CorePolicy, Priority
from hami_kubeletplugin.api.names import (
    CUDA_TASK_PRIORITY,
    GPU_CORE_UTILIZATION_POLICY,
    LIBCUDA_LOG_LEVEL,
    MAX_GPUS_PER_CONTAINER,
    MIB,
)
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.kube import quantity

Container = Mapping[str, Any]
_T = TypeVar("_T")

_MAX_INT32: Final = 2**31 - 1
_PRIORITIES: Final[Mapping[int, Priority]] = {0: "high", 1: "low"}
_PRIORITY_VALUES: Final[Mapping[str, Priority]] = {str(number): word for number, word in _PRIORITIES.items()}
_POLICIES: Final[Mapping[str, CorePolicy]] = {
    "default": "default",
    **dict.fromkeys(("force", "FORCE"), "force"),
    **dict.fromkeys(("disable", "DISABLE"), "disable"),
}
"""As HAMi-core reads them: capitals or none, and no other way (multiprocess_memory_limit.c, set_env_utilization_switch)."""
_CARRIED: Final[Mapping[str, str]] = {
    CUDA_TASK_PRIORITY: "0 (high), 1 (low)",
    GPU_CORE_UTILIZATION_POLICY: "default, force, disable",
    LIBCUDA_LOG_LEVEL: "0 to 4",
}
"""Variables that go into the claim, since the driver sets them, and what they can be."""
_LOG_LEVELS: Final[Mapping[str, int]] = {str(level): level for level in range(5)}
_EXA: Final = 10**18
_MEGA: Final = 10**6
"""The API server writes 4000000 as 4M, so which of the two somebody wrote can't be told. No GPU has so many MiB."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one container asks for, or several that have one claim in turn.

    Attributes:
        gpus: Different GPUs, 1 to 16.
        memory_mib: MiB of each; None if nobody asks for MiB.
        memory_percent: Percent of each GPU's memory, 1 to 100; None if nobody asks for percent. 100 is all of it. Of both, which
            only several containers say, the larger counts, whichever that is on the GPU.
        cores: Percent of each GPU's compute, 0 to 100; 0 is "no limit".
        exclusive: Nobody else on these GPUs.
        priority: CUDA_TASK_PRIORITY, if the container says.
        core_policy: GPU_CORE_UTILIZATION_POLICY, if the container or the settings say.
        log_level: LIBCUDA_LOG_LEVEL, 0 to 4, if the container says.
        notes: What was not taken as written, for people.
    """

    gpus: int
    memory_mib: int | None
    memory_percent: int | None
    cores: int
    exclusive: bool
    priority: Priority | None = None
    core_policy: CorePolicy | None = None
    log_level: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_of_size(self) -> bool:
        """Whether it is more on a larger GPU, so that the sizes of GPUs have to be known."""
        return self.memory_percent not in {None, 100}


def demand(container: Container, where: str, rules: Conversion) -> Demand | None:
    """Read one container's demand; None if it asks for no GPU.

    Args:
        container: A core/v1 Container.
        where: Its field path, for messages.
        rules: Names and defaults.

    Raises:
        AdmissionError: A value that can't be kept; the message starts with its field path.
    """
    amounts = Amounts(container, where, rules)
    count = amounts.read(rules.resource_count_name, MAX_GPUS_PER_CONTAINER, "a whole number of GPUs")
    memory = amounts.memory()
    percent = amounts.read(rules.resource_memory_percentage_name, 100, "a whole number of percent")
    cores = amounts.read(rules.resource_core_name, _MAX_INT32, "a whole number of percent")
    priority = amounts.read(rules.resource_priority_name, 1, "0 (high) or 1 (low)")
    notes: list[str] = []
    if count is None:
        count = 0 if memory is percent is cores is None else rules.default_gpu_num
    if count == 0:
        return None
    # HAMi makes a GPU exclusive by giving all of its cores to one container (device.go, defaultExclusiveCoreIfNeeded).
    exclusive = cores is None and (percent == 100 if percent is not None else memory is None)
    if exclusive:
        cores = 100
    cores = rules.default_cores if cores is None else cores
    if cores > 100:
        notes.append(f"{where}: {rules.resource_core_name}: {cores} is taken as 100, the percent of each GPU")
    if not memory and not percent:
        memory, percent = (rules.default_memory, None) if rules.default_memory else (None, 100)
    elif memory and percent is not None:
        notes.append(
            f"{where}: {rules.resource_memory_percentage_name} has no effect beside {rules.resource_memory_name}"
        )
    cores = min(cores, 100)
    return Demand(
        gpus=count,
        memory_mib=memory or None,
        memory_percent=None if memory else percent,
        cores=cores,
        exclusive=exclusive or cores == 100,
        **_config(container, where, None if priority is None else _PRIORITIES[priority], rules, notes),
        notes=tuple(notes),
    )


class Amounts:
    """The resources of a container: limits, then requests, as HAMi looks.

    Raises:
        AdmissionError: `resources`, or what is below it, is no object.
    """

    def __init__(self, container: Container, where: str, rules: Conversion) -> None:
        self._rules = rules
        resources = fields.checked_mapping(container.get("resources"), f"{where}.resources", show=True)
        self._lists = [
            (path, fields.checked_mapping(resources.get(kind), path, show=True))
            for kind, path in ((kind, f"{where}.resources.{kind}") for kind in ("limits", "requests"))
        ]

    def names(self) -> Iterator[str]:
        """The resources of ours that are there, in whichever list."""
        return (name for name in self._rules.resources if any(name in there for _, there in self._lists))

    def read(self, name: str, most: int, what: str, mib: int = 0) -> int | None:
        """A whole number from 0 to `most`, in units of `mib` MiB if it is of memory; None if it isn't there.

        Raises:
            AdmissionError: It is something else, or limits and requests differ.
        """
        found = [(f"{path}[{name}]", there[name]) for path, there in self._lists if name in there]
        if not found:
            return None
        values = [_number(path, value) for path, value in found]
        path, value = found[0]
        if len(set(values)) > 1:
            raise _invalid(*found[1], f"must equal the limit, which is {quoted(value)}")
        number = values[0]
        in_bytes = mib > 0 and _in_bytes(number, value)
        if number.denominator != 1 or not 0 <= number <= most or in_bytes:
            raise _invalid(path, value, f"must be {what}, from 0 to {most}{_hint(number, value, mib)}")
        return int(number)

    def memory(self) -> int | None:
        """MiB of each GPU, by either name; None if neither is there.

        Raises:
            AdmissionError: As for `read`, or both names are there with different values.
        """
        rules = self._rules
        mib = rules.memory_factor
        most, what = _MAX_INT32 // mib, "a whole number of MiB" if mib == 1 else f"a whole number of units of {mib} MiB"
        by_name = {
            name: value
            for name in (rules.resource_memory_name, rules.resource_memory_alias)
            if (value := self.read(name, most, what, mib)) is not None
        }
        if len(set(by_name.values())) > 1:
            raise AdmissionError(
                f"{self._lists[0][0]}: {' and '.join(by_name)} mean the same, but differ: leave one out"
            )
        return next(iter(by_name.values())) * mib if by_name else None


def _config(
    container: Container, where: str, priority: Priority | None, rules: Conversion, notes: list[str]
) -> dict[str, Any]:
    """What HAMi's users say by variables goes into the claim: the ones in the container come from the driver then."""
    env = fields.checked_sequence(container.get("env") or (), f"{where}.env", show=True)
    variables = {
        variable["name"]: variable for _, variable in fields.mappings(env) if variable.get("name") in tuple(_CARRIED)
    }

    def said(name: str, values: Mapping[str, _T], default: _T | None) -> _T | None:
        variable = variables.get(name, {})
        value = variable.get("value")
        known = f"known are {_CARRIED[name]}"
        if value is None and variable.get("valueFrom"):
            notes.append(f"{where}.env: {name} is ignored, as valueFrom can't be read here: write its value; {known}")
        elif value is not None and str(value) not in values:
            notes.append(f"{where}.env: {name}={quoted(value)} is ignored; {known}")
        return default if value is None else values.get(str(value), default)

    policy: CorePolicy | None = None if rules.gpu_core_policy == "default" else rules.gpu_core_policy
    return {
        "priority": said(CUDA_TASK_PRIORITY, _PRIORITY_VALUES, None) if priority is None else priority,
        "core_policy": said(GPU_CORE_UTILIZATION_POLICY, _POLICIES, policy),
        "log_level": said(LIBCUDA_LOG_LEVEL, _LOG_LEVELS, None),
    }


def _number(path: str, value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _invalid(path, value, "must be a number")
    try:
        return quantity.parse(str(value))
    except ValueError:
        raise _invalid(path, value, "is not a quantity: write a plain number such as 1 or 4000") from None


def _hint(number: Fraction, value: Any, mib: int) -> str:
    """For memory with a unit, as everywhere else in Kubernetes: the number that was meant."""
    if not mib or not _MEGA <= number <= _EXA:
        return ""
    meant = max(round(number / (mib * MIB)), 1)
    return f"; without a unit: for {value} write {meant}" if str(value)[-1:].isalpha() else f"; for bytes write {meant}"


def _in_bytes(number: Fraction, value: Any) -> bool:
    """Whether an amount of memory was written with a unit: binary ones are kept as they are, `M` may be the API server's."""
    return (number >= MIB and str(value).endswith("i")) or (number >= _MEGA and number % _MEGA == 0)


def _invalid(path: str, value: Any, reason: str) -> AdmissionError:
    return AdmissionError(f"{path}: Invalid value: {quoted(value)}: {reason}")
