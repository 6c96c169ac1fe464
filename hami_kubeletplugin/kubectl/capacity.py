"""Amounts of capacities: read from objects, rounded as the scheduler rounds what is asked for, written for people. Pure.

Contract: k8s.io/dynamic-resource-allocation structured/internal/incubating/consumable_capacity.go (1.37.2), KEP-5075.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.kube import quantity

Amount = int | Fraction
"""Exact; an int where it is whole, as nearly all are: with fractions a cluster of 8,000 GPUs would take twice as long."""
Amounts = Mapping[str, Amount]
"""By the capacity's name. Memory in bytes, cores in percent, shares in slots."""

_BEYOND: Final = 1 << 63
"""No quantity of a real device gets here; a number of a thousand digits is no answer."""
_KINDS: Final = 1024
"""So many different capacities are known: nearly all GPUs of a cluster are alike."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a device has of something, and the published requestPolicy for it.

    Attributes:
        total: All of it.
        default: What a request gets that doesn't name it; None: all.
        least: The smallest of a range; None: there is no range.
        most: The largest of that; None: without a bound.
        step: From `least` on; None: anything between.
        values: Those that are allowed, if it is no range; none: any.
    """

    total: Amount
    default: Amount | None = None
    least: Amount | None = None
    most: Amount | None = None
    step: Amount | None = None
    values: tuple[Amount, ...] = ()

    def consumed_by(self, wanted: Amount | None) -> Amount:
        """What a request takes of it.

        Args:
            wanted: What it names; None: nothing.
        """
        if wanted is None:
            return self.total if self.default is None else self.default
        if self.least is not None:
            if wanted <= self.least:
                return self.least
            return self.least - (self.least - wanted) // self.step * self.step if self.step else wanted
        return min((value for value in self.values if value >= wanted), default=wanted)

    def allows(self, consumed: Amount) -> bool:
        """Whether the policy lets one request take so much."""
        if consumed == self.default:
            return True
        if self.least is not None:
            beyond = self.most is not None and consumed > self.most
            return not beyond and not (self.step and (consumed - self.least) % self.step)
        return not self.values or consumed in self.values

    @property
    def most_at_once(self) -> Amount:
        """The most that one request may take."""
        return min(bound for bound in (self.total, self.most, max(self.values, default=None)) if bound is not None)


def capacities(device: Mapping[str, Any]) -> dict[str, Capacity]:
    """Those of a device, as far as they can be read."""
    found = {}
    for name, given in fields.mapping(device.get("capacity")).items():
        if (total := amount(fields.at(given, "value"))) is not None:
            policy = fields.mapping(fields.at(given, "requestPolicy"))
            chosen = fields.mapping(policy.get("validRange"))
            found[name] = _capacity(
                total,
                amount(policy.get("default")),
                amount(chosen.get("min")),
                amount(chosen.get("max")),
                amount(chosen.get("step")),
                tuple(value for value in map(amount, fields.sequence(policy.get("validValues"))) if value is not None),
            )
    return found


_capacity = lru_cache(_KINDS)(Capacity)
"""Alike ones are one."""


def amount(given: object) -> Amount | None:
    """A quantity that is none too large; None for all else."""
    return _amount(given if isinstance(given, str) else "" if isinstance(given, bool) else str(given)[:64])


@lru_cache(_KINDS)
def _amount(text: str) -> Amount | None:
    try:
        value = quantity.parse(text)
    except ValueError:
        return None
    return (int(value) if value.denominator == 1 else value) if 0 <= value < _BEYOND else None


def canonical(name: str, value: Amount) -> str:
    """As the API server writes it: for programs."""
    if value.denominator != 1:
        return f"{-(-value * 1000 // 1)}m"
    return quantity.binary(int(value)) if name == names.MEMORY else quantity.decimal(int(value))


def shown(name: str, value: Amount) -> str:
    """For people: memory in Gi or Mi, other amounts as plain numbers."""
    if name != names.MEMORY:
        return str(value) if value.denominator == 1 else f"{float(value):.3f}"
    mib, rest = divmod(value, names.MIB)
    if rest:
        return f"{float(value) / names.MIB:.1f}Mi"
    return f"{mib // 1024}Gi" if mib and mib % 1024 == 0 else f"{mib}Mi"
