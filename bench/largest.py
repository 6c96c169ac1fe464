"""What the largest objects cost the webhook, and those whose reviews come meanwhile."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from bench import worst
from bench.figures import Figure, Watch, percentile, say
from bench.reviews import Connection, connected
from bench.webhook import Webhook

OTHERS: Final = 4
"""Connections with ordinary reviews, on each one after the other."""
ROUNDS: Final = 3
"""Of all the worst bodies, and so many of ordinary reviews alone."""
REVIEWS: Final = 1000
"""Ordinary ones of a round without them, at least."""
MOST: Final = 100.0
"""Milliseconds that one of the worst may take."""
TIMES: Final = 5.0
"""So much more than without them others may wait."""


async def largest(webhook: Webhook, gpu: Callable[[], bytes]) -> list[Figure]:
    """All the worst bodies, one after the other, while others ask for GPUs; and those others alone, in turns.

    Args:
        webhook: Is sent them.
        gpu: Makes an ordinary review.
    """
    bodies = [(path, what, body.replace(b'"dryRun":false', b'"dryRun":true')) for path, what, body in _all()]
    say(f"webhook: {ROUNDS} x {len(bodies)} bodies of {worst.LARGEST / 1e6:g} MB, beside {OTHERS} callers")
    slowest: dict[str, float] = {}
    alone, meanwhile, ratios = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        quiet = await _others(webhook, gpu, None)
        busy = await _others(webhook, gpu, asyncio.create_task(_send(webhook, bodies, slowest)))
        ratios.append(percentile(busy, 0.99) / percentile(quiet, 0.99))
        alone, meanwhile = alone + quiet, meanwhile + busy
    what = max(slowest, key=lambda name: slowest[name])
    say(f"webhook: the worst of them: {what}")
    return [
        Figure(f"the {len(bodies)} worst bodies of {worst.LARGEST / 1e6:g} MB", "ms", [*slowest.values()], None, MOST),
        Figure(f"GPU pod, {OTHERS} at once", "ms", alone),
        Figure("    while the worst bodies come", "ms", meanwhile),
        Figure("    p99, times that without them", "x", ratios, TIMES),
    ]


def _all() -> list[tuple[str, str, bytes]]:
    return [*worst.bodies(), *worst.updates()]


async def _send(webhook: Webhook, bodies: list[tuple[str, str, bytes]], slowest: dict[str, float]) -> None:
    """Each once; the least time that each has taken is kept: in between the others are answered too."""
    async with connected(webhook.port, webhook.tls) as connection:
        for path, what, body in bodies:
            watch = Watch()
            async with watch.lap():
                with contextlib.suppress(RuntimeError):  # no JSON: an error of HTTP
                    await connection.post(path, body)
            slowest[what] = min(slowest.get(what, watch.laps[0]), watch.laps[0])


async def _others(webhook: Webhook, gpu: Callable[[], bytes], until: asyncio.Task[None] | None) -> list[float]:
    """Ordinary reviews until something is done, or so many of them."""
    watch = Watch()

    async def ask(connection: Connection) -> None:
        while not until.done() if until else len(watch.laps) < REVIEWS:
            async with watch.lap():
                await connection.post("/mutate", gpu())

    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(webhook.port, webhook.tls)) for _ in range(OTHERS)]
        await asyncio.gather(*map(ask, connections), *([until] if until else []))
    return watch.laps
