"""Taints of GPUs: those of their driver, those that rules add, and who tolerates them. Pure.

Contract: resource.k8s.io/v1 DeviceTaint, DeviceToleration, DeviceTaintRule; KEP-5055.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.kubectl.printable import printable

KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects with which nothing new is put on a GPU; others only tell something."""


class Taint(NamedTuple):
    """One taint."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return printable(f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}", 256)


class Rule(NamedTuple):
    """A DeviceTaintRule, of which what isn't said matches all."""

    driver: str | None
    pool: str | None
    device: str | None
    taint: Taint


def rules(objects: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """From DeviceTaintRules; one without any selector matches nothing."""
    found = []
    for rule in objects:
        selector = fields.at(rule, "spec", "deviceSelector")
        if isinstance(selector, Mapping):
            driver, pool, device = (selector.get(field) for field in ("driver", "pool", "device"))
            found.append(Rule(driver, pool, device, _taint(fields.mapping(fields.at(rule, "spec", "taint")))))
    return found


def of(device: Mapping[str, Any], driver: str, pool: str, known: Sequence[Rule]) -> tuple[Taint, ...]:
    """The taints of a device."""
    own = [_taint(taint) for _, taint in fields.mappings(device.get("taints"))]
    return (*own, *_added(device.get("name"), driver, pool, known))


def _added(device: object, driver: str, pool: str, known: Sequence[Rule]) -> Iterator[Taint]:
    for rule in known:
        if rule.driver in (None, driver) and rule.pool in (None, pool) and rule.device in (None, device):
            yield rule.taint


def in_the_way(taints: Iterable[Taint], tolerations: Sequence[Mapping[str, Any]]) -> list[Taint]:
    """Those that keep a request away."""
    return [
        taint
        for taint in taints
        if taint.effect in KEEPS_AWAY and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect not in ("", taint.effect) or key not in ("", taint.key):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == taint.value


def _taint(given: Mapping[str, Any]) -> Taint:
    return Taint(*(str(given.get(field) or "") for field in ("key", "value", "effect")))
