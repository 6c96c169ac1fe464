"""The claim service as the kubelet gets it: each of its answers is counted, by what came of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hami_kubeletplugin.api.claim import ClaimRef, ClaimService, PreparedDevice
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.claims.reasons import reason
from hami_kubeletplugin.observe.counts import Counts, Operation

Answer = TypeVar("Answer")


class Counted:
    """A `ClaimService` whose answers are counted, one for each claim and call of the kubelet.

    Also where all was as it had to be already, and where the kubelet has gone away before its answer.

    Args:
        claims: Who answers.
        counts: Who is told.
    """

    def __init__(self, claims: ClaimService, counts: Counts) -> None:
        self._claims, self._counts = claims, counts

    def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """See `ClaimService`."""
        return self._counted("prepare", self._claims.prepare, refs)

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """See `ClaimService`."""
        return self._counted("unprepare", self._claims.unprepare, refs)

    def _counted(
        self, operation: Operation, call: Callable[[Sequence[ClaimRef]], Mapping[str, Answer]], refs: Sequence[ClaimRef]
    ) -> Mapping[str, Answer]:
        try:
            answers = call(refs)
        except Exception as error:
            for _ in refs:
                self._counts.answered(operation, reason(error))
            raise
        for answer in answers.values():
            self._counts.answered(operation, reason(answer) if isinstance(answer, HamiError) else "")
        return answers
