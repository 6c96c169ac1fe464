"""Whether a claim could be prepared on this node: looked at again and again, so that it is told when that begins and ends.

What fails is said once in the log, is a condition of the GPUs (`gpu.conditions`), and keeps the daemon from being ready. Claims
are prepared, or refused with their own words, and unprepared all the while.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, Conditions, What
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

Wrong = Mapping[str, str]
"""What is wrong and what to do, by GPU (UUID), or for all below `EVERY`; empty if nothing is."""
INTERVAL: Final = 5.0
"""Seconds between looks at what costs next to nothing."""
_UNKNOWN: Final = ("unknown",)
_FIRST: Final = 1.0
"""Seconds until the look after one that found something; doubled each time, up to the check's own `longest`."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that prepares, or the containers' starts after them, depend on.

    Attributes:
        what: What is missing if it fails, in a word: the value of the taint, and a label of metrics.
        look: Finds out; blocks; raises HamiError instead for what is wrong with all GPUs. Must do no harm.
        within: Seconds that a look may take.
        interval: Seconds between looks while it is right.
        longest: Seconds between looks, at the most, while it fails.
    """

    what: str
    look: Callable[[], Wrong | None]
    within: float = 10.0
    interval: float = INTERVAL
    longest: float = INTERVAL


@dataclass(slots=True)
class _State:
    wait: Backoff
    due: float = 0.0
    wrong: Wrong = field(default_factory=dict)
    looking: "asyncio.Future[Wrong] | None" = None


class Readiness:
    """Looks, and tells.

    Args:
        checks: What to look at; of several that fail the first gives its name.
        conditions: The board.
        gpus: UUIDs of this node's GPUs; None while they are not known. Without any there is nothing to be ready for, and a node
            without GPUs is as good as it will be.
        registered: Whether the kubelet has the driver registered.
        told: Called in the event loop after each look, with whether claims can be prepared.

    Attributes:
        lacking: What is missing for all GPUs, in a word each, in the order of the checks. `unknown` while nothing is known.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        *,
        conditions: Conditions,
        gpus: Callable[[], Sequence[str] | None],
        registered: Callable[[], bool],
        told: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checks = {check: _State(Backoff(_FIRST, check.longest)) for check in checks}
        self._conditions, self._gpus, self._registered, self._told = conditions, gpus, registered, told
        self._woken, self._said, self._clock = asyncio.Event(), Once[str](), clock
        self._loop = asyncio.get_running_loop()
        self.lacking: tuple[str, ...] = _UNKNOWN

    @property
    def ready(self) -> bool:
        """Whether claims can be prepared."""
        return not self.lacking

    def wake(self) -> None:
        """Something has changed: look at once, at all of it. For any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever would want to know
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            wait = max(0.0, min(state.due for state in self._checks.values()) - self._clock())
            # Not wait_for, which up to Python 3.11 forgets that it was cancelled if it is woken at the same time.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            await self.look(anyway=self._woken.is_set())

    async def look(self, *, anyway: bool = True) -> None:
        """Look at what is due, or at all of it, and tell."""
        self._woken.clear()
        now = self._clock()
        due = [check for check, state in self._checks.items() if anyway or state.due <= now]
        await asyncio.gather(*(self._ask(check, self._checks[check]) for check in due))
        self._tell()

    async def _ask(self, check: Check, state: _State) -> None:
        # One that hangs keeps its one thread, and is not asked again before that has ended.
        within = check.within if state.looking is None else 0.0
        state.looking = state.looking or _in_a_thread(check)
        try:
            async with asyncio.timeout(within):
                state.wrong = await asyncio.shield(state.looking)
            state.looking = None
        except TimeoutError:
            hangs = (
                f"{check.what}: no answer for {check.within:g} s; a file system or the GPUs' driver hangs on this node"
            )
            state.wrong = {EVERY: hangs}
        if state.wrong:
            state.due = self._clock() + state.wait.delay
            state.wait.grow()
        else:
            state.due = self._clock() + check.interval
            state.wait.reset()

    def _tell(self) -> None:
        wrong = {check.what: state.wrong for check, state in self._checks.items() if state.wrong}
        self._conditions.report("ready", found(wrong, time.time()))
        gpus = self._gpus()
        if gpus:
            lacking = [what for what, of in wrong.items() if EVERY in of or all(uuid in of for uuid in gpus)]
            self.lacking = (*lacking, *(() if self._registered() else ("registration",)))
        else:
            self.lacking = _UNKNOWN if gpus is None else ()
        self._say(wrong)
        self._told(self.ready)

    def _say(self, wrong: Mapping[str, Wrong]) -> None:
        for what, of in wrong.items():
            if self._said.is_new(what, tuple(of.items())):
                log.error(
                    "this node is not ready: claims can't be prepared; it is looked at again",
                    what=what,
                    error="; ".join(dict.fromkeys(of.values())),
                    **({} if EVERY in of else {"gpus": list(of)}),
                )
        for check in self._checks:
            if check.what not in wrong and self._said.ended(check.what):
                log.info("mended; it kept this node from being ready", what=check.what)


def found(wrong: Mapping[str, Wrong], now: float) -> dict[str, tuple[Condition, ...]]:
    """The conditions of what is wrong, by GPU or `EVERY`. Pure.

    Args:
        wrong: By what is missing; the first one is the value.
        now: UNIX time.
    """
    said: dict[str, list[tuple[str, str]]] = {}
    for what, of in wrong.items():
        for uuid, message in of.items():
            said.setdefault(uuid, []).append((what, message))
    return {
        uuid: (Condition(What.NOT_READY, "; ".join(dict.fromkeys(m for _, m in each)), value=each[0][0], since=now),)
        for uuid, each in said.items()
    }


def _in_a_thread(check: Check) -> "asyncio.Future[Wrong]":
    """What a check finds. Its thread is one that the end of the process doesn't wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Wrong] = loop.create_future()

    def tell(wrong: Wrong) -> None:
        if not future.done():
            future.set_result(wrong)

    def look() -> None:
        try:
            wrong = check.look() or {}
        except HamiError as error:
            wrong = {EVERY: str(error)}
        except Exception as error:  # a fault of ours is one more reason not to be ready, and no end of the daemon
            log.exception("a check failed unexpectedly", what=check.what)
            wrong = {EVERY: f"{check.what} can't be checked, by a fault of the driver: {type(error).__name__}: {error}"}
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, wrong)

    threading.Thread(target=look, name=f"ready: {check.what}", daemon=True).start()
    return future
