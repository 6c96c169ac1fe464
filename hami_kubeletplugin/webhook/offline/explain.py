"""What became of each line that people wrote, and why, in words. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.webhook.conversion.claims import ContainerClaim
from hami_kubeletplugin.webhook.conversion.convert import DEFAULT_SCHEDULER, Converted
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.leftovers import is_hamis
from hami_kubeletplugin.webhook.conversion.sharing import gained
from hami_kubeletplugin.webhook.conversion.toleration import was_added
from hami_kubeletplugin.webhook.offline.documents import Change

_ALONE = "nobody else on it"


def explain(change: Change, rules: Conversion) -> Iterator[str]:
    """The lines that explain one pod or pod template.

    Args:
        change: As `documents` made it.
        rules: The names and defaults that it was made with.
    """
    converted = change.converted
    yield f"{change.document} ({change.owner}):"
    for use in converted.claims:
        yield f"  {change.where}spec.{use.place.list}[{use.place.number}] ({use.container}): {_claim(use)}"
        container = change.pod["spec"][use.place.list][use.place.number]
        yield from (f"    {line}" for line in _container(use, container, rules))
        yield from (f"    {line}" for line in _lifetime(use, container, converted))
    yield from (f"  {line}" for line in _pod(change, rules))
    yield from (f"  warning: {warning}" for warning in converted.warnings)


def _claim(use: ContainerClaim) -> str:
    there = ", which it has already" if use.was_there else ""
    return f"claim {use.claim} from ResourceClaimTemplate {use.template.name}{there}"


def _container(use: ContainerClaim, container: Mapping[str, Any], rules: Conversion) -> Iterator[str]:
    said = _Said(container, rules)
    yield _gpus(said, use.demand, rules)
    yield from _memory(said, use, rules)
    yield from _cores(said, use.demand, rules)
    if use.demand.priority:
        line = said.line(rules.resource_priority_name) or f"variable {names.CUDA_TASK_PRIORITY}"
        yield f"{line} -> priority {use.demand.priority}, in the claim's GpuConfig"
    if use.demand.core_policy:
        variable = names.GPU_CORE_UTILIZATION_POLICY
        line = f"variable {variable}" if said.variable(variable) else f"--gpu-core-policy {rules.gpu_core_policy}"
        yield f"{line} -> corePolicy {use.demand.core_policy}, in the claim's GpuConfig"
    if use.demand.log_level is not None:
        yield f"variable {names.LIBCUDA_LOG_LEVEL} -> logLevel {use.demand.log_level}, in the claim's GpuConfig"


class _Said:
    """What a container names: limits before requests."""

    def __init__(self, container: Mapping[str, Any], rules: Conversion) -> None:
        resources = container.get("resources") or {}
        self._amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        self._variables = [variable.get("name") for _, variable in fields.mappings(container.get("env"))]
        self.names_size = any(
            name in self._amounts
            for name in (
                rules.resource_memory_name,
                rules.resource_memory_alias,
                rules.resource_memory_percentage_name,
                rules.resource_core_name,
            )
        )

    def line(self, *resources: str) -> str:
        """The first of them that is there, as people wrote it; empty if none is."""
        there = (f"{name}: {self._amounts[name]}" for name in resources if name in self._amounts)
        return next(there, "")

    def variable(self, name: str) -> bool:
        return name in self._variables


def _gpus(said: _Said, demand: Demand, rules: Conversion) -> str:
    count = "one GPU" if demand.gpus == 1 else f"{demand.gpus} different GPUs"
    if line := said.line(rules.resource_count_name):
        return f"{line} -> {count}"
    return f"no {rules.resource_count_name} -> {count}, the default (--default-gpu-num) where memory or cores are named"


def _memory(said: _Said, use: ContainerClaim, rules: Conversion) -> Iterator[str]:
    demand = use.demand
    mib = said.line(rules.resource_memory_name, rules.resource_memory_alias)
    percent = said.line(rules.resource_memory_percentage_name)
    if demand.memory_mib is not None:
        default = ", the default (--default-memory)" if not mib or _is_zero(mib) else ""
        yield f"{mib or percent or 'no memory'} -> {demand.memory_mib} MiB of each GPU{default}"
    elif demand.memory_percent == 100:
        if said.names_size:
            yield f"{percent or mib or 'no memory'} -> all of each GPU's memory"
    else:
        yield f"{percent} -> {demand.memory_percent} percent of each GPU's memory{_sizes(use)}"


def _is_zero(line: str) -> bool:
    return quantity.parse(line.rsplit(" ", 1)[-1]) == 0


def _sizes(use: ContainerClaim) -> str:
    """What that is; empty where the claim has all of the memory, or is of a template that is not known here."""
    alternatives = (
        fields.at(use.template.spec, "devices", "requests")[0].get("firstAvailable", ()) if use.template.spec else ()
    )
    said = ", or ".join(
        f"{quantity.parse(one['capacity']['requests'][names.MEMORY]) / names.MIB} MiB of {one['name'].removeprefix('of-')}"
        for one in alternatives
    )
    return f": {said}" if said else ""


def _cores(said: _Said, demand: Demand, rules: Conversion) -> Iterator[str]:
    line, none = said.line(rules.resource_core_name), f"no {rules.resource_core_name}"
    if not said.names_size:
        whole = "the whole GPU, " if demand.memory_percent == 100 else ""
        yield f"no {_short(rules.resource_memory_name)} and no {_short(rules.resource_core_name)} -> {whole}{_ALONE}"
    elif demand.cores == 100 and demand.exclusive:
        yield f"{line or f'all of the memory and {none}'} -> all of each GPU's compute, {_ALONE}"
    elif demand.cores:
        default = "" if line else ", the default (--default-cores)"
        yield f"{line or none} -> {demand.cores} percent of each GPU's compute{default}"
    else:
        yield f"{line or none} -> no limit on compute, and none set aside"


def _short(resource: str) -> str:
    return resource.rsplit("/", 1)[-1]


def _lifetime(use: ContainerClaim, container: Mapping[str, Any], converted: Converted) -> Iterator[str]:
    """What people may not expect: a claim is held until the whole pod has ended, so it is the last one's who uses it."""
    if use.place.list != "initContainers" or container.get("restartPolicy") == "Always":
        return
    owner = next(other for other in reversed(converted.claims) if other.claim == use.claim)
    if owner is use:
        yield (
            "holds its GPU share until the pod has ended, since a claim can't be given back early and no container that starts "
            "later asks for GPUs beside the same claims"
        )
    else:
        more = gained(use.demand, use.given)
        yield f"uses the claim of {owner.container}, which starts when it has ended{f': gets {more}' if more else ''}"


