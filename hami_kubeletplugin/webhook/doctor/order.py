"""Who else changes pods when they are created, and which namespaces are left out. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.configuration import PODS
from hami_kubeletplugin.webhook.doctor.installed import few

HAMI: Final = "vgpu.hami.io"
"""HAMi's own entry: charts/hami/templates/scheduler/webhook.yaml."""
Json = Mapping[str, Any]
_order = partial(Finding, check="order")


def order(configurations: Sequence[Json]) -> Iterator[Finding]:
    """Mutating webhooks for pods that come after ours, and HAMi's own.

    They are called in the order of the configurations' names, and again, where `reinvocationPolicy` says so, only those that
    were called before: k8s.io/apiserver pkg/admission/configuration/mutating_webhook_manager.go.
    """
    ours = [_name(each) for each in configurations if PODS in _entries(each)]
    if not ours:
        return
    later = {
        _name(each): [name for name, entry in _entries(each).items() if _for_new_pods(entry)]
        for each in configurations
        if _name(each) > max(ours)
    }
    late = {name: entries for name, entries in later.items() if entries}
    if late:
        yield _order(
            level=Level.warning,
            what=f"{few(late)} are called for pods after {max(ours)}",
            why="if one puts a GPU into a pod that named none, nobody converts it, and the pod waits for ever",
            mend=f"kubectl get mutatingwebhookconfiguration {min(late)} -o yaml   # give it a name that sorts before {max(ours)}",
        )
    else:
        yield _order(level=Level.ok, what=f"{max(ours)} is the last that is called for new pods")
    yield from _hamis(configurations)


def _hamis(configurations: Sequence[Json]) -> Iterator[Finding]:
    for each in configurations:
        if HAMI in _entries(each):
            yield Finding(
                check="conflicts",
                level=Level.warning,
                what=f"HAMi's own webhook, {_name(each)}, looks at the same pods",
                why="it gives GPU pods hami-scheduler; how both live in one cluster: docs/migrating-from-hami.md",
                mend=f"kubectl delete mutatingwebhookconfiguration {_name(each)}   # when HAMi has no nodes",
            )


def left_out(namespaces: Sequence[Json]) -> Iterator[Finding]:
    """Namespaces whose pods are not converted."""
    ignored = [_name(each) for each in namespaces]
    if ignored:
        yield _order(
            level=Level.hint,
            what=f"pods of {few(ignored)} are not converted: their namespaces have the label {names.IGNORE_LABEL}=ignore",
            mend=f"kubectl label namespace {ignored[0]} {names.IGNORE_LABEL}-",
        )


def _name(obj: Json) -> str:
    return str(fields.at(obj, "metadata", "name"))


def _entries(configuration: Json) -> dict[str, Json]:
    return {str(entry.get("name")): entry for _, entry in fields.mappings(configuration.get("webhooks"))}


def _for_new_pods(entry: Json) -> bool:
    return any(
        {"", "*"} & set(map(str, fields.sequence(rule.get("apiGroups"))))
        and {"pods", "*", "*/*"} & set(map(str, fields.sequence(rule.get("resources"))))
        and {"CREATE", "*"} & set(map(str, fields.sequence(rule.get("operations"))))
        for _, rule in fields.mappings(entry.get("rules"))
    )
