"""How long a server is waited for: short, so that one that is gone is found out soon, and longer for one that is slow."""


class Patience:
    """Seconds for one try. More after each that they were too few for, fewer again once the server is quick.

    Args:
        first: At the beginning, and the least.
        longest: The most.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, max(first, longest)
        self.seconds = first

    def too_short(self, were: float) -> None:
        """No answer came within so many seconds. Many tries at the same time are one lesson."""
        self.seconds = max(self.seconds, min(2 * were, self._longest))

    def enough(self, took: float) -> None:
        """An answer came after so many seconds."""
        if took < self.seconds / 4:
            self.seconds = max(self._first, self.seconds / 2)
