"""docs/reference/objects.md: what is read from, and written into, objects of the cluster, from the names and from a device."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from docs.site.declared import code, meanings, table
from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.gpuconfig import GpuConfig
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.api.taint_settings import DEFAULT_EFFECTS
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.gpu.conditions import HEALTH, What
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.publish.devices import Device, devices
from hami_kubeletplugin.webhook.conversion.annotations import KNOWN

_INTRODUCTION: Final = """\
# What stands in objects

Names in ResourceSlices, claims, pods and nodes. How to ask for GPUs with them: [claims.md](../claims.md), and
[migrating-from-hami.md](../migrating-from-hami.md) for what comes from HAMi.
"""
_EVENTS: Final = {
    names.GPU_CONDITION: "the Node, and pods that use the GPU",
    names.GPU_CONDITION_ENDED: "the Node, and pods that use the GPU",
    names.LIMIT_NOT_IN_FORCE: "the pod",
}
_LABELS: Final = {
    names.IGNORE_LABEL: "pods, namespaces",
    names.MANAGED_BY: "templates",
}
_ANNOTATIONS: Final = {
    **dict.fromkeys(KNOWN, "pods"),
    names.DEVICE_CORDON: "nodes",
    names.LAST_USED: "templates",
    names.TRUSTED_SINCE: "the webhook's Secret",
}
_MEANINGS: Final = {
    value: text for name, text in meanings(names).items() if isinstance(value := getattr(names, name), str)
}


def page() -> str:
    """The page."""
    device = _device()
    return _INTRODUCTION + "".join(
        (
            _section(
                "Attributes of devices",
                f'Below `device.attributes["{names.DRIVER}"]`, or the domain that is named. What is not known is left out.',
                table(("attribute", "type", "what", "of an A100, for instance"), _attributes(device)),
            ),
            _section(
                "Capacities of devices",
                f"Of the same GPU, with a `--device-split-count` of {Sharing.model_fields['device_split_count'].default}.",
                table(
                    ("capacity", "there is", "if a claim says nothing", "may be asked for", "what"), _capacities(device)
                ),
            ),
            _section(
                "Taints of devices",
                "Each is a condition of the GPU, in Events and `hami_gpu_condition`, too. `--taints` sets other effects.",
                table(("taint", "effect by default", "the kubelet is told", "it means"), _taints()),
            ),
            _section(
                "GpuConfig",
                f"`apiVersion: {names.CONFIG_API_VERSION}`, `kind: {names.CONFIG_KIND}`, in a claim or a DeviceClass.",
                table(("field", "values", "what"), _config()),
            ),
            _section(
                "Resources in containers' limits",
                "What the webhook turns into claims. Each may have another name, by its option.",
                table(("resource", "option", "what"), _resources()),
            ),
            _section("Annotations", "Read or written.", table(("annotation", "of", "what"), _named(_ANNOTATIONS))),
            _section("Labels", "Read or written.", table(("label", "of", "what"), _named(_LABELS))),
            _section(
                "Events",
                "Beside the kubelet's `FailedPrepareDynamicResources`, which has our words when a claim is not prepared.",
                table(("reason", "about", "what"), _named(_EVENTS)),
            ),
        )
    )


def _section(head: str, words: str, rows: str) -> str:
    return f"\n## {head}\n\n{words}\n\n{rows}"


def _device() -> Device:
    """Of a GPU of which all is known."""
    found = asyncio.run(SimulatedSource("a100x8", "node-1").discover())
    return devices(found.gpus, Sharing.checked())[0]


def _attributes(device: Device) -> Iterator[tuple[str, ...]]:
    for name, typed in sorted(device["attributes"].items(), key=lambda each: ("/" in each[0], each[0])):
        ((kind, value),) = typed.items()
        yield code(name), kind, _MEANINGS[name], code(str(value))


def _capacities(device: Device) -> Iterator[tuple[str, ...]]:
    for name, there in device["capacity"].items():
        policy = there["requestPolicy"]
        asked = policy.get("validRange") or {"one of": policy["validValues"]}
        may = ", ".join(
            f"{word} {value if isinstance(value, str) else ', '.join(value)}" for word, value in asked.items()
        )
        yield code(name), code(there["value"]), code(policy["default"]), may, _MEANINGS[name]


def _taints() -> Iterator[tuple[str, ...]]:
    told = meanings(What)
    for what in What:
        yield code(f"{names.TAINT}{what}"), code(DEFAULT_EFFECTS[what]), code(HEALTH[what]), told[what.name]


def _config() -> Iterator[tuple[str, ...]]:
    told = meanings(GpuConfig)
    for name, field in GpuConfig.model_fields.items():
        if name not in ("api_version", "kind"):
            yield code(field.alias or name), _values(field.annotation, field.metadata), told[name]


def _values(annotation: Any, bounds: Iterable[Any]) -> str:
    literal, *_ = get_args(annotation)  # | None
    if words := get_args(literal):
        return ", ".join(map(code, words))
    numbers = [str(getattr(bound, side)) for side in ("ge", "le") for bound in bounds if hasattr(bound, side)]
    return " to ".join(numbers) or ", ".join(code(json.dumps(value)) for value in (True, False))


def _resources() -> Iterator[tuple[str, ...]]:
    for name, field in Conversion.model_fields.items():
        if name.startswith("resource_"):
            yield code(field.default), code(f"--{name.replace('_', '-')}"), _MEANINGS[field.default]


def _named(about: dict[str, str]) -> Iterator[tuple[str, ...]]:
    for name, of in about.items():
        yield code(name), of, _MEANINGS[name]
