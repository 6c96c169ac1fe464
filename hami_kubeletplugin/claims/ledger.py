"""What prepared claims hold of each GPU, so that it never is more than there is, whatever was allocated.

kube-scheduler may give out a GPU twice (kubernetes/kubernetes#133602 and others), and a claim may be free in the API server while
its containers have yet to end here. So a claim that is new on this node has to fit beside what records tell of. What holds its
share already goes on, even if there is less by now than when it came.

In memory, as the records say; a prepare costs the same however many claims there are.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import NoRoom, StorageError
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.claims.usage import UNUSED, Usage, usage
from hami_kubeletplugin.gpu.capacity import capacity, default_slot
from hami_kubeletplugin.gpu.model import Gpu

_NAMED: Final = 5
"""Claims that a refusal names; events are short."""

Held = Mapping[str, Usage]
"""By GPU UUID."""


class Ledger:
    """Who holds how much of which GPU on this node. Thread-safe.

    Read from the records when it is first needed. A claim that has a spec but no record that can be used may have containers
    that run, and nobody knows on which GPU: until recovery has made its record anew, or it is unprepared, no claim that is new
    gets in.

    Args:
        records: Claim records.
        specs: CDI specs.
        sharing: How much there is of a GPU.
        waited_for: Called with the UIDs of claims that keep another one out, from any thread; must not wait.
    """

    def __init__(
        self, *, records: Records, specs: SpecFiles, sharing: Sharing, waited_for: Callable[[Collection[str]], None]
    ) -> None:
        self._records, self._specs, self._sharing, self._waited_for = records, specs, sharing, waited_for
        self._slot = default_slot(sharing)
        self._lock, self._read = threading.Lock(), False
        self._held: dict[str, Held] = {}
        self._total: dict[str, Usage] = defaultdict(lambda: UNUSED)
        self._holders: dict[str, dict[str, ClaimRef]] = defaultdict(dict)
        self._unknown: set[str] = set()

    @contextmanager
    def holding(self, claim: Prepared, gpus: Mapping[str, Gpu]) -> Iterator[None]:
        """Have a claim's share be its own while it is written, and from then on; if that fails, what its record says then.

        The caller holds the claim's lock.

        Args:
            claim: The claim.
            gpus: The node's GPUs by UUID.

        Raises:
            NoRoom: There is not so much left; the message says who has it.
            StorageError: It can't be told what others hold.
        """
        wanted = usage(claim, self._slot)
        with self._lock:
            self._read_once()
            before = self._held.get(claim.uid, {})
            if claim.uid not in self._unknown:  # else its containers may run: it isn't new
                self._check(claim, wanted, before, gpus)
            self._set(claim.ref, {u: before.get(u, UNUSED) | wanted.get(u, UNUSED) for u in {*before, *wanted}})
        try:
            yield
        except BaseException:
            self._settle(claim.ref)
            raise
        with self._lock:
            self._unknown.discard(claim.uid)
            self._set(claim.ref, wanted)

    def forget(self, uid: str) -> None:
        """A claim's record is gone."""
        with self._lock:
            self._unknown.discard(uid)
            self._set(ClaimRef("", "", uid), {})

    def in_use(self) -> Held:
        """What is held of each GPU.

        Raises:
            StorageError: It can't be told.
        """
        with self._lock:
            self._read_once()
            return dict(self._total)

    def _read_once(self) -> None:
        if self._read:
            return
        uids, with_spec = self._records.uids(), set(self._specs.uids())
        for uid in uids:
            try:
                record = self._records.load(uid)
            except StorageError:  # recovery says so
                continue
            if record is not None:
                self._set(record.ref, usage(record, self._slot))
                with_spec.discard(uid)
        self._unknown = with_spec
        self._read = True

    def _settle(self, ref: ClaimRef) -> None:
        """Hold what the record says. If nobody can tell, what was and what was wanted."""
        try:
            record = self._records.load(ref.uid)
        except StorageError:
            return
        with self._lock:
            self._set(ref, usage(record, self._slot) if record is not None else {})

    def _set(self, ref: ClaimRef, held: Held) -> None:
        for uuid, was in self._held.pop(ref.uid, {}).items():
            self._total[uuid] -= was
            del self._holders[uuid][ref.uid]
            if not self._holders[uuid]:
                del self._holders[uuid], self._total[uuid]
        for uuid, each in held.items():
            self._total[uuid] += each
            self._holders[uuid][ref.uid] = ref
        if held:
            self._held[ref.uid] = held

    def _check(self, claim: Prepared, wanted: Held, before: Held, gpus: Mapping[str, Gpu]) -> None:
        new = [uuid for uuid, each in wanted.items() if not _fits(each, before.get(uuid, UNUSED))]
        if new and self._unknown:
            self._unknown.intersection_update(self._specs.uids())  # people may have removed one
        if new and self._unknown:
            self._waited_for(list(self._unknown))
            path = self._specs.path(min(self._unknown))
            raise NoRoom(
                f"{claim.ref}: it can't be told what is free on this node's GPUs, since nobody knows what claim UID "
                f"{_some(sorted(self._unknown))} holds, which has a CDI spec here and no record that can be used. The record is "
                "made anew from the API server, and then this claim is tried again; if that does not come about, the daemon's "
                f"log says why. Deleting that claim's pod ends it, or removing {path} if no container here was started with it"
            )
        for uuid in new:
            there = capacity(gpus[uuid], self._sharing)
            left = Usage(there.slots, there.memory_mib, there.cores) - (
                self._total.get(uuid, UNUSED) - before.get(uuid, UNUSED)
            )
            if not _fits(wanted[uuid], left):
                others = {uid: ref for uid, ref in self._holders.get(uuid, {}).items() if uid != claim.uid}
                self._waited_for(list(others))
                raise NoRoom(_refusal(claim, gpus[uuid], wanted[uuid], left, others.values()))


def _fits(wanted: Usage, there: Usage) -> bool:
    return wanted.slots <= there.slots and wanted.memory_mib <= there.memory_mib and wanted.cores <= there.cores


def _refusal(claim: Prepared, gpu: Gpu, wanted: Usage, left: Usage, holders: Collection[ClaimRef]) -> str:
    kinds = {
        "MiB of memory": (wanted.memory_mib, left.memory_mib),
        "percent of its cores": (wanted.cores, left.cores),
        "sharing slots": (wanted.slots, left.slots),
    }
    lacking = " and ".join(
        f"{needed} {what}, of which {max(free, 0)} are free" for what, (needed, free) in kinds.items() if needed > free
    )
    where = f"{claim.ref} was allocated more of device {gpu.device_name} ({gpu.uuid}) than there is: {lacking}"
    if not holders:
        return f"{where}; the node's GPUs or the driver's options are others now. Delete the pod, and a GPU is allocated anew"
    return (
        f"{where}. {_some([ref.full_name for ref in islice(holders, _NAMED + 1)], len(holders))} holds the rest on this node. "
        "It is tried again, and starts when that is unprepared; if both pods are to run at once, delete this one, and a GPU is "
        "allocated anew"
    )


def _some(names: Collection[str], count: int | None = None) -> str:
    more = (count or len(names)) - _NAMED
    return ", ".join(islice(names, _NAMED)) + (f" and {more} more" if more > 0 else "")
