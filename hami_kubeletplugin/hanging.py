"""Work that may hang in the kernel, as on a file of a dead network or of a stuck driver. No thread can be taken out of that.

So such work is done in threads that nobody has to wait for: not who asked, not the others, not the end of the process.
"""

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, ParamSpec, TypeVar

from hami_kubeletplugin.api.errors import HamiError, StorageError

T = TypeVar("T")
P = ParamSpec("P")

_REST: Final = 5.0
"""Seconds that a thread waits for more to do: to begin one costs ten times as much as to hand it something."""
_PACKAGE: Final = f"{__name__.partition('.')[0]}."
PATIENCE: Final = 5.0
"""Seconds until what does not return is said to hang. A local file takes microseconds, a slow disk a second."""


class _Job(Generic[T]):
    """What a thread is at, or is to be.

    Args:
        work: What to make of each name.
        names: All of them.

    Attributes:
        begun: When its turn came, by the monotonic clock; None: it waits for that.
        at: The name that is worked on.
        since: When that began.
        late: Whether nobody waits for it any more.
        found: By name, as far as it has come.
        failure: What ended it.
        end: Held until then.
    """

    def __init__(self, work: Callable[[str], T], names: dict[str, None]) -> None:
        self._work, self.names = work, names
        self.begun: float | None = None
        self.at, self.since, self.late = next(iter(names), ""), time.monotonic(), False
        self.found: dict[str, T] = {}
        self.failure: BaseException | None = None
        self.end = threading.Lock()
        self.end.acquire()

    def run(self) -> None:
        """All of it, in the thread of the caller."""
        try:
            for name in self.names:
                self.at, self.since = name, time.monotonic()
                self.found[name] = self._work(name)
        except BaseException as error:  # noqa: BLE001 - handed on to who waits
            self.failure = error


_Thread = SimpleQueue[_Job[Any]]
"""Where a thread waits for its next job."""


class MayHang:
    """Work of one kind. Thread-safe.

    What hangs costs those alone who need it, and one thread however often it is asked for: who asks for the same waits for the
    one that is at it, and is refused at once when that is known to hang. It works again as soon as the kernel lets go.

    First come, first served, and nobody is woken before it is his turn: many who ask for the same at once, as prepares do, cost
    each no more than one alone.

    Args:
        what: The kind of the names, as the beginning of a sentence: "the driver's file".
        error: Made of the words.
        most: Threads at the same time.
        patience: Seconds for a call's work, and as many for those that it waits for, twice, until its turn comes.
    """

    def __init__(
        self, what: str, error: Callable[[str], HamiError], *, most: int = 8, patience: float = PATIENCE
    ) -> None:
        self._what, self._error, self._most, self._patience = what, error, most, patience
        self._guard = threading.Lock()
        self._waiting: list[_Job[Any]] = []
        self._jobs: list[_Job[Any]] = []
        self._idle: list[_Thread] = []

    def each(self, work: Callable[[str], T], names: Iterable[str]) -> dict[str, T]:
        """What `work` makes of each name, one after the other in one thread.

        Raises:
            HamiError: One of them hangs, or all threads hang on others; says which.
            Exception: As `work`.
        """
        job = _Job(work, dict.fromkeys(names))
        with self._guard:
            self._waiting.append(job)
            self._go_on()
        until = job.since + self._patience
        last = until + self._patience  # what it waits for is known to hang by then, and others have had their turn
        while not job.end.acquire(timeout=max(until - time.monotonic(), 0)):
            with self._guard:
                self._see_late()
                if job.late or (job.begun is None and until == last):
                    raise self._given_up(job)
                until = last if job.begun is None else job.begun + self._patience
        if job.failure is not None:
            raise job.failure
        return job.found

    def _see_late(self) -> None:
        """Whoever sees it first: a job that has taken too long is in the way of nobody but those who need what it hangs at."""
        now = time.monotonic()
        for job in self._jobs:
            job.late = job.late or (job.begun is not None and job.begun + self._patience <= now)
        self._go_on()

    def _given_up(self, job: _Job[Any]) -> HamiError:
        """Nobody waits for it any more: it hangs, or its turn did not come."""
        if job.late:
            return self._hangs(job)
        self._waiting.remove(job)
        before = (at for at in self._jobs if not at.late and at.names.keys() & job.names)
        return self._hangs(next(before, (self._jobs or [job])[0]))

    def _go_on(self) -> None:
        """Give threads to those whose turn it is, and refuse those for whom there is no use in waiting for one."""
        late = [job for job in self._jobs if job.late]
        taken = {name for job in self._jobs if not job.late for name in job.names}
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            hangs = next((each for each in late if each.at in job.names or len(late) >= self._most), None)
            if hangs is not None:
                _refuse(job, self._hangs(hangs))
                continue
            if len(self._jobs) < self._most and job.names.keys().isdisjoint(taken):
                self._begin(job)
            else:
                self._waiting.append(job)
            taken.update(job.names)

    def _begin(self, job: _Job[Any]) -> None:
        try:
            thread = self._idle.pop() if self._idle else self._begun()
        except RuntimeError as error:  # the process may have no more of them
            _refuse(job, error)
            return
        job.begun = time.monotonic()
        self._jobs.append(job)
        thread.put(job)

    def _begun(self) -> _Thread:
        made = _Thread()
        threading.Thread(target=self._run, args=(made,), name=self._what, daemon=True).start()
        return made

    def _run(self, thread: _Thread) -> None:
        """Work on what comes; a thread that had nothing to do for a while goes."""
        while True:
            try:
                job = thread.get(timeout=_REST)
            except Empty:
                with self._guard:
                    if thread in self._idle:
                        self._idle.remove(thread)
                        return
                continue
            job.run()
            with self._guard:
                self._jobs.remove(job)
                self._idle.append(thread)
                self._go_on()
            job.end.release()

    def _hangs(self, job: _Job[Any]) -> HamiError:
        return self._error(
            f"{self._what} {job.at} has not answered for {self._patience:g} s: its file system or the driver "
            "hangs. Look at the kernel's log (dmesg) and at what is mounted there; it is tried again"
        )