def _pod(change: Change, rules: Conversion) -> Iterator[str]:
    if was_added(change.converted):
        yield f"toleration of {rules.resource_count_name}:NoSchedule added, as GKE and AKS do for pods that name this resource"
    chosen = change.converted.selection
    for name, values, meaning in (
        (names.USE_UUID, chosen.uuids, "only these GPUs"),
        (names.NOUSE_UUID, chosen.not_uuids, "none of these GPUs"),
        (names.USE_TYPE, chosen.types, "only GPUs whose model contains"),
        (names.NOUSE_TYPE, chosen.not_types, "no GPU whose model contains"),
    ):
        if values:
            yield f"annotation {name} -> {meaning}: {' or '.join(map(quoted, values))}"
    for attribute in chosen.same:
        yield f"annotation for {attribute} -> alike for all GPUs of a container; no effect on containers with one"
    if chosen.exclusive:
        yield f"annotation {names.EXCLUSIVE}, or {names.GPU_POLICY}: mutex -> each GPU of this pod has {_ALONE}"
    scheduler = (change.pod.get("spec") or {}).get("schedulerName")
    if not scheduler or scheduler == DEFAULT_SCHEDULER or not change.converted.claims:
        return
    if scheduler == rules.replace_scheduler:
        yield f"schedulerName: {scheduler} -> {DEFAULT_SCHEDULER}"
    elif not is_hamis(scheduler):  # that one is warned about
        yield (
            f"schedulerName: {scheduler} is kept: that scheduler has to know DRA; for another one use "
            f"--replace-scheduler {scheduler}"
        )
