"""Wait for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
