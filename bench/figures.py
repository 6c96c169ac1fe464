"""Samples and what is said about them."""

import math
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result.

    Attributes:
        name: What was measured.
        unit: Of the samples and aims.
        samples: At least one.
        p50_aim, p99_aim: Limits; with `at_least` the other way round. None = for comparison only.
        at: For a point of a curve, where it is, such as a number of pods; the curve is all figures of that name.
    """

    name: str
    unit: str
    samples: Sequence[float]
    p50_aim: float | None = None
    p99_aim: float | None = None
    at_least: bool = False
    at: float | None = None

    @property
    def p50(self) -> float:
        """The median."""
        return percentile(self.samples, 0.50)

    @property
    def p99(self) -> float:
        """What one of a hundred exceeds."""
        return percentile(self.samples, 0.99)

    @property
    def met(self) -> bool | None:
        """Whether all aims are met; None if there are none."""
        aims = [(self.p50, self.p50_aim), (self.p99, self.p99_aim)]
        held = [value >= aim if self.at_least else value <= aim for value, aim in aims if aim is not None]
        return all(held) if held else None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            **({} if self.at is None else {"at": self.at}),
            "unit": self.unit,
            "samples": len(self.samples),
            "p50": round(self.p50, 4),
            "p99": round(self.p99, 4),
            "min": round(min(self.samples), 4),
            "max": round(max(self.samples), 4),
            "aim": {
                "p50": self.p50_aim,
                "p99": self.p99_aim,
                "at_least": self.at_least,
                "met": self.met,
            },
        }


class Watch:
    """A stopwatch for several laps, in milliseconds."""

    def __init__(self) -> None:
        self.laps: list[float] = []

    @asynccontextmanager
    async def lap(self) -> AsyncIterator[None]:
        """Time the block; one that fails is no lap."""
        started = time.perf_counter()
        yield
        self.laps.append((time.perf_counter() - started) * 1000)


def say(text: str) -> None:
    """Progress, for people."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def percentile(samples: Sequence[float], part: float) -> float:
    """The smallest sample that at least this part of all samples does not exceed (nearest rank)."""
    return sorted(samples)[max(0, math.ceil(part * len(samples)) - 1)]


def table(figures: Sequence[Figure]) -> str:
    """For people."""
    rows = [("", "p50", "p99", "unit", "n", "aim", "")]
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        aims = [
            f"{label} {sign} {aim:g}"
            for label, aim in (("p50", figure.p50_aim), ("p99", figure.p99_aim))
            if aim is not None
        ]
        single = len(figure.samples) == 1
        verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
        rows.append(
            (
                figure.name if figure.at is None else f"{figure.name}: {figure.at:g}",
                f"{figure.p50:.2f}",
                "" if single else f"{figure.p99:.2f}",
                figure.unit,
                str(len(figure.samples)),
                ", ".join(aims).replace("p50 ", "" if single else "p50 "),
                verdict,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = (False, True, True, False, True, False, False)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    )


def document(conditions: dict[str, Any], figures: Sequence[Figure]) -> dict[str, Any]:
    """All of it, as JSON has it."""
    return {"conditions": conditions, "figures": [figure.as_json() for figure in figures]}
