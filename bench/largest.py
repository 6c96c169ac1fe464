"""What the largest objects cost the webhook, and those whose reviews come meanwhile."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
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
"""Milliseconds of the processor that one of the worst may take."""
TIMES: Final = 5.0
"""So much more than without them others may wait."""

Bodies = list[tuple[str, str, bytes]]
"""Path, what is too much, and the review."""


async def largest(webhook: Webhook, gpu: Callable[[], bytes]) -> list[Figure]:
    """All the worst bodies, one after the other, while others ask for GPUs; and those others alone, in turns.

    Args:
        webhook: Is sent them.
        gpu: Makes an ordinary review.
    """
    bodies = [(path, what, body.replace(b'"dryRun":false', b'"dryRun":true')) for path, what, body in _all()]
    say(f"webhook: {len(bodies)} bodies of {worst.LARGEST / 1e6:g} MB, alone and beside {OTHERS} callers")
    held = await _alone(webhook, bodies)
    quiet, busy, ratios = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        before = await _others(webhook, gpu, None)
        meanwhile = await _others(webhook, gpu, asyncio.create_task(_send(webhook, bodies)))
        ratios.append(percentile(meanwhile, 0.99) / percentile(before, 0.99))
        quiet, busy = quiet + before, busy + meanwhile
    say(f"webhook: the worst of them: {max(held, key=lambda what: held[what])}")
    return [
        Figure(f"worst bodies of {worst.LARGEST / 1e6:g} MB, CPU time", "ms", [*held.values()], None, MOST),
        Figure(f"GPU pod, {OTHERS} at once", "ms", quiet),
        Figure("    while the worst bodies come", "ms", busy),
        Figure("    p99, times that without them", "x", ratios, TIMES),
    ]


def _all() -> Bodies:
    return [*worst.bodies(), *worst.updates()]


async def _alone(webhook: Webhook, bodies: Bodies) -> dict[str, float]:
    """The time of the processor that each takes from the webhook's event loop, in milliseconds; the least of some tries."""
    least: dict[str, float] = {}
    for path, what, body in (each for each in bodies for _ in range(ROUNDS)):
        # One each: after an error of HTTP there is no other answer on it.
        async with connected(webhook.port, webhook.tls) as connection:
            before = _worked(webhook)
            await _post(connection, path, body)
            least[f"{path} {what}"] = min(least.get(f"{path} {what}", math.inf), _worked(webhook) - before)
    return least


async def _send(webhook: Webhook, bodies: Bodies) -> None:
    for path, _, body in bodies:
        async with connected(webhook.port, webhook.tls) as connection:
            await _post(connection, path, body)


async def _post(connection: Connection, path: str, body: bytes) -> None:
    with contextlib.suppress(RuntimeError):  # no JSON: an error of HTTP
        await connection.post(path, body)


def _worked(webhook: Webhook) -> float:
    """Milliseconds that its first thread, which runs the event loop, has run for (proc_pid_schedstat)."""
    pid = webhook.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


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
