"""From a demand and a selection to a ResourceClaimTemplate that is named by its content. Pure.

Equal needs make equal templates, so a Deployment of a thousand pods costs one, and a dry run says what the real one will do.
Contract: resource.k8s.io/v1 types.go (DeviceRequest, FirstAvailable, DeviceConstraint), KEP-5075, KEP-4816.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.webhook.conversion import cel
from hami_kubeletplugin.webhook.conversion.annotations import Selection
from hami_kubeletplugin.webhook.conversion.demand import Demand

Object = dict[str, Any]

API_VERSION: Final = "resource.k8s.io/v1"
KIND: Final = "ResourceClaimTemplate"
MANAGED_BY: Final = {names.MANAGED_BY: names.WEBHOOK}
"""The label of templates that the webhook made, and may remove."""
PRINTED: Final = {names.MANAGED_BY: f"{names.WEBHOOK}-convert"}
"""The label of those that people apply. On one that the webhook made before, it takes the other one's place: objects of which the
webhook knows nothing may name it from then on."""
ONE_SLOT: Final = 1
"""`shares` of a request that shares its GPU. Rounded up to one slot, whatever size slots have on the node that it gets to."""
MOST_SIZES: Final = 8
"""Alternatives of one request (FirstAvailableDeviceRequestMaxSize)."""
LARGEST: Final = 1024 * 1024
"""Characters of a spec. The API server takes objects of some 1.5 MB, and fails with an internal error above."""


class GpuSize(NamedTuple):
    """A kind of GPU in the cluster, for percentages of its memory."""

    model: str | None
    """None: not known, so it may be any."""
    memory_mib: int


SizeLookup = Callable[[], Sequence[GpuSize]]
"""Asked only for percentages: offline this may be a question to a cluster."""


@dataclass(frozen=True, slots=True)
class Template:
    """A claim's spec and the name that its content gives it."""

    name: str
    spec: Mapping[str, Any]
    """ResourceClaimSpec, in the form in which the API server keeps it: nothing in it is left to its defaults."""
    size: int = 0
    """Bytes of the spec as JSON."""

    def object(self, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Object:
        """The whole ResourceClaimTemplate."""
        metadata: Object = {"name": self.name}
        if namespace:
            metadata["namespace"] = namespace
        if labels:
            metadata["labels"] = dict(labels)
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"spec": self.spec}}


def template(demand: Demand, selection: Selection, rules: Conversion, sizes: Iterable[GpuSize]) -> Template:
    """Make the template for one container.

    Args:
        demand: How much.
        selection: Of which GPUs.
        rules: Driver and class.
        sizes: The GPUs that the cluster has; looked at for percentages only.

    Raises:
        AdmissionError: A percentage, and none of those GPUs, or too many kinds of them, come into question.
    """
    devices: Object = {"requests": _requests(demand, selection, rules, sizes)}
    if constraints := _constraints(demand, selection, rules):
        devices["constraints"] = constraints
    config = {"corePolicy": demand.core_policy, "priority": demand.priority, "logLevel": demand.log_level}
    if said := {field: value for field, value in config.items() if value is not None}:
        parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND, **said}
        devices["config"] = [{"opaque": {"driver": rules.driver_name, "parameters": parameters}}]
    spec = {"devices": devices}
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return Template(names.TEMPLATE_PREFIX + hashlib.sha256(canonical.encode()).hexdigest()[:20], spec, len(canonical))


def _constraints(demand: Demand, selection: Selection, rules: Conversion) -> list[Object]:
    """One GPU shares everything with itself, and may lack the attribute."""
    if demand.gpus == 1:
        return []
    same = [{"matchAttribute": attribute} for attribute in selection.same]
    if not rules.separate_requests:
        return same
    return [{"distinctAttribute": names.qualified(rules.driver_name, names.UUID)}, *same]


@lru_cache(maxsize=8)
def _expressions(selection: Selection, driver: str) -> tuple[str, ...]:
    """Made once for all containers of a pod: to escape long lists is most of the work."""
    return selection.expressions(driver)


def _requests(demand: Demand, selection: Selection, rules: Conversion, sizes: Iterable[GpuSize]) -> list[Object]:
    expressions = _expressions(selection, rules.driver_name)
    shares = names.SHARES_TOTAL if demand.exclusive or selection.exclusive else ONE_SLOT
    capacity = {names.CORES: str(demand.cores), names.SHARES: quantity.decimal(shares)}
    percent, least = demand.memory_percent, demand.memory_mib or 0
    # All of the memory is what a request gets that names none: the policy that the node daemon publishes says so. To name it
    # would need a list of sizes, and pods for GPUs that a cluster autoscaler has yet to bring would be refused.
    listed = () if percent is None or percent == 100 else _sizes(selection, rules, sizes)
    # One request for all, where its GPUs are always different. Equal requests are tried in every order before the scheduler says
    # no, node by node, while no other pod of the cluster is scheduled (docs/decisions.md, `placements`).
    separate = rules.separate_requests and demand.gpus > 1

    def device(memory_mib: int | None, *more: str) -> Object:
        memory = {} if memory_mib is None else {names.MEMORY: quantity.binary(memory_mib * names.MIB)}
        selectors = [{"cel": {"expression": expression}} for expression in (*expressions, *more)]
        return {
            "deviceClassName": rules.device_class,
            **({"selectors": selectors} if selectors else {}),
            "allocationMode": "ExactCount",
            "count": 1 if separate else demand.gpus,
            "capacity": {"requests": {**memory, **capacity}},
        }

    def request() -> Object:
        if percent is None:
            return {"exactly": device(demand.memory_mib)}
        if percent == 100:
            return {"exactly": device(None, *([cel.memory_at_least(rules.driver_name, least)] if least else []))}
        return {
            "firstAvailable": [
                # As HAMi rounds (device.go, Fit), but never to nothing: HAMi-core takes 0 for "no limit".
                {
                    "name": f"of-{size}",
                    **device(max(size * percent // 100, least, 1), cel.memory_is(rules.driver_name, size)),
                }
                # If none is large enough, the pod waits for one, as it does for MiB.
                for size in [size for size in listed if size >= least] or listed
            ]
        }

    called = [f"gpu-{index}" for index in range(demand.gpus)] if separate else ["gpu"]
    return [{"name": name, **request()} for name in called]


@lru_cache(maxsize=8)
def _admitted(selection: Selection, known: tuple[GpuSize, ...]) -> tuple[int, ...]:
    """Once for all containers of a pod, too."""
    return tuple(
        sorted({size.memory_mib for size in known if size.model is None or selection.admits_model(size.model)})
    )


def _sizes(selection: Selection, rules: Conversion, known: Iterable[GpuSize]) -> tuple[int, ...]:
    sizes = _admitted(selection, tuple(known))
    what = f"{rules.resource_memory_percentage_name} needs the memory sizes of the cluster's GPUs"
    if not sizes:
        narrowed = " that the annotations allow" if selection.types or selection.not_types else ""
        raise AdmissionError(
            f"{what}, and no GPU{narrowed} has been published yet: try again when a GPU node is up, or ask for MiB with "
            f"{rules.resource_memory_name}"
        )
    if len(sizes) > MOST_SIZES:
        listed = ", ".join(map(str, sizes))
        raise AdmissionError(
            f"{what}, and there are more than the {MOST_SIZES} that a claim can list ({listed} MiB): narrow them down with "
            f"the annotation {names.USE_TYPE}, or ask for MiB with {rules.resource_memory_name}"
        )
    return sizes
