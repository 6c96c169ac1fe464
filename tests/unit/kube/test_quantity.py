"""kube.quantity: what the API server writes, exactly."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.kube import quantity

SUFFIXES: dict[str, Fraction | int] = {
    "": 1,
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40Gi", 40 * 2**30),
        ("1k", 1000),
        ("4000Mi", 4000 * 2**20),
        ("0.5", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1.5E-2", Fraction(3, 200)),
        ("100m", Fraction(1, 10)),
        ("+5", 5),
        ("-5Ki", -5120),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("0.1Gi", Fraction(2**30, 10)),
    ],
)
def test_known_forms_are_exact(text: str, value: Fraction) -> None:
    """Each form of the Kubernetes documentation gives exactly its value, without a float in between."""
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "Gi", "1 Gi", " 1", "1gi", "1K", "1e", "1e1.5", "0x10", "1,5", "\u0661", "1e99999999", "NaN", "1" * 300],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """Anything else is a ValueError that shows the text, also numbers so large that they would eat the memory."""
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        quantity.parse(text)


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.sampled_from(sorted(SUFFIXES)))
def test_value_is_number_times_suffix(whole: int, decimals: int, suffix: str) -> None:
    """A decimal number with any suffix is that number times the suffix."""
    number = f"{whole}.{decimals:06}"
    assert quantity.parse(number + suffix) == Fraction(number) * SUFFIXES[suffix]


@given(st.text(max_size=20))
def test_any_text_gives_a_value_or_value_error(text: str) -> None:
    """No text raises anything but ValueError."""
    with suppress(ValueError):
        assert isinstance(quantity.parse(text), Fraction)


@given(st.integers(0, 2**63))
def test_canonical_texts_read_back_the_same(value: int) -> None:
    """What we write is read back as the same number, in both scales."""
    assert quantity.parse(quantity.binary(value)) == value
    assert quantity.parse(quantity.decimal(value)) == value


def test_canonical_texts_are_the_servers() -> None:
    """We write the largest suffix that leaves a whole number, as the API server does, so nothing looks changed."""
    assert [quantity.binary(n) for n in (0, 2**20, 40 * 2**30, 81559 * 2**20)] == ["0", "1Mi", "40Gi", "81559Mi"]
    assert [quantity.decimal(n) for n in (0, 100, 1000, 2500, 10000)] == ["0", "100", "1k", "2500", "10k"]
