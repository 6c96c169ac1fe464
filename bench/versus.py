"""Ours and the reference in turns: what a driver costs beyond what any driver must do.

The same API server, claims and pods, and the same caller; who is first changes from turn to turn. So whatever else the machine
does meets both, and the ratios hold on a busy or slow machine too. The caller's own part is in both times: with a `prepare of no
claim` of half a millisecond, the true ratio is somewhat further from 1 than the measured one.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.caller import Caller
from bench.daemon import Driver, reference, running
from bench.figures import Figure, percentile, say
from bench.objects import NODES
from bench.process import Places
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.kube.resource_api import KubeClient

CALLERS: Final = 16
WARM: Final = 30
"""Calls that are not counted: connections, caches, the reference's first GETs."""
EMPTY: Final = 100
BATCHES: Final = 32
ROUNDS: Final = 6
"""Of all claims through all callers, for each."""


class Side:
    """One of the two, and what was measured of it.

    Attributes:
        driver: Its process.
        caller: Its caller.
        empty, prepare, unprepare, batch: Milliseconds of each call.
        rates: Claims per second of each round.
        cpu: Milliseconds of CPU time for a prepare and an unprepare; one number.
    """

    def __init__(self, driver: Driver, caller: Caller) -> None:
        self.driver, self.caller = driver, caller
        self.empty, self.prepare, self.unprepare = list[float](), list[float](), list[float]()
        self.batch, self.rates = list[float](), list[float]()
        self.cpu = 0.0

    def there_and_back(self, refs: Sequence[ClaimRef]) -> tuple[float, float]:
        """Prepare and unprepare in one call each."""
        return self.caller.prepare(refs), self.caller.unprepare(refs)


async def versus(
    kubeconfig: Path, places: Places, api: KubeClient, singles: Sequence[ClaimRef], pods: Sequence[Sequence[ClaimRef]]
) -> list[Figure]:
    """Every ratio.

    Args:
        kubeconfig: An administrator's, for both.
        places: Where they keep their files.
        api: The API server.
        singles: Claims with a pod each, allocated on the first node.
        pods: All claims of some pods there.
    """
    async with (
        running(kubeconfig, places, api, NODES[0], "a100x8", poll=1) as ours,
        reference(kubeconfig, places, NODES[0]) as theirs,
    ):
        with Caller(ours.socket) as our_caller, Caller(theirs.socket) as their_caller:
            sides = Side(ours, our_caller), Side(theirs, their_caller)
            await asyncio.to_thread(_take_turns, *sides, singles, pods)
        return _figures(*sides)


def _take_turns(ours: Side, theirs: Side, singles: Sequence[ClaimRef], pods: Sequence[Sequence[ClaimRef]]) -> None:
    for ref in singles[:WARM]:
        ours.there_and_back([ref])
        theirs.there_and_back([ref])
    say("ours and the reference in turns: single claims")
    for _ in range(EMPTY):
        ours.empty.append(ours.caller.prepare([]))
        theirs.empty.append(theirs.caller.prepare([]))
    with _cpu(ours, len(singles)), _cpu(theirs, len(singles)):  # neither does anything in the other's turns
        for number, ref in enumerate(singles):
            for side in _order(ours, theirs, number):
                prepare, unprepare = side.there_and_back([ref])
                side.prepare.append(prepare)
                side.unprepare.append(unprepare)
    _crowds(ours, theirs, singles, pods)


def _crowds(ours: Side, theirs: Side, singles: Sequence[ClaimRef], pods: Sequence[Sequence[ClaimRef]]) -> None:
    say(f"ours and the reference in turns: {len(pods[0])} claims in a call, {CALLERS} callers")
    for number in range(BATCHES):
        for side in _order(ours, theirs, number):
            side.batch.append(side.there_and_back(pods[number % len(pods)])[0])
    for number in range(ROUNDS):
        for side in _order(ours, theirs, number):
            side.rates.append(side.caller.prepare_by(CALLERS, singles))
            for start in range(
                0, len(singles), CALLERS
            ):  # a kubelet never names more claims in a call than one pod has
                side.caller.unprepare(singles[start : start + CALLERS])


def _order(ours: Side, theirs: Side, number: int) -> tuple[Side, Side]:
    return (theirs, ours) if number % 2 else (ours, theirs)


@contextlib.contextmanager
def _cpu(side: Side, calls: int) -> Iterator[None]:
    before = side.driver.process.cpu_seconds()
    yield
    side.cpu = (side.driver.process.cpu_seconds() - before) * 1000 / calls


def _figures(ours: Side, theirs: Side) -> list[Figure]:
    return [
        *_pair("prepare of no claim (gRPC and the caller alone)", "ms", ours.empty, theirs.empty),
        *_pair("prepare one claim", "ms", ours.prepare, theirs.prepare, 1.3, p99_aim=1.3),
        *_pair("unprepare one claim", "ms", ours.unprepare, theirs.unprepare, 1.1),
        *_pair("prepare 16 claims of one pod", "ms", ours.batch, theirs.batch, 0.6),
        *_pair(f"{CALLERS} callers, one claim each", "claims/s", ours.rates, theirs.rates, 1.2, at_least=True),
        # 1.1 is a third of what it was while the daemon was one event loop.
        *_pair("CPU time of a prepare and an unprepare", "ms", [ours.cpu], [theirs.cpu], 1.1),
        Figure("memory (PSS) after that", "MB", [ours.driver.process.pss()], 65),
        Figure("    the reference", "MB", [theirs.driver.process.pss()]),
    ]


def _pair(
    name: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    aim: float | None = None,
    *,
    p99_aim: float | None = None,
    at_least: bool = False,
) -> list[Figure]:
    """Both, and the ratio of ours to the reference's; the aims are for that one."""
    mine, other = Figure(name, unit, ours), Figure("    the reference", unit, theirs)
    figures = [mine, other, Figure("    ratio", "times", [mine.p50 / other.p50], aim, at_least=at_least)]
    if p99_aim is not None:
        tail = percentile(ours, 0.99) / percentile(theirs, 0.99)
        figures.append(Figure("    ratio of the p99", "times", [tail], p99_aim))
    return figures
