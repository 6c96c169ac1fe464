"""What in a pod counts on HAMi's own scheduler and nodes, and keeps it waiting where they are gone. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion

_LABEL: Final = ("gpu", "on")
"""Of nodes with HAMi's device plugin, by default (charts/hami/values.yaml, devicePlugin.nvidianodeSelector)."""
_MOST: Final = 32
"""Terms, and expressions of each, that are looked at."""


def is_hamis(scheduler: object) -> bool:
    """Whether a schedulerName is HAMi's; its chart puts the release's name before it."""
    return isinstance(scheduler, str) and "hami" in scheduler.lower().split("-")


def leftovers(spec: Mapping[str, Any], rules: Conversion, where: str) -> Iterator[str]:
    """What a pod with GPUs says to HAMi's parts only, in words.

    Args:
        spec: The pod's.
        rules: Which scheduler is replaced.
        where: As for `convert`.
    """
    scheduler = spec.get("schedulerName")
    if is_hamis(scheduler) and scheduler != rules.replace_scheduler:
        yield (
            f"{where}spec.schedulerName: {quoted(scheduler)} is kept, and once HAMi is gone the pod waits for ever: leave it "
            "out, or set HAMI_REPLACE_SCHEDULER (--replace-scheduler) to it"
        )
    for path in _selected(spec):
        yield (
            f"{where}spec.{path}: gpu=on labels nodes with HAMi's device plugin; where that is gone no node has it, and the pod "
            "waits for ever: leave it out"
        )


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    key, value = _LABEL
    if fields.at(spec, "nodeSelector", key) == value:
        yield f"nodeSelector[{key}]"
    path = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    for number, term in enumerate(fields.sequence(fields.at(spec, *path.split(".")))[:_MOST]):
        for index, expression in enumerate(fields.sequence(fields.at(term, "matchExpressions"))[:_MOST]):
            found = [fields.at(expression, field) for field in ("key", "operator", "values")]
            if found == [key, "In", [value]]:
                yield f"{path}[{number}].matchExpressions[{index}]"
