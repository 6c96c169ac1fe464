"""Work that may hang in the kernel, as on a file of a dead network or of a stuck driver. No thread can be taken out of that.

So such work is done in threads that nobody has to wait for: not who asked, not the others, not the end of the process.
"""

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable
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
    """What a thread is at.

    Args:
        work: What to make of each name.
        names: All of them.

    Attributes:
        at: The name that it works on.
        since: When it began with that, by the monotonic clock.
        late: Whether nobody waits for it any more.
        found: By name, as far as it has come.
        failure: What ended it.
        end: Held until then.
    """

    def __init__(self, work: Callable[[str], T], names: dict[str, None]) -> None:
        self._work, self.names = work, names
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

    Args:
        what: The kind of the names, as the beginning of a sentence: "the driver's file".
        error: Made of the words.
        most: Threads at the same time.
        patience: Seconds for a call's turn to come, and then for its work.
    """

    def __init__(
        self, what: str, error: Callable[[str], HamiError], *, most: int = 8, patience: float = PATIENCE
    ) -> None:
        self._what, self._error, self._most, self._patience = what, error, most, patience
        self._changed = threading.Condition(threading.Lock())
        self._jobs: list[_Job[Any]] = []
        self._idle: list[_Thread] = []

    def each(self, work: Callable[[str], T], names: Iterable[str]) -> dict[str, T]:
        """What `work` makes of each name, one after the other in one thread.

        Raises:
            HamiError: One of them hangs, or all threads hang on others; says which.
            Exception: As `work`.
        """
        job = _Job(work, dict.fromkeys(names))
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(job.names), self._patience):
                raise self._hangs((self._jobs or [job])[0])
            thread = self._idle.pop() if self._idle else self._begun()
            self._jobs.append(job)
        thread.put(job)
        if not job.end.acquire(timeout=self._patience):
            with self._changed:
                job.late = True
                self._changed.notify_all()
            raise self._hangs(job)
        if job.failure is not None:
            raise job.failure
        return job.found

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
                with self._changed:
                    if thread in self._idle:
                        self._idle.remove(thread)
                        return
                continue
            job.run()
            with self._changed:
                self._jobs.remove(job)
                self._idle.append(thread)
                self._changed.notify_all()
            job.end.release()

    def _is_free(self, names: Container[str]) -> bool:
        """Whether a thread may be taken for these names. Raises if there is no use in waiting for one."""
        late = [job for job in self._jobs if job.late]
        for job in late:
            if job.at in names or len(late) >= self._most:
                raise self._hangs(job)
        shared = any(name in names for job in self._jobs if not job.late for name in job.names)
        return not shared and len(self._jobs) < self._most

    def _hangs(self, job: _Job[Any]) -> HamiError:
        return self._error(
            f"{self._what} {job.at} has not answered for {time.monotonic() - job.since:.0f} s: its file system or the driver "
            "hangs. Look at the kernel's log (dmesg) and at what is mounted there; it is tried again"
        )


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
