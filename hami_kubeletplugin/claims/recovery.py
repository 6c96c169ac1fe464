"""What happens to claims without the kubelet asking: recovery at the start, repair, and clean-up of stale ones."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import (
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    HamiError,
    HardwareError,
    RecordDamaged,
    StorageError,
)
from hami_kubeletplugin.claims.allocation import has_devices_of
from hami_kubeletplugin.claims.failing import Failing
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()


class RecoveryApi(Protocol):
    """What recovery needs of the API server."""

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """GET a ResourceClaim; raises an ApiError."""


class Recovery:
    """Keeps the prepared claims of this node right.

    Args:
        claims: The service; its locks keep us out of the kubelet's way.
        api: The API server.
        records: Claim records.
        specs: CDI specs.
        driver: Our driver name.
        node: Our node name.
        grace: Seconds that a claim must have been found stale for before it is unprepared: its containers may still be
            stopping, and the kubelet normally unprepares it itself.
        clock: Seconds, monotonic.
        stamp: What the driver's part of CDI specs follows from, see `DriverEditsSource`.
        counts: Told of what was mended.
    """

    def __init__(
        self,
        *,
        claims: Claims,
        api: RecoveryApi,
        records: Records,
        specs: SpecFiles,
        driver: str,
        node: str,
        grace: float,
        clock: Callable[[], float],
        stamp: Callable[[], object] = lambda: None,
        counts: Counts = UNCOUNTED,
    ) -> None:
        self._claims, self._api, self._records, self._specs = claims, api, records, specs
        self._driver, self._node, self._grace, self._clock = driver, node, grace, clock
        self._stale_since: dict[str, float] = {}
        self._late = Once[str]()
        self._failing = Failing(clock)
        self._recorded: Collection[str] = ()
        self._woken = asyncio.Event()
        self._stamp, self._counts = stamp, counts
        self._last_stamp: object = None

    @property
    def recorded(self) -> tuple[int, int]:
        """How many claims had a record at the last look: one that can be used, and one that can't and has yet to be made anew."""
        damaged = sum(self._failing.is_damaged(uid) for uid in self._recorded)
        return len(self._recorded) - damaged, damaged

    def wake(self) -> None:
        """Look at all claims now: the hardware has changed."""
        self._woken.set()

    async def run(self, interval: float) -> None:
        """Repair when woken; every `interval` seconds look for stale claims too. Runs until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock() + interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._woken.wait()
            if clock() >= due:  # also when woken again and again
                await self.clean_up()
                due = clock() + interval
            self._woken.clear()
            await self.repair()

    async def watch(self, interval: float) -> None:
        """Mend specs that are gone, changed by others, or of a former driver: containers that start again need what they say.

        A claim for which that fails is tried again after waits that grow, and at once when the driver changes again. Until one
        can be made the former spec stays.
        """
        while True:
            await asyncio.sleep(interval)
            if await asyncio.to_thread(self._driver_changed):
                self.wake()
            for uid in await asyncio.to_thread(self._due):
                await self._mend(uid, first_wait=interval)

    async def repair(self) -> None:
        """Have every claim's files as its record says; make a record that can't be used anew from the API server."""
        try:
            uids = await asyncio.to_thread(self._uids)
        except StorageError as error:
            log.warning("prepared claims can't be looked after now", error=str(error))
            return
        self._failing.keep(uids)
        for uid in sorted(uids):
            await self._mend(uid)

    async def look_at(self, uids: Collection[str]) -> Collection[str]:
        """Look at some claims at once: have their files right, unprepare what has been stale for longer than the grace.

        Returns:
            UIDs of those that are stale, but not for so long yet.
        """
        for uid in uids:
            await self._mend(uid)
        return await self.clean_up(uids)

    async def clean_up(self, only: Collection[str] | None = None) -> Collection[str]:
        """Unprepare claims that are gone from the API server, or not allocated to us any more, for longer than the grace.

        Args:
            only: UIDs of those to look at; None for all.

        Returns:
            UIDs of those that are stale, but not for so long yet.
        """
        now = self._clock()
        try:
            known = await asyncio.to_thread(lambda: self._known(self._uids() if only is None else only))
            stale = [ref for ref, prepared in known.items() if not await self._is_ours(ref, prepared)]
        except (ApiUnavailable, StorageError) as error:
            log.warning("can't look for stale claims now", error=str(error))
            return ()
        others = {} if only is None else {u: at for u, at in self._stale_since.items() if u not in only}
        # Ours while we wait below: another look may go on meanwhile, which finds that some of them aren't stale any more.
        since = {ref.uid: self._stale_since.get(ref.uid, now) for ref in stale}
        self._stale_since = others | since
        if only is None:
            self._late.keep({ref.uid for ref in known}.__contains__)
        waiting = set()
        for ref in stale:
            if now - since[ref.uid] >= self._grace and await self._is_still_stale(ref):
                log.info("unpreparing a stale claim", claim=ref.full_name, claim_uid=ref.uid)
                answer = await asyncio.to_thread(self._claims.unprepare, [ref])
                if answer[ref.uid] is None:
                    self._counts.repaired("stale_claim")
            else:
                waiting.add(ref.uid)
        return waiting

    def _due(self) -> list[str]:
        """Claims that could not be mended a while ago, or whose files aren't as they were made."""
        try:
            self._recorded = uids = self._records.uids()
            return [uid for uid in uids if self._failing.is_due(uid, otherwise=not self._claims.is_intact(uid))]
        except StorageError:
            return []  # repair says so, at its own pace

    def _driver_changed(self) -> bool:
        """Whether the driver's files are others than at the last look."""
        try:
            stamp = self._stamp()
        except HardwareError:
            return False  # claims that need them say so
        changed, self._last_stamp = stamp != self._last_stamp, stamp
        return changed

    async def _mend(self, uid: str, first_wait: float = 1.0) -> None:
        try:
            await self._restore(uid)
        except Exception as error:  # noqa: BLE001 - a fault of ours at one claim must not be the end of all
            self._failing.again(uid, error, first_wait)
        else:
            self._failing.works(uid)

    def _uids(self) -> set[str]:
        """Of every claim that has something on this node."""
        self._recorded = self._records.uids()
        return {*self._recorded, *self._specs.uids()}

    def _known(self, uids: Collection[str]) -> dict[ClaimRef, Prepared | None]:
        """Those of these claims whose name is known."""
        known: dict[ClaimRef, Prepared | None] = {}
        for uid in uids:
            record = self._usable(uid)
            if (ref := record.ref if record else self._lost(uid)) is not None:
                known[ref] = record
        return known

    def _usable(self, uid: str) -> Prepared | None:
        try:
            return self._records.load(uid)
        except StorageError:
            return None

    def _lost(self, uid: str) -> ClaimRef | None:
        """Which claim it is whose record is lost or can't be used, from its spec or else from what is left of the record."""
        for told in (self._specs, self._records):
            try:
                if (ref := told.claim(uid)) is not None:
                    return ref
            except StorageError as error:
                self._failing.say(uid, error)
        return None

    async def _is_ours(self, ref: ClaimRef, prepared: Prepared | None) -> bool:
        """Whether the claim still is allocated to this driver on this node. In doubt it is.

        Raises:
            ApiUnavailable: There is no use in asking for other claims either.
        """
        try:
            claim = await self._api.get_claim(ref.namespace, ref.name)
            ours = claim.get("metadata", {}).get("uid") == ref.uid and has_devices_of(
                claim, self._driver, node=self._node
            )
            if ours and prepared is not None:
                await self._see_late_pods(prepared, claim)
        except ApiNotFound:
            return False
        except ApiUnavailable:
            raise
        except ApiError as error:
            log.warning("can't tell whether a claim is stale", claim=ref.full_name, claim_uid=ref.uid, error=str(error))
            return True
        except Exception:
            log.exception("can't tell whether a claim is stale", claim=ref.full_name, claim_uid=ref.uid)
            return True
        return ours

    async def _is_still_stale(self, ref: ClaimRef) -> bool:
        """Asked once more: it may have been allocated and prepared anew since."""
        try:
            return not await self._is_ours(ref, None)
        except ApiUnavailable:
            return False

    async def _see_late_pods(self, prepared: Prepared, claim: Mapping[str, Any]) -> None:
        """The kubelet gives a claim that it holds for prepared to further pods without a call to us.

        With regions the hook lets none of their containers start. So prepare anew: if the pods before have ended, the claim is
        the late ones' from then on; else the refusal is in the log. Without regions nobody can keep them from starting.
        """
        if not any(use.one_at_a_time for use in prepared.uses):
            return
        known = {pod.uid for pod in prepared.pods}
        late = sorted(str(c.get("name")) for c in claim["status"].get("reservedFor") or [] if c.get("uid") not in known)
        if not late:
            return
        if prepared.regions:
            await asyncio.to_thread(self._claims.prepare, [prepared.ref])
        elif self._late.is_new(prepared.uid, tuple(late)):
            log.warning(
                "pods share a claim that was prepared for another one: each has the whole limit; give each its own claim",
                claim=prepared.ref.full_name,
                claim_uid=prepared.uid,
                prepared_for=[f"{pod.namespace}/{pod.name}" for pod in prepared.pods],
                pods=late,
            )

    async def _restore(self, uid: str) -> None:
        try:
            if not await asyncio.to_thread(self._claims.restore, uid) and not await self._make_anew(uid):
                await asyncio.to_thread(self._specs.check_gone, uid)
        except RecordDamaged:
            self._failing.damaged(uid)
            if not await self._make_anew(uid):
                raise

    async def _make_anew(self, uid: str) -> bool:
        """Whether a lost or damaged record could be made anew: the kubelet won't ask again for a pod that runs."""
        ref = await asyncio.to_thread(self._lost, uid)
        if ref is None:
            return False
        answer = (await asyncio.to_thread(self._claims.prepare, [ref]))[uid]
        if isinstance(answer, HamiError):
            raise answer
        self._counts.repaired("record")
        return True
