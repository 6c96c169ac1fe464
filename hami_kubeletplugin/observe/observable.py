"""A value that threads can wait for a change of, while an event loop sets it."""

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Observable(Generic[T]):
    """Holds one value. Setting it never waits for anybody."""

    def __init__(self, value: T) -> None:
        self._value, self._woken = value, 0
        self._condition = threading.Condition()

    def get(self) -> T:
        """The value now."""
        return self._value

    def set(self, value: T) -> None:
        """Change it, and wake all who wait."""
        with self._condition:
            self._value = value
            self._condition.notify_all()

    def wake(self) -> None:
        """End all waits now, though nothing has changed."""
        with self._condition:
            self._woken += 1
            self._condition.notify_all()

    @property
    def woken(self) -> int:
        """How often all waits were ended so far."""
        return self._woken

    def wait(self, since: T, timeout: float, *, woken: int | None = None) -> None:
        """Return when the value is another one than `since`, when woken, or after `timeout` seconds.

        Args:
            since: As the caller knows it.
            timeout: Seconds.
            woken: As it was before the caller looked at what it is woken for; a wake between that and this call counts then.
        """
        with self._condition:
            if woken is None:
                woken = self._woken
            self._condition.wait_for(lambda: self._value != since or self._woken != woken, timeout)
