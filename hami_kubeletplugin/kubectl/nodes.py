"""Why a node doesn't take a pod, apart from GPUs: the reasons that can be told from the two objects alone. Pure.

Contract: kubernetes pkg/scheduler/framework/plugins: nodeunschedulable, tainttoleration, nodeaffinity. What isn't looked at (CPU
and memory, ports, volumes, pods' affinities, spreading) the scheduler's own message names.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.kubectl.printable import printable

Json = Mapping[str, Any]

_MOST: Final = 64
"""Terms, expressions, taints that are looked at."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def against(node: Json, pod: Json) -> Iterator[str]:
    """The reasons, in words."""
    spec, about = fields.mapping(pod.get("spec")), fields.mapping(node.get("spec"))
    tolerations = [each for _, each in islice(fields.mappings(spec.get("tolerations")), _MOST)]
    cordoned = about.get("unschedulable") is True
    if cordoned and not any(_tolerates(each, _UNSCHEDULABLE) for each in tolerations):
        yield "node is cordoned"
    for _, taint in islice(fields.mappings(about.get("taints")), _MOST):
        if cordoned and taint.get("key") == _UNSCHEDULABLE["key"]:
            continue
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(
            _tolerates(each, taint) for each in tolerations
        ):
            value = f"={taint['value']}" if taint.get("value") else ""
            yield printable(f"node has the taint {taint.get('key')}{value}:{taint.get('effect')}", 256)
    labels = fields.mapping(fields.at(node, "metadata", "labels"))
    for key, value in islice(fields.mapping(spec.get("nodeSelector")).items(), _MOST):
        if labels.get(key) != value:
            yield printable(f"node has not the label {key}={value} of its nodeSelector", 256)
    if not _affine(spec, labels, str(fields.at(node, "metadata", "name") or "")):
        yield "node is not what its nodeAffinity requires"


def selected(selector: object, labels: Json | None, name: str) -> bool:
    """Whether a NodeSelector (of a pod, a slice or an allocation) has a term that a node satisfies.

    Args:
        selector: It.
        labels: The node's; None: they are not known, and taken for what is wanted.
        name: The node's.
    """
    terms = islice(fields.mappings(fields.at(selector, "nodeSelectorTerms")), _MOST)
    return any(_term(term, labels, name) for _, term in terms)


def _affine(spec: Json, labels: Json, name: str) -> bool:
    path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    required = fields.at(spec, *path)
    return not isinstance(required, Mapping) or selected(required, labels, name)


def _term(term: Json, labels: Json | None, name: str) -> bool:
    by_name = [*_expressions(term, "matchFields", {"metadata.name": name})]
    if labels is None:
        return all(by_name)
    wanted = [*_expressions(term, "matchExpressions", labels), *by_name]
    return bool(wanted) and all(wanted)


def _expressions(term: Json, field: str, values: Json) -> Iterator[bool]:
    for _, expression in islice(fields.mappings(term.get(field)), _MOST):
        has, listed = values.get(str(expression.get("key"))), fields.sequence(expression.get("values"))
        match expression.get("operator"):
            case "In":
                yield has is not None and has in listed
            case "NotIn":
                yield has is None or has not in listed
            case "Exists":
                yield has is not None
            case "DoesNotExist":
                yield has is None
            case "Gt" | "Lt" as compared:
                left, right = _number(has), _number(listed[0] if listed else None)
                yield left is not None and right is not None and (left > right if compared == "Gt" else left < right)
            case _:
                yield True  # not known: not a reason


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and _INTEGER.fullmatch(text) else None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if (toleration.get("effect") or taint.get("effect")) != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return (toleration.get("key") or taint.get("key")) == taint.get("key")
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")
