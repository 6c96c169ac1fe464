"""The claims of one call: worked on at the same time, each in a thread, and each with its own answer in time."""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, Generic, TypeVar

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import HamiError, NotBegun, OwnFault, TimedOut
from hami_kubeletplugin.claims.reasons import reason
from hami_kubeletplugin.observe.counts import Counts, Operation
from hami_kubeletplugin.observe.log import bind_contextvars, get_logger

log = get_logger()
T = TypeVar("T")

_ID_BYTES: Final = 4
"""Of a call's id: among 1,000 calls two have the same with a chance of 1 in 8,000, and a claim's UID stands beside it."""


class _Work(Generic[T]):
    """What is done for one claim.

    Args:
        ref: The claim.
        work: What to do.
        call: The id of the call.

    Attributes:
        milliseconds: From the call on until it ended; None: it has not.
    """

    def __init__(self, ref: ClaimRef, work: Callable[[ClaimRef], T], call: str) -> None:
        self.ref, self._work, self._since = ref, work, time.perf_counter()
        self.milliseconds: float | None = None
        # What each line of the log about it says; who works on it adds what it learns.
        self._context = copy_context()
        self._context.run(bind_contextvars, call=call, claim=ref.full_name, claim_uid=ref.uid)

    def run(self, done: str) -> T:
        """Do it, and say so."""
        return self._context.run(self._run, done)

    def say(self, level: Callable[..., object], event: str, **facts: object) -> None:
        """Write a line about it, from whatever thread; its own may be at it still."""
        took = self._so_far() if self.milliseconds is None else self.milliseconds
        self._context.copy().run(level, event, milliseconds=took, **facts)

    def _run(self, done: str) -> T:
        try:
            result = self._work(self.ref)
        finally:
            self.milliseconds = self._so_far()
        log.info(done, milliseconds=self.milliseconds)
        return result

    def _so_far(self) -> float:
        return round((time.perf_counter() - self._since) * 1000, 2)


class Calls:
    """The calls for one operation, which share some threads.

    Args:
        operation: Which.
        most: Claims that are worked on at the same time; more wait their turn.
        timeout: Seconds that a call has, for messages.
        at: Says what the work on a claim is at, by UID.
        counts: Told of claims in work.
    """

    def __init__(
        self, operation: Operation, most: int, *, timeout: float, at: Callable[[str], str], counts: Counts
    ) -> None:
        self._operation, self._timeout, self._at, self._counts = operation, timeout, at, counts
        self._workers = ThreadPoolExecutor(most, thread_name_prefix=operation)

    def each(
        self, refs: Sequence[ClaimRef], work: Callable[[ClaimRef], T], deadline: float
    ) -> dict[str, T | HamiError]:
        """Run `work` for every claim, and answer for every claim in time. What is given up ends by itself, under its lock.

        Args:
            refs: The claims.
            work: Called in threads.
            deadline: By the monotonic clock.

        Returns:
            By UID.
        """
        call = secrets.token_hex(_ID_BYTES)
        begun = [self._begin(_Work(ref, work, call)) for ref in dict.fromkeys(refs)]
        answers: dict[str, T | HamiError] = {}
        for work_on, future in begun:
            answer = self._answer(work_on, future, deadline)
            answers[work_on.ref.uid] = answer
        return answers

    def end(self) -> None:
        """Wait for all work; what has not begun is left."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _begin(self, work: _Work[T]) -> tuple[_Work[T], Future[T]]:
        future = self._workers.submit(work.run, f"claim {self._operation}d")
        self._counts.began(self._operation)
        future.add_done_callback(lambda _: self._counts.ended(self._operation))
        return work, future

    def _answer(self, work: _Work[T], future: Future[T], deadline: float) -> T | HamiError:
        ref, verb = work.ref, self._operation
        error: HamiError
        try:
            failure = future.exception(timeout=max(deadline - time.monotonic(), 0))
        except TimeoutError:
            future.cancel()
            future.add_done_callback(lambda done: _tell_late(work, done))
            error = TimedOut(
                f"{ref}: {verb} did not end within {self._timeout:g} s and is given up; it will be tried again. "
                f"It is {self._at(ref.uid)}: the API server, the disk or nvidia-ctk is slow, or hangs"
            )
        except CancelledError:
            error = NotBegun(f"{ref}: {verb} was not begun, since the daemon stops; it will be tried again")
        else:
            if failure is None:
                return future.result()
            if isinstance(failure, HamiError):
                error = failure
            else:
                work.say(log.error, "unexpected error", verb=verb, exc_info=failure)
                error = OwnFault(f"{ref}: {verb} failed by a fault of the driver: {type(failure).__name__}: {failure}")
        work.say(log.warning, "claim failed", verb=verb, reason=reason(error), error=str(error))
        return error


def _tell_late(work: _Work[T], future: Future[T]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        work.say(log.warning, "failed after it had been given up", error=str(error))
