"""How many templates there may be in a namespace, and how fast they may come: they outlive the pods they were made for.

Whoever may create pods has templates made, even where a quota then refuses the pod, and so does whoever reaches the webhook's
port. Rates are of bytes, since those are what fills etcd, and each namespace has its own beside that of all: one that uses its
own up leaves the others theirs. They are this replica's; the number in a namespace is that of the cluster.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import TooMany, TooSoon
from hami_kubeletplugin.api.webhook_settings import WebhookSettings

_KIB: Final = 1024
_EACH: Final = _KIB
"""Bytes that a template costs beside its spec: metadata, and its place in etcd."""
_WINDOW: Final = 120.0
"""Seconds; what a rate did not give in them is left to be given at once: after an upgrade many workloads come back together."""
_LONGEST_WAIT: Final = 10.0
"""Seconds after which clients that were refused try again at the latest."""
_MOST_NAMESPACES: Final = 1024
"""Whose rates are kept before those are looked for that are unused again."""


class _Bucket:
    """A rate, and what of it was not used. Filled when it is made."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._most = rate, rate * _WINDOW
        self._left, self._since = self._most, now

    def wait(self, size: float, now: float) -> float:
        """Seconds until so many bytes are there; more than it can ever hold are there when it is full."""
        return max(0.0, (min(size, self._most) - self._at(now)) / self._rate)

    def take(self, size: float, now: float) -> None:
        """Use up so many."""
        self._left, self._since = max(0.0, self._at(now) - size), now

    def is_full(self, now: float) -> bool:
        """Whether it is as if it were new."""
        return self._at(now) >= self._most

    def _at(self, now: float) -> float:
        return min(self._most, self._left + (now - self._since) * self._rate)


class Allowance:
    """What may be made.

    Args:
        settings: The bounds.
        clock: Seconds that only grow.
    """

    def __init__(self, settings: WebhookSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = settings.max_namespace_templates, clock
        self._rate = settings.namespace_template_rate * _KIB
        self._all = _Bucket(settings.template_rate * _KIB, clock())
        self._namespaces: dict[str, _Bucket] = {}

    def check(self, namespace: str, existing: int, more: int) -> None:
        """See that a namespace may have more templates than there are.

        Args:
            namespace: Its name.
            existing: Templates of ours in there.
            more: That a pod needs.

        Raises:
            TooMany: It may not.
        """
        if existing + more > self._most:
            label = f"{names.MANAGED_BY}={names.WEBHOOK}"
            raise TooMany(
                f"namespace {namespace} has {existing} ResourceClaimTemplates of {names.WEBHOOK}, this pod needs {more} more, "
                f"and there may be {self._most}: let pods ask for the same amounts, or for the same GPUs; delete templates "
                f"(kubectl -n {namespace} delete resourceclaimtemplates -l {label}: those that are still needed come back), or "
                "wait until unused ones are removed; or have an administrator raise --max-namespace-templates"
            )

    def take(self, namespace: str, sizes: Sequence[int]) -> None:
        """Use the rates up for templates of these bytes: all of them, or none.

        Raises:
            TooSoon: Too much was made a moment ago.
        """
        if not sizes:
            return
        now, total = self._clock(), sum(sizes) + _EACH * len(sizes)
        own = self._namespaces.get(namespace) or _Bucket(self._rate, now)
        for bucket, where, option in (
            (own, f"namespace {namespace}", "namespace-template-rate"),
            (self._all, "the cluster", "template-rate"),
        ):
            if seconds := bucket.wait(total, now):
                raise TooSoon(
                    f"too many ResourceClaimTemplates were made in {where} a moment ago: try again in "
                    f"{math.ceil(seconds)} s, or have an administrator raise --{option}",
                    max(1.0, min(seconds, _LONGEST_WAIT)),
                )
        for bucket in (own, self._all):
            bucket.take(total, now)
        self._namespaces[namespace] = own
        if len(self._namespaces) > _MOST_NAMESPACES:
            # Those of whom much is left are few: together they can't have used more than that of all.
            self._namespaces = {name: each for name, each in self._namespaces.items() if not each.is_full(now)}
