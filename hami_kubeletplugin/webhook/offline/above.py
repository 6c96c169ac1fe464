"""Annotations and labels for pods that stand above the pod template, where nobody reads them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.webhook.conversion.annotations import KNOWN
from hami_kubeletplugin.webhook.conversion.convert import IGNORE
from hami_kubeletplugin.webhook.offline.manifest import Path

AMOUNT: Final = "has no effect: amounts belong in resources.limits of a container"
"""What is said of one among annotations."""


def is_annotation(path: Path) -> bool:
    """Whether an annotation is there, of whatever object."""
    return [*path[-3:-1]] == ["metadata", "annotations"]


def above_the_pod(document: Any, path: Path) -> Iterator[str]:
    """What the objects around a pod template say in their own metadata and it does not, in words; nothing for a pod.

    Args:
        document: All of it.
        path: To the pod template.
    """
    around = list(_around(document, path))
    metadata = fields.mapping(around.pop()[1]) if around else {}
    own = {kind: fields.mapping(metadata.get(kind)) for kind in ("annotations", "labels")}
    if not path or own["labels"].get(names.IGNORE_LABEL) == IGNORE:
        return
    there = dotted(path)
    for where, outer in around:
        annotations, labels = (fields.mapping(fields.at(outer, kind)) for kind in ("annotations", "labels"))
        for name in KNOWN:
            if name in annotations and name not in own["annotations"]:
                yield f"{where}metadata.annotations[{name}] has no effect: it belongs in {there}.metadata.annotations"
        if labels.get(names.IGNORE_LABEL) == IGNORE:
            yield f"{where}metadata.labels[{names.IGNORE_LABEL}] has no effect: it belongs in {there}.metadata.labels"


def _around(document: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """The metadata of all objects on the way to `path`, and of what is there, each with the beginning of its field path."""
    value = document
    for number in range(len(path) + 1):
        if isinstance(value, Mapping):
            start = dotted(path[:number])
            yield f"{start}." if start else "", value.get("metadata")
        if number < len(path):
            value = value[path[number]]


def dotted(path: Path) -> str:
    """A field path as messages have it: `spec.template`, `items[0]`, `limits[nvidia.com/gpu]`."""
    steps = (f".{step}" if str(step).isidentifier() else f"[{step}]" for step in path)
    return "".join(steps).removeprefix(".")
