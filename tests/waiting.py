"""Wait for a condition, with a deadline and words for what did not come; for unit and e2e tests."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], T], *, within: float = 20) -> T:
    """Let other tasks and processes go on until `condition` is true, and return what it returned.

    Args:
        condition: Falsy = not yet. When it does not come, a lambda's source says what was waited for.
        within: Seconds; far more than it takes, for the machine may be busy.

    Raises:
        AssertionError: The deadline passed; carries what the last call said.
    """
    deadline = time.monotonic() + within
    while not (last := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s: {_source(condition)}; last seen: {last!r}")
        await asyncio.sleep(0.005)
    return last


async def settled() -> None:
    """Let the event loop do all that it can do without more input, time or threads; what is not done then waits for those."""
    for _ in range(50):
        await asyncio.sleep(0)


def wait_for(what: str, probe: Callable[[], T | None], *, timeout: float = 60, interval: float = 0.2) -> T:
    """Call `probe` until it returns something truthy, and return that.

    Args:
        what: Named when it does not come, as in "waited 60 s for <what>".
        probe: Falsy or AssertionError = not yet.
        timeout: Seconds.
        interval: Seconds between calls.

    Raises:
        AssertionError: The deadline passed; carries what the last call said.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            last: object = probe()
            if last:
                return last  # type: ignore[return-value]  # narrowed to T by the truth test
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {last}")
        time.sleep(interval)


def _source(condition: Callable[[], object]) -> str:
    if getattr(condition, "__name__", "") != "<lambda>":
        return repr(condition)
    return " ".join(inspect.getsource(condition).split())
