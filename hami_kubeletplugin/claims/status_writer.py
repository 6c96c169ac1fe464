"""Writes `status.devices` of claims, behind prepares and never in their way.

What is to be said of each claim waits in memory: the newest for each claim, and a bounded number of them. A write that fails is
tried again after waits that grow, for as long as the claim is there.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ApiError, ApiInvalid, ApiNotFound
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare
from hami_kubeletplugin.claims.status import Json, are_there, entries, has_devices_of
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

MOST: Final = 1000
"""Claims that wait for an API server that is away. A node has some hundred; the next repair offers those that had no place."""
SETTLE: Final = 10.0
"""Seconds until an entry is removed: claims made from templates are gone by then, and with them the need for a write."""
_WAITS: Final = (1.0, 300.0)


class StatusApi(Protocol):
    """What it takes of the API server."""

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """GET a ResourceClaim; raises an ApiError."""

    async def apply_devices(self, namespace: str, name: str, uid: str, devices: Sequence[Json]) -> None:
        """Have these entries, and no others of ours; raises an ApiError."""


@dataclass(slots=True, eq=False)
class _Work:
    """What is to be said of a claim.

    Attributes:
        ref: The claim.
        claim: None: it isn't prepared any more.
        due: When, by the monotonic clock.
        look: Look first whether it is said already.
        wait: Until the next try.
    """

    ref: ClaimRef
    claim: Prepared | None
    due: float
    look: bool
    wait: Backoff = field(default_factory=lambda: Backoff(*_WAITS))


class StatusWriter:
    """Implements `service.ClaimListener`. Made in the event loop that `run` runs in.

    Args:
        api: The API server.
        pool: The pool of this node's devices.
        settle: See `SETTLE`.
    """

    def __init__(self, api: StatusApi, *, pool: str, settle: float = SETTLE) -> None:
        self._api, self._pool, self._settle = api, pool, settle
        self._loop, self._some = asyncio.get_running_loop(), asyncio.Event()
        self._todo: dict[str, _Work] = {}
        self._said: dict[str, tuple[PreparedShare, ...]] = {}
        self._told = Once[str]()

    def prepared(self, claim: Prepared, *, before: bool) -> None:
        """A claim is prepared. For any thread; never waits.

        Args:
            claim: It.
            before: It was already, so it may have been said.
        """
        self._loop.call_soon_threadsafe(self._add, _Work(claim.ref, claim, time.monotonic(), before))

    def unprepared(self, ref: ClaimRef) -> None:
        """A claim is prepared no more. For any thread; never waits."""
        self._loop.call_soon_threadsafe(self._add, _Work(ref, None, time.monotonic() + self._settle, look=True))

    async def run(self) -> None:
        """Say what there is to say, until cancelled."""
        while True:
            now = time.monotonic()
            for work in [work for work in self._todo.values() if work.due <= now]:
                if (
                    self._todo.get(work.ref.uid) is work
                ):  # else there is something newer to say by now, or nothing any more
                    await self._try(work)
            self._some.clear()
            next_due = min((work.due for work in self._todo.values()), default=None)
            try:
                async with asyncio.timeout(None if next_due is None else max(next_due - time.monotonic(), 0)):
                    await self._some.wait()
            except TimeoutError:
                pass

    def _add(self, work: _Work) -> None:
        uid = work.ref.uid
        said = self._said.get(uid)
        if work.claim is None and said is None and uid not in self._todo:
            return
        if work.claim is not None and said == work.claim.shares:
            self._todo.pop(uid, None)
            return
        self._todo[uid] = work
        if len(self._todo) > MOST:
            del self._todo[next(iter(self._todo))]
        self._some.set()

    async def _try(self, work: _Work) -> None:
        ref = work.ref
        if work.claim is None:
            self._said.pop(ref.uid, None)  # also if it is prepared again while this is written
        try:
            await self._say(work)
        except ApiNotFound:
            self._ended(work)
        except ApiInvalid as error:
            # Another claim has its name, or other devices are allocated to it; what is prepared then is offered again.
            log.debug("the status of a claim is not wanted", claim=ref.full_name, claim_uid=ref.uid, error=str(error))
            self._ended(work)
        except ApiError as error:
            work.due = time.monotonic() + work.wait.delay
            work.wait.grow()
            if self._told.is_new("", type(error).__name__):
                log.warning(
                    "status.devices of claims can't be written; trying again",
                    claim=ref.full_name,
                    claim_uid=ref.uid,
                    error=str(error),
                )
        else:
            self._ended(work, said=work.claim)
            if self._told.ended(""):
                log.info("status.devices of claims is written again")

    async def _say(self, work: _Work) -> None:
        ref = work.ref
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = entries(work.claim, since) if work.claim is not None else []
        if work.look:
            found = await self._api.get_claim(ref.namespace, ref.name)
            if found.get("metadata", {}).get("uid") != ref.uid:
                raise ApiNotFound(f"{ref} has another UID now")
            if are_there(found, wanted) if wanted else not has_devices_of(found, self._pool):
                return
        await self._api.apply_devices(ref.namespace, ref.name, ref.uid, wanted)

    def _ended(self, work: _Work, *, said: Prepared | None = None) -> None:
        uid = work.ref.uid
        if said is not None:
            self._said[uid] = said.shares
        else:
            self._said.pop(uid, None)
        if self._todo.get(uid) is work:  # else there is something newer to say
            del self._todo[uid]
