"""Kubernetes quantities, exactly: `40Gi`, `1k`, `4000Mi`, `0.5`, `1e3`, `100m`.

Contract: k8s.io/apimachinery pkg/api/resource/quantity.go. Fractions instead of floats, since a limit that is rounded on
the way is not the one that was allocated.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]{1,3}))"
)
_LONGEST: Final = 256


@lru_cache(256)
def parse(text: str) -> Fraction:
    """The exact value of a quantity.

    Raises:
        ValueError: Not a quantity. The text is short and names what was given.
    """
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError(f"{text[:_LONGEST]!r} is not a Kubernetes quantity such as 4000Mi, 40Gi, 30 or 0.5")
    number, suffix, exponent = Fraction(found["number"]), found["suffix"] or "", found["exponent"]
    if exponent is not None:
        return number * _power_of_ten(int(exponent))
    if suffix in _DECIMAL:
        return number * _power_of_ten(_DECIMAL[suffix])
    return number * (1 << 10 * _BINARY.index(suffix))


def binary(value: int) -> str:
    """The canonical text of a number of bytes, as the API server writes it back: 42949672960 is `40Gi`."""
    return _shortest(value, 1024, _BINARY)


def decimal(value: int) -> str:
    """The canonical text of a count: 10000 is `10k`."""
    return _shortest(value, 1000, ("", "k", "M", "G", "T", "P", "E"))


def _power_of_ten(exponent: int) -> Fraction:
    return Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)


def _shortest(value: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while value and value % base == 0 and power + 1 < len(suffixes):
        value, power = value // base, power + 1
    return f"{value}{suffixes[power]}"
