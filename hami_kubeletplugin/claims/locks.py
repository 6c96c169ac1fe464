"""One lock per claim, kept only while some thread needs it."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from hami_kubeletplugin.api.errors import ClaimError


class ClaimLocks:
    """Locks by claim UID."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, uid: str, *, deadline: float) -> Iterator[None]:
        """Hold a claim's lock.

        Args:
            uid: The claim's UID.
            deadline: By the monotonic clock.

        Raises:
            ClaimError: Somebody else still holds it then.
        """
        with self._guard:
            lock = self._locks.setdefault(uid, threading.Lock())
            self._users[uid] += 1
        try:
            if not lock.acquire(timeout=max(deadline - time.monotonic(), 0)):
                raise ClaimError(f"claim UID {uid}: other work on this claim does not end; it will be tried again")
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                self._users[uid] -= 1
                if not self._users[uid]:
                    del self._users[uid], self._locks[uid]
