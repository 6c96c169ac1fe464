"""Waits that grow."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """A delay that doubles with each `grow`, from `first` to `longest` seconds."""

    first: float
    longest: float
    _steps: int = field(default=0, init=False)

    @property
    def delay(self) -> float:
        """How long to wait now."""
        # Far more doublings than fit between any two sane bounds; without a bound the power would grow for ever.
        return min(self.longest, self.first * 2.0 ** min(self._steps, 32))

    def grow(self) -> None:
        """Wait longer next time."""
        self._steps += 1

    def reset(self) -> None:
        """Start anew."""
        self._steps = 0
