"""Where a pod's time goes until it runs, with a GPU and without: a step for each process that it passes, out of their logs."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, say
from bench.pods import KINDS, in_turns, working
from bench.process import Places
from bench.timeline import LIMITED, STEPS, Mark, audited, prepared, run, ways

PODS = 30
"""Of each kind, one after the other."""
_PAUSE: Final = 0.5
"""Seconds after each, in which the kubelet is done with it."""


async def measure(kubeconfig: Path, places: Places) -> list[Figure]:
    """The time of each step, for both kinds, and what a GPU adds.

    Args:
        kubeconfig: Of the cluster of hack/cluster, started with AUDIT=1; its logs are in `log` beside it.
        places: Where the daemon's log is.
    """
    logs: dict[Path, Callable[[Iterable[str]], Iterator[Mark]]] = {
        kubeconfig.parent / "log/audit.log": audited,
        kubeconfig.parent / "log/containerd.log": run,
        places.disk / "daemon.log": prepared,
    }
    async with working(kubeconfig, places) as work:
        say(f"way: {PODS} pods of each kind, one at a time")
        since = time.time()
        for number in range(PODS):
            for kind in in_turns(number):
                await work.start(kind, 1)
                await asyncio.sleep(_PAUSE)
        marks = [mark for path, read in logs.items() for mark in read(path.read_text().splitlines())]
    return figures(mark for mark in marks if mark.at > since)


def figures(marks: Iterable[Mark]) -> list[Figure]:
    """Each step with both kinds and the difference of their medians, then the whole way, and the requests."""
    found = [*ways(marks)]
    plain, gpu = ([way for way in found if way.pod.startswith(f"{kind.lower()}-")] for kind in KINDS)
    steps = [way.durations() for way in plain], [way.durations() for way in gpu]
    return [
        *itertools.chain.from_iterable(
            _both(what, "ms", *([each[name] for each in kind] for kind in steps)) for name, what in STEPS.items()
        ),
        *_both("all of it", "ms", *([sum(each.values()) for each in kind] for kind in steps)),
        *itertools.chain.from_iterable(
            _both(f"requests of {who}", "per pod", *([way.requests[who] for way in kind] for kind in (plain, gpu)))
            for who in LIMITED.values()
        ),
    ]


def _both(what: str, unit: str, plain: Sequence[float], gpu: Sequence[float]) -> list[Figure]:
    one, other = Figure(f"{what}, plain", unit, plain), Figure("    GPU", unit, gpu)
    return [one, other, Figure("    difference", unit, [other.p50 - one.p50])]
