"""Work that may hang in the kernel, as on a file of a dead network or of a stuck driver. No thread can be taken out of that.

So such work is done in threads that nobody has to wait for: not who asked, not the others, not the end of the process.
"""

import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from hami_kubeletplugin.api.errors import HamiError

T = TypeVar("T")

PATIENCE: Final = 5.0
"""Seconds until what does not return is said to hang. A local file takes microseconds, a slow disk a second."""


@dataclass(eq=False, slots=True)
class _Job(Generic[T]):
    """What a thread is at.

    Attributes:
        names: All that it is to work on.
        at: The one that it works on.
        since: When it began with that, by the monotonic clock.
        late: Whether nobody waits for it any more.
        found: By name, as far as it has come.
        failure: What ended it.
        ended: Whether it has.
    """

    names: dict[str, None]
    at: str = ""
    since: float = field(default_factory=time.monotonic)
    late: bool = False
    found: dict[str, T] = field(default_factory=dict)
    failure: BaseException | None = None
    ended: bool = False


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
        self._changed = threading.Condition()
        self._jobs: list[_Job[Any]] = []

    def each(self, work: Callable[[str], T], names: Iterable[str]) -> dict[str, T]:
        """What `work` makes of each name, one after the other in one thread.

        Raises:
            HamiError: One of them hangs, or all threads hang on others; says which.
            Exception: As `work`.
        """
        job = _Job[T](dict.fromkeys(names))
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(job.names), self._patience):
                raise self._hangs((self._jobs or [job])[0])
            self._jobs.append(job)
        try:
            threading.Thread(target=self._run, args=(job, work), name=self._what, daemon=True).start()
        except RuntimeError:  # no thread can be had
            self._end(job)
            raise
        with self._changed:
            if not self._changed.wait_for(lambda: job.ended, self._patience):
                job.late = True
                self._changed.notify_all()
                raise self._hangs(job)
        if job.failure is not None:
            raise job.failure
        return job.found

    def _run(self, job: _Job[T], work: Callable[[str], T]) -> None:
        try:
            for name in job.names:
                job.at, job.since = name, time.monotonic()
                job.found[name] = work(name)
        except BaseException as error:  # noqa: BLE001 - handed on to who waits
            job.failure = error
        finally:
            self._end(job)

    def _end(self, job: _Job[T]) -> None:
        with self._changed:
            job.ended = True
            self._jobs.remove(job)
            self._changed.notify_all()

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
