"""What NVIDIA's Xids mean, and which of them a GPU survives.

Sources: NVIDIA's catalogue of Xids (docs.nvidia.com/deploy/xid-errors); the list of its device plugin and DRA driver.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Those that programs cause: the program ends, the GPU is as good as before."""

WORDS: Final[Mapping[int, str]] = {
    13: "an exception of the graphics engine",
    31: "a memory page fault of a program",
    43: "a program's channel was stopped",
    45: "a program's channel was cleaned up",
    48: "a double-bit ECC error",
    63: "a memory row or page was retired",
    64: "a memory row or page couldn't be retired",
    68: "an exception of the video decoder",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    109: "a context switch took too long",
    119: "the GPU's system processor doesn't answer",
    120: "an error of the GPU's system processor",
    140: "an unrecovered ECC error",
    154: "the driver says which action the GPU needs",
}


OTHER: Final = "other"
"""What all Xids are counted as of which nothing is known: a driver may send any number."""


def named(xid: int) -> str:
    """`Xid 79 (the GPU has fallen off the bus)`."""
    return f"Xid {xid}" + (f" ({WORDS[xid]})" if xid in WORDS else "")


@dataclass(frozen=True, slots=True)
class XidRules:
    """What people say of Xids.

    Attributes:
        informational: Beside `APPLICATIONS`; they count if the driver says that an action is needed.
        critical: Those that count whatever the driver says.
    """

    informational: frozenset[int] = frozenset()
    critical: frozenset[int] = frozenset()

    def names(self) -> Collection[str]:
        """What Xids are counted as: those that are known here or that people named, each by its number, and the rest."""
        return (*map(str, sorted({*WORDS, *self.informational, *self.critical})), OTHER)

    def name(self, xid: int) -> str:
        """What this one is counted as."""
        return str(xid) if xid in WORDS or xid in self.informational or xid in self.critical else OTHER

    def counts(self, xid: int, action: int | None) -> bool:
        """Whether the GPU has to be mended after this Xid.

        Args:
            xid: Its number.
            action: The driver's recovery action just after it (0 = none), or None if the driver can't say.
        """
        if xid in self.critical:
            return True
        if action is not None:
            return action != 0
        return xid not in APPLICATIONS | self.informational
