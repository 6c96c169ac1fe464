"""What goes on is said once: a log that repeats the same sentence each minute hides the others."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Subject = TypeVar("Subject", bound=Hashable)


class Once(Generic[Subject]):
    """Remembers what was said last of each subject. Holds what is neither `ended` nor left out by `keep`, and no more."""

    def __init__(self) -> None:
        self._said: dict[Subject, Hashable] = {}

    def is_new(self, subject: Subject, reason: Hashable = None) -> bool:
        """Whether this reason has yet to be said of the subject; from now on it has been."""
        if subject in self._said and self._said[subject] == reason:
            return False
        self._said[subject] = reason
        return True

    def ended(self, subject: Subject) -> bool:
        """It holds no more, so whatever comes next is new. Whether anything had been said of it."""
        if subject not in self._said:
            return False
        del self._said[subject]
        return True

    def keep(self, still: Callable[[Subject], bool]) -> None:
        """Forget the subjects that are gone: all but these."""
        self._said = {subject: reason for subject, reason in self._said.items() if still(subject)}

    def __contains__(self, subject: object) -> bool:
        """Whether anything has been said of the subject that still holds."""
        return subject in self._said
