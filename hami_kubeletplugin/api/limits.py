"""What one container may use of one GPU: the one form that it has from the plan to the variables and the region."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """What was allocated of one GPU, and so what is enforced.

    Attributes:
        memory_mib: MiB; 0 only where nothing was consumed, as with adminAccess.
        cores: Percent of the GPU's compute; 0 is "no limit asked".
    """

    memory_mib: int
    cores: int = 0

    def __post_init__(self) -> None:
        if self.memory_mib < 0 or self.cores < 0:
            raise ValueError(f"{self}: neither can be negative")

    def __add__(self, other: "Limit") -> "Limit":
        """Shares of one GPU in one container: it may use both."""
        return Limit(self.memory_mib + other.memory_mib, self.cores + other.cores)
