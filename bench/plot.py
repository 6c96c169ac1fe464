"""Curves on logarithmic axes as an SVG that can be read on light and on dark pages. Pure."""

import html
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.figures import Figure

_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 16, 52
"""Margins; on the right the names of the curves."""
_LINE: Final = 16
"""Height of a name."""
_COLOURS: Final = (("#0969da", "#58a6ff"), ("#1a7f37", "#3fb950"), ("#cf222e", "#ff7b72"), ("#8250df", "#bc8cff"))
"""On light and on dark; after the last one the first again, dashed."""
_STYLE: Final = """
text { font: 12px sans-serif; fill: #1f2328 } .page { fill: #ffffff } .grid { stroke: #d1d9e0 }
polyline { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 5 4 }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic one.

    Attributes:
        name: With the unit.
        first, last: What it reaches from and to, above 0.
    """

    name: str
    first: float
    last: float

    def part(self, value: float) -> float:
        """Where a value is, from 0 at the first to 1 at the last."""
        return math.log(value / self.first) / math.log(self.last / self.first)

    def ticks(self) -> list[float]:
        """The powers of ten on it."""
        exponents = range(math.ceil(math.log10(self.first) - 1e-9), math.floor(math.log10(self.last) + 1e-9) + 1)
        return [10.0**exponent for exponent in exponents]


@dataclass(frozen=True, slots=True)
class Curve:
    """A name, and points from left to right."""

    name: str
    points: Sequence[tuple[float, float]]


def curves(figures: Sequence[Figure]) -> list[Curve]:
    """One for each name, of the medians."""
    points: dict[str, list[tuple[float, float]]] = {}
    for figure in figures:
        if figure.at is not None:
            points.setdefault(figure.name, []).append((figure.at, figure.p50))
    return [Curve(name, sorted(found)) for name, found in points.items()]


def svg(across: Axis, up: Axis, drawn: Sequence[Curve]) -> str:
    """The picture, with each curve's name at its end."""
    places = [[(_x(across, x), _y(up, y)) for x, y in curve.points] for curve in drawn]
    heights = apart([found[-1] for found in places], _LINE)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{html.escape(up.name)}, by {html.escape(across.name)}</title>",
        f"<style>{_STYLE}{_colours()}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>',
        *_axes(across, up),
        *itertools.chain.from_iterable(
            _curve(index, curve.name, found, height)
            for index, (curve, found, height) in enumerate(zip(drawn, places, heights, strict=True))
        ),
        "</svg>\n",
    ]
    return "\n".join(parts)


def apart(ends: Sequence[tuple[float, float]], least: float) -> list[float]:
    """How high the names at the ends of curves are: as these, but of those above one another, moved down if too close."""
    heights, lowest = [y for _, y in ends], dict[float, float]()
    for index in sorted(range(len(ends)), key=lambda index: heights[index]):
        x, y = ends[index]
        heights[index] = lowest[x] = max(y, lowest.get(x, -math.inf) + least)
    return heights


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.part(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.part(value) * (_HEIGHT - _TOP - _BOTTOM)


def _axes(across: Axis, up: Axis) -> Iterator[str]:
    floor, end = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in across.ticks():
        x = f"{_x(across, tick):.1f}"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{floor}"/>'
        yield f'<text x="{x}" y="{floor + 18}" text-anchor="middle">{tick:,g}</text>'
    for tick in up.ticks():
        y = _y(up, tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
    middle = (_TOP + floor) / 2
    yield f'<text x="{(_LEFT + end) / 2}" y="{floor + 40}" text-anchor="middle">{html.escape(across.name)}</text>'
    turned = f"rotate(-90 16 {middle})"
    yield f'<text x="16" y="{middle}" text-anchor="middle" transform="{turned}">{html.escape(up.name)}</text>'


def _curve(index: int, name: str, places: Sequence[tuple[float, float]], height: float) -> Iterator[str]:
    colour, dashed = f"c{index % len(_COLOURS)}", " dashed" if index >= len(_COLOURS) else ""
    yield f'<polyline class="{colour}{dashed}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    yield from (f'<circle class="{colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    yield f'<text class="{colour} name" x="{places[-1][0] + 10:.1f}" y="{height + 4:.1f}">{html.escape(name)}</text>'


def _colours() -> str:
    light, dark = ("".join(_rules(index, pair[side]) for index, pair in enumerate(_COLOURS)) for side in (0, 1))
    page = "text { fill: #e6edf3 } .page { fill: #0d1117 } .grid { stroke: #30363d }"
    return f"{light}@media (prefers-color-scheme: dark) {{ {page} {dark}}}"


def _rules(index: int, colour: str) -> str:
    return f".c{index} {{ stroke: {colour} }} .c{index}.dot, .c{index}.name {{ fill: {colour}; stroke: none }}\n"
