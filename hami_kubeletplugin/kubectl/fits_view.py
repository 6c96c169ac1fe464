"""Where something fits, as a table for people and JSON for programs. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hami_kubeletplugin.kubectl.capacity import shown
from hami_kubeletplugin.kubectl.fits import Lack, consumption, lacks, summed, times
from hami_kubeletplugin.kubectl.inventory import Gpu, Inventory
from hami_kubeletplugin.kubectl.pools import Pool
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.usage_view import written
from hami_kubeletplugin.kubectl.wanted import Want
from hami_kubeletplugin.program import table


@dataclass(frozen=True, slots=True)
class Answer:
    """Where it fits.

    Attributes:
        want: What was asked.
        there: GPUs that have room, each with how often it would fit.
        lacking: All others, with what is missing.
        few: Nodes on which GPUs have room, but not so many as are wanted, and how many have.
    """

    want: Want
    there: list[tuple[Pool, Gpu, int]]
    lacking: list[tuple[Gpu, list[Lack]]]
    few: dict[str, int]


def answer(found: Inventory, want: Want) -> Answer:
    """Look at each GPU; several GPUs have to be on one node."""
    there: list[tuple[Pool, Gpu, int]] = []
    lacking: list[tuple[Gpu, list[Lack]]] = []
    few: dict[str, int] = {}
    for pool, gpus in found.pools:
        missing = [(gpu, lacks(gpu, want)) for gpu in gpus]
        fitting = [(pool, gpu, times(gpu, want)) for gpu, what in missing if not what]
        lacking += [(gpu, what) for gpu, what in missing if what]
        if len(fitting) >= (want.count or 1):
            there += fitting
        elif fitting:
            few[pool.node or pool.name] = len(fitting)
    return Answer(want, there, lacking, few)


def text(given: Answer, *, wide: bool) -> str:
    """A table of the GPUs that have room; wide: of the others, too, with what is missing."""
    rows = [["NODE", "GPU", "TIMES", "WOULD CONSUME"]] if given.there else []
    for pool, gpu, often in given.there:
        taken = ", ".join(
            f"{name} {shown(name, value)}" for name, value in consumption(given.want, gpu.capacity).items()
        )
        rows.append([printable(pool.node or pool.name, 253), printable(gpu.name, 63), str(often), printable(taken)])
    parts = [table(rows)] if rows else []
    if wide and given.lacking:
        others = [["NODE", "GPU", "MISSING"]]
        others += [
            [
                printable(gpu.pool.node or gpu.pool.name, 253),
                printable(gpu.name, 63),
                "; ".join(lack.text for lack in missing),
            ]
            for gpu, missing in given.lacking
        ]
        parts.append(table(others))
    return "\n\n".join(parts)


def notes(given: Answer) -> Iterator[str]:
    """What is to be said besides: where it doesn't fit, and why."""
    if given.few:
        most = max(given.few.values())
        yield f"nodes with room on too few GPUs: {len(given.few)}; {most} GPUs at the most, and {given.want.count} are wanted"
    if given.lacking:
        reasons = ", ".join(f"{what} on {count}" for what, count in summed(given.lacking).items())
        yield f"GPUs without room: {len(given.lacking)}; {reasons}"
    if not given.there:
        yield "it fits nowhere now"


def as_json(given: Answer) -> dict[str, Any]:
    """All of it."""
    return {
        "wanted": {**written(given.want.amounts), "count": given.want.count},
        "fits": [
            {
                "nodeName": pool.node,
                "poolName": pool.name,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "times": often,
                "consumes": written(consumption(given.want, gpu.capacity)),
            }
            for pool, gpu, often in given.there
        ],
        "tooFew": given.few,
        "lacking": [
            {"poolName": gpu.pool.name, "name": gpu.name, "missing": [lack._asdict() for lack in missing]}
            for gpu, missing in given.lacking
        ],
    }
