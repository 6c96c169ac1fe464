"""How many ResourceClaimTemplates the webhook keeps, and whether unused ones go. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.cluster.templates import last_used
from hami_kubeletplugin.webhook.doctor.installed import few

_NEAR: Final = 0.8
"""Of the limit."""
_SLACK: Final = 7
"""Lifetimes after which a template should long be gone: who still names one keeps it, so this many is no proof."""
_templates = partial(Finding, check="templates")


def templates(found: Iterable[Mapping[str, Any]], now: datetime, *, most: int, lifetime: float) -> Iterator[Finding]:
    """How many there are.

    Args:
        found: The webhook's, of all namespaces.
        now: The time.
        most: That the webhook makes in one namespace (HAMI_MAX_NAMESPACE_TEMPLATES).
        lifetime: Seconds for which it keeps an unused one (HAMI_TEMPLATE_LIFETIME).
    """
    count: Counter[str] = Counter()
    old: Counter[str] = Counter()
    for each in found:
        namespace = str(fields.at(each, "metadata", "namespace"))
        count[namespace] += 1
        used = last_used(each)
        old[namespace] += used is not None and now - used > timedelta(seconds=lifetime) * _SLACK
    full = [f"{namespace} ({number})" for namespace, number in count.items() if number >= most * _NEAR]
    if full:
        yield _templates(
            level=Level.warning,
            what=f"namespaces have nearly {most} templates, or so many: {few(full)}",
            why="pods that need one more are refused: HAMI_MAX_NAMESPACE_TEMPLATES of the webhook",
            mend="kubectl get resourceclaimtemplates -A -l app.kubernetes.io/managed-by=hami-webhook",
        )
    if total := sum(old.values()):
        yield _templates(
            level=Level.hint,
            what=f"{total} templates are unused for {_SLACK} lifetimes, in {few(each for each in old if old[each])}",
            why="a Deployment of 0 replicas may name them, or no webhook runs that removes them",
            mend="kubectl -n hami-system logs deploy/hami-webhook",
        )
    if not full:
        yield _templates(
            level=Level.ok, what=f"{sum(count.values())} templates of the webhook in {len(count)} namespaces"
        )
