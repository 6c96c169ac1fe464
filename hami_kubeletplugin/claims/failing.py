"""Claims that could not be mended: said once for each reason, and tried again after waits that grow."""

from collections.abc import Callable, Collection
from typing import Final

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

_LONGEST_WAIT: Final = 60.0


class Failing:
    """By UID. For one who writes; others may ask meanwhile.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._said = clock, Once[str]()
        self._waits: dict[str, tuple[Backoff, float]] = {}
        self._damaged: set[str] = set()

    def again(self, uid: str, error: Exception, first_wait: float) -> None:
        """It failed; it is due after that many seconds, or more if it failed before."""
        self.say(uid, error)
        wait, _ = self._waits.get(uid) or (Backoff(first_wait, _LONGEST_WAIT), 0.0)
        self._waits[uid] = wait, self._clock() + wait.delay
        wait.grow()

    def damaged(self, uid: str) -> None:
        """Its record can't be used, which holds until it works or is gone."""
        self._damaged.add(uid)

    def works(self, uid: str) -> None:
        """It is as it has to be."""
        self._said.ended(uid)
        self._waits.pop(uid, None)
        self._damaged.discard(uid)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all others."""
        self._said.keep(uids.__contains__)
        self._waits = {uid: wait for uid, wait in self._waits.items() if uid in uids}
        self._damaged.intersection_update(uids)

    def is_due(self, uid: str, *, otherwise: bool) -> bool:
        """Whether it is time to try again; `otherwise`, if it doesn't fail."""
        found = self._waits.get(uid)
        return otherwise if found is None else found[1] <= self._clock()

    def is_damaged(self, uid: str) -> bool:
        """Whether its record can't be used."""
        return uid in self._damaged

    def say(self, uid: str, error: Exception) -> None:
        """Log why, if that is news."""
        if self._said.is_new(uid, str(error)):
            fault = {} if isinstance(error, HamiError) else {"exc_info": error}
            log.warning("claim can't be restored", claim_uid=uid, error=str(error), **fault)
