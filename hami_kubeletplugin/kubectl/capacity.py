"""Amounts of capacities: read from objects, rounded as the scheduler rounds what is asked for, written for people. Pure.

Contract: k8s.io/dynamic-resource-allocation structured/internal/incubating/consumable_capacity.go (1.37.2), KEP-5075.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.kube import quantity

Amounts = Mapping[str, Fraction]
"""By the capacity's name. Memory in bytes, cores in percent, shares in slots."""

_BEYOND: Final = 1 << 63
"""No quantity of a real device gets here; a number of a thousand digits is no answer."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a device has of something.

    Attributes:
        total: All of it.
        policy: The published requestPolicy; empty: none.
    """

    total: Fraction
    policy: Mapping[str, Any]

    def consumed_by(self, wanted: Fraction | None) -> Fraction:
        """What a request takes of it.

        Args:
            wanted: What it names; None: nothing, so that the policy's default counts, or else all of it.
        """
        if wanted is None:
            default = amount(self.policy.get("default"))
            return self.total if default is None else default
        least, _, step = self._range
        if least is not None:
            if wanted <= least:
                return least
            return least + math.ceil((wanted - least) / step) * step if step else wanted
        return min((value for value in self._values if value >= wanted), default=wanted)

    def allows(self, consumed: Fraction) -> bool:
        """Whether the policy lets one request take so much."""
        if not self.policy or consumed == amount(self.policy.get("default")):
            return True
        least, most, step = self._range
        if least is not None:
            return not (most is not None and consumed > most) and not (step and (consumed - least) % step)
        return not self._values or consumed in self._values

    @property
    def most(self) -> Fraction:
        """The most that one request may take."""
        bounds = (self.total, self._range[1], max(self._values, default=None))
        return min(bound for bound in bounds if bound is not None)

    @property
    def _range(self) -> tuple[Fraction | None, Fraction | None, Fraction | None]:
        given = fields.mapping(self.policy.get("validRange"))
        return amount(given.get("min")), amount(given.get("max")), amount(given.get("step"))

    @property
    def _values(self) -> list[Fraction]:
        return amounts_of(self.policy.get("validValues"))


def capacities(device: Mapping[str, Any]) -> dict[str, Capacity]:
    """Those of a device, as far as they can be read."""
    found = {}
    for name, given in fields.mapping(device.get("capacity")).items():
        if (total := amount(fields.at(given, "value"))) is not None:
            found[name] = Capacity(total, fields.mapping(fields.at(given, "requestPolicy")))
    return found


def amount(given: object) -> Fraction | None:
    """A quantity that is none too large; None for all else."""
    if given is None or isinstance(given, bool):
        return None
    try:
        value = quantity.parse(given if isinstance(given, str) else str(given)[:64])
    except ValueError:
        return None
    return value if 0 <= value < _BEYOND else None


def amounts_of(given: object) -> list[Fraction]:
    """Those of a list that can be read."""
    return [value for value in map(amount, fields.sequence(given)) if value is not None]


def canonical(name: str, value: Fraction) -> str:
    """As the API server writes it: for programs."""
    if value.denominator != 1:
        return f"{math.ceil(value * 1000)}m"
    return quantity.binary(int(value)) if name == names.MEMORY else quantity.decimal(int(value))


def shown(name: str, value: Fraction) -> str:
    """For people: memory in Gi or Mi, other amounts as plain numbers."""
    if name != names.MEMORY:
        return str(int(value)) if value.denominator == 1 else f"{float(value):.3f}"
    mib = value / names.MIB
    if mib.denominator != 1:
        return f"{float(mib):.1f}Mi"
    return f"{int(mib) // 1024}Gi" if mib and mib % 1024 == 0 else f"{int(mib)}Mi"
