"""Curves of the bench, as a picture."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import Figure
from bench.plot import Axis, Curve, apart, curves, svg

ACROSS, UP = Axis("pods", 1, 1000), Axis("seconds", 0.01, 100)


def test_equal_factors_are_equal_distances() -> None:
    """An axis is logarithmic: from 1 to 10 it is as far as from 10 to 100."""
    assert [ACROSS.part(value) for value in (1, 10, 100, 1000)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_ticks_are_powers_of_ten_on_the_axis() -> None:
    """Only those that lie on it, both ends among them."""
    assert UP.ticks() == [0.01, 0.1, 1, 10, 100]
    assert Axis("odd", 0.5, 300).ticks() == [1, 10, 100]


def test_figures_of_a_name_are_a_curve_of_medians() -> None:
    """From left to right, whatever the order of figures; those that are no point of a curve are left out."""
    figures = [
        Figure("GPU", "s", [9.0], at=10),
        Figure("memory", "MB", [80.0]),
        Figure("GPU", "s", [3.0, 1.0, 2.0], at=1),
        Figure("plain", "s", [1.0], at=1),
    ]
    assert curves(figures) == [Curve("GPU", [(1, 2.0), (10, 9.0)]), Curve("plain", [(1, 1.0)])]


@given(st.lists(st.floats(0, 400), max_size=8))
def test_names_do_not_cover_each_other(heights: list[float]) -> None:
    """Moved names are at least a line apart, never above where they belong, and in the same order."""
    moved = apart([(700, height) for height in heights], 16)
    assert all(after >= before for before, after in zip(heights, moved, strict=True))
    ordered = sorted(moved)
    assert all(below - above > 16 - 1e-6 for above, below in pairwise(ordered))
    places = sorted(range(len(heights)), key=lambda index: heights[index])
    assert sorted(places, key=lambda index: moved[index]) == places


def test_names_of_curves_that_end_elsewhere_stay() -> None:
    """Only what is above one another could cover each other."""
    assert apart([(700, 50), (300, 52), (700, 55)], 16) == [50, 52, 66]


def test_a_picture_is_well_formed_and_shows_every_point() -> None:
    """XML with both axes' names and each curve's, escaped, and all points inside."""
    drawn = svg(ACROSS, UP, [Curve("GPU & <plain>", [(1, 0.01), (10, 1), (1000, 100)]), Curve("other", [(1, 1)])])
    root = ET.fromstring(drawn)
    texts = {element.text for element in root.iter() if element.tag.endswith("}text")}
    assert {"pods", "seconds", "GPU & <plain>", "other", "1,000", "0.01"} <= texts
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    dots = [element for element in root.iter() if element.tag.endswith("}circle")]
    assert len(dots) == 4
    for dot in dots:
        assert 0 < float(dot.attrib["cx"]) < width
        assert 0 < float(dot.attrib["cy"]) < height
    first, middle, last = (float(dot.attrib["cx"]) for dot in dots[:3])
    assert math.isclose(middle - first, (last - first) / 3, abs_tol=0.2)


def test_a_picture_has_colours_for_light_and_dark_pages() -> None:
    """Text and page are set for both, so no reader gets dark text on a dark page."""
    light, _, dark = svg(ACROSS, UP, [Curve("GPU", [(1, 1)])]).partition("prefers-color-scheme: dark")
    for style in (light, dark):
        assert re.search(r"text \{[^}]*fill: #", style)
        assert re.search(r"\.page \{[^}]*fill: #", style)
        assert ".c0.name { fill: #" in style
