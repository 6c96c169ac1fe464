"""What the daemon does, told to whoever counts it. So the parts that do it need no Prometheus."""

from typing import Final, Literal

Operation = Literal["prepare", "unprepare"]
Step = Literal["read", "plan", "write"]
"""Of a claim's work: what the API server is asked, what is made of it with what the driver says, and the node's files."""
Repaired = Literal["cdi_spec", "record", "slices", "library", "socket", "stale_claim"]
"""What the daemon mended by itself: a CDI spec that was gone or another, a record that was lost or damaged, ResourceSlices that
others had changed, HAMi-core's files, the kubelet's socket; and claims that it unprepared since nobody else did."""
Verb = Literal["create", "update", "delete"]


class Counts:
    """Who counts; this one doesn't. Called in any thread; never waits."""

    def began(self, operation: Operation) -> None:
        """Work on a claim has begun, or waits for its turn."""

    def ended(self, operation: Operation) -> None:
        """It has ended, however, and however late."""

    def answered(self, operation: Operation, reason: str) -> None:
        """The kubelet has its answer for a claim: why it failed, in one word; empty: it did not."""

    def step(self, operation: Operation, step: Step, seconds: float) -> None:
        """A step of a claim's work has come to its end, or failed, after so many seconds."""

    def repaired(self, what: Repaired) -> None:
        """Something was mended."""

    def slice_written(self, verb: Verb, *, good: bool) -> None:
        """A ResourceSlice was written, or could not be."""


UNCOUNTED: Final = Counts()
"""For when nobody wants to know."""
