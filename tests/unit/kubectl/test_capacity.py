"""Amounts are rounded and refused as the scheduler does, and written exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.kube import quantity
from hami_kubeletplugin.kubectl.capacity import Capacity, amount, canonical, capacities, shown
from tests.unit.kubectl.objects import a100s

WHOLE = st.integers(0, 1000)


@given(total=WHOLE, least=WHOLE, step=st.integers(1, 50) | st.fractions("1/100", 3, max_denominator=100), wanted=WHOLE)
def test_ranges(total: int, least: int, step: int | Fraction, wanted: int) -> None:
    """Of a range with steps a request takes the smallest amount that is allowed and no less than what it names."""
    has = Capacity(total, least=least, step=step)
    taken = has.consumed_by(wanted)
    assert taken >= max(wanted, least)
    assert has.allows(taken)
    assert not (taken - step >= max(wanted, least))


@given(values=st.lists(WHOLE, min_size=1, max_size=10, unique=True), wanted=WHOLE)
def test_values(values: list[int], wanted: int) -> None:
    """Of listed values it takes the next, and more than the largest is refused."""
    has = Capacity(1000, values=tuple(sorted(values)))
    taken = has.consumed_by(wanted)
    assert has.allows(taken) == (wanted <= max(values))
    assert taken == min([value for value in values if value >= wanted], default=wanted)


@pytest.mark.parametrize(
    ("name", "wanted", "taken", "allowed"),
    [
        ("memory", None, 40 << 30, True),
        ("memory", 1, 1 << 20, True),
        ("memory", (5 << 20) + 1, 6 << 20, True),
        ("cores", None, 0, True),
        ("cores", 30, 30, True),
        ("cores", 101, 101, False),
        ("shares", None, 1000, True),
        ("shares", 1, 1000, True),
        ("shares", 1500, 10_000, True),
        ("shares", 10_001, 10_001, False),
    ],
)
def test_what_we_publish(name: str, wanted: int | None, taken: int, allowed: bool) -> None:
    """A GPU's published policies give what was seen of the scheduler of 1.37.2: defaults, steps, slots, largest amounts."""
    has = capacities(a100s(1)[0])[name]
    assert has.consumed_by(wanted) == taken
    assert has.allows(taken) == allowed


@given(st.integers(0, (1 << 63) - 1))
def test_written_as_it_is(value: int) -> None:
    """What is written for programs is the same amount when it is read again."""
    for name in ("memory", "cores"):
        assert quantity.parse(canonical(name, value)) == value


@pytest.mark.parametrize("strange", ["9" * 200, "1e999", "-1", "x", "", None, True, [1], {"a": 1}, "1" * 300, 10**80])
def test_strange_amounts(strange: object) -> None:
    """What is no amount, or none that a device can have, is taken for none."""
    assert amount(strange) is None
    assert capacities({"capacity": {"memory": {"value": strange}}}) == {}


def test_for_people() -> None:
    """Memory is shown in Gi or Mi, the rest as plain numbers, fractions too."""
    assert [shown("memory", value << 20) for value in (0, 4000, 4096)] == ["0Mi", "4000Mi", "4Gi"]
    assert (shown("memory", 1 << 19), shown("cores", 30), shown("cores", Fraction(1, 3))) == ("0.5Mi", "30", "0.333")
    assert canonical("cores", Fraction(1, 3)) == "334m"
