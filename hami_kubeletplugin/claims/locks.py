"""One lock per claim, held in the order of asking, and kept only while some thread needs it."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

from hami_kubeletplugin.api.errors import TimedOut
from hami_kubeletplugin.hanging import whereabouts


class ClaimLocks:
    """Locks by claim UID. First come, first served: a prepare must not overtake the unprepare that came after it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[str, deque[threading.Event]] = {}
        self._holders: dict[str, int] = {}

    def waiting(self, uid: str) -> int:
        """How many hold a claim's lock or wait for it."""
        return len(self._queues.get(uid, ()))

    def at(self, uid: str) -> str:
        """What the one who holds a claim's lock is at, in words."""
        thread = self._holders.get(uid)
        return "waiting for its turn" if thread is None else f"in {whereabouts(thread)}"

    def held(self) -> list[str]:
        """UIDs of claims whose lock somebody holds."""
        return [*self._holders]

    @contextlib.contextmanager
    def hold(self, uid: str, *, deadline: float) -> Iterator[None]:
        """Hold a claim's lock.

        Args:
            uid: The claim's UID.
            deadline: Of the call, by the monotonic clock.

        Raises:
            TimedOut: Somebody else still holds it a second later: whoever waits for the call has its answer by then.
        """
        turn = threading.Event()
        with self._guard:
            queue = self._queues.setdefault(uid, deque())
            queue.append(turn)
            if queue[0] is turn:
                turn.set()
        try:
            if not turn.wait(max(deadline + 1 - time.monotonic(), 0)):
                raise TimedOut(
                    f"claim UID {uid}: other work on this claim does not end; it is {self.at(uid)}; it will be tried again"
                )
            self._holders[uid] = threading.get_ident()
            yield
        finally:
            with self._guard:
                first = queue[0] is turn
                queue.remove(turn)
                if first:
                    self._holders.pop(uid, None)
                if not queue:
                    del self._queues[uid]
                elif first:
                    queue[0].set()