def _refuse(job: _Job[Any], why: Exception) -> None:
    job.begun, job.failure = time.monotonic(), why
    job.end.release()


class OwnThreads(ThreadPoolExecutor):
    """What `asyncio.to_thread` takes its threads from: each piece of work has one of its own.

    In asyncio's pool, of six threads on two cores, six that hang hold up all work of the process, whatever it is. The end of the
    process waits for what can end only.
    """

    def __init__(self, most: int = 16, last_wait: float = 1.0) -> None:
        """Nothing is started yet.

        Args:
            most: Threads for work of one kind, which is one function.
            last_wait: Seconds that the end of the process waits for what is under way.
        """
        super().__init__(1)  # asyncio takes nothing else
        self._most, self._last_wait = most, last_wait
        self._guard = threading.Lock()
        self._at_work: dict[Future[Any], str] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin it.

        Raises:
            StorageError: All threads of its kind hang.
        """
        called = fn.args[0] if isinstance(fn, functools.partial) and fn.args else fn
        kind = f"{called.__module__}.{called.__qualname__}" if hasattr(called, "__qualname__") else repr(called)
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - handed on to who waits
                future.set_exception(error)
            finally:
                with self._guard:
                    del self._at_work[future]

        thread = threading.Thread(target=run, name=kind, daemon=True)
        with self._guard:
            if Counter(self._at_work.values())[kind] >= self._most:
                raise StorageError(f"{kind} hangs, {self._most} times by now: look at the kernel's log (dmesg)")
            self._at_work[future] = kind
            future.set_running_or_notify_cancel()
        thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT
        """Wait a while for what is under way."""
        with self._guard:
            futures = [*self._at_work]
        if wait:
            wait_for_all(futures, self._last_wait)


def whereabouts(thread: int) -> str:
    """What a thread is at, for people: the innermost function of ours, and the file that it is about, if it has one."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - made for this: to see why threads hang
    function = path = ""
    while frame is not None and not path:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(_PACKAGE):
            function = function or f"{module.removeprefix(_PACKAGE)}.{frame.f_code.co_name}"
            path = next((str(value) for value in frame.f_locals.values() if isinstance(value, Path)), "")
        frame = frame.f_back
    return f"{function} ({path})" if path else function or "its end"
