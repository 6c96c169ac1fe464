"""What a prepared claim leaves on the node: record, what enforces its limits, metadata, CDI spec. Blocking: called in threads.

Order makes a crash harmless at any point. Preparing: what an outdated record tells of goes first, then the record is written
(durable), then what can be made from it; so nothing exists that no record tells of, and no record tells of more than can be
made from it. Unprepare: record last. Every path follows from the claim's UID alone, so unprepare works without a record too.
"""

from collections.abc import Mapping

from hami_kubeletplugin.api.errors import ClaimError, HamiError, RecordDamaged
from hami_kubeletplugin.claims.enforcement import Enforced, Enforcements
from hami_kubeletplugin.claims.ledger import Ledger
from hami_kubeletplugin.claims.metadata_files import MetadataFiles
from hami_kubeletplugin.claims.prepared import EnforcedBy, Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.spec import render
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()


class NodeFiles:
    """The claims' files on this node.

    Args:
        records: Claim records.
        specs: CDI specs.
        ledger: What claims hold of the GPUs.
        enforcements: What keeps limits.
        metadata: What containers are told of their devices.
    """

    def __init__(
        self,
        *,
        records: Records,
        specs: SpecFiles,
        ledger: Ledger,
        enforcements: Enforcements,
        metadata: MetadataFiles,
    ) -> None:
        self._records, self._specs, self._ledger, self._enforcements = records, specs, ledger, enforcements
        self._metadata = metadata

    def put(self, prepared: Prepared, gpus: Mapping[str, Gpu], edits: DriverEdits) -> bool:
        """Make everything of a claim be there, whatever was there before. Does nothing where it is right already.

        Args:
            prepared: The plan.
            gpus: The node's GPUs by UUID.
            edits: The driver's edits.

        Returns:
            Whether the spec was not there as it has to be.

        Raises:
            ClaimError, StorageError: The state is what it was before.
        """
        uid = prepared.uid
        enforced: dict[EnforcedBy, Enforced] = {}
        for kind in sorted({use.enforced_by for use in prepared.uses}):
            enforced[kind] = self._enforcements[kind].enforce(prepared, gpus=gpus, edits=edits)
            prepared = enforced[kind].claim
        spec = render(
            prepared,
            gpus=gpus,
            edits=edits,
            enforced=lambda share: enforced[prepared.uses[share.use].enforced_by].edits(share),
            metadata=lambda share: self._metadata.mounts(prepared, share),
        )
        former = self._former(uid)
        has_spec = self._specs.exists(uid)
        new = not has_spec and not self._records.exists(uid)
        if former is not None:
            _refuse_other_gpus(prepared, former)
        elif new:
            _refuse_one_gpu_for_several(prepared)
        with self._ledger.holding(prepared, gpus):
            try:
                for each in enforced.values():
                    each.clear(former, has_spec=has_spec)
                if former != prepared:
                    self._records.save(prepared)
                for each in enforced.values():
                    each.create()
                self._metadata.save(prepared, gpus)
                return self._specs.save(uid, spec)
            except HamiError:
                self._undo(prepared, former, gpus, new=new)
                raise

    def load(self, uid: str) -> Prepared | None:
        """A claim's record, or None if it has none.

        Raises:
            RecordDamaged: It can't be used, or a newer version wrote it; it is left as it is.
            StorageError: It can't be read.
        """
        return self._records.load(uid)

    def knows(self, uid: str) -> bool:
        """Whether a claim has a record, damaged or not."""
        return self._records.exists(uid)

    def are_intact(self, uid: str) -> bool:
        """Whether what containers start with is as it was made. Costs a `stat` for each file."""
        return self._specs.is_intact(uid) and self._metadata.are_intact(uid)

    def take_away(self, uid: str) -> None:
        """Remove everything of a claim. Fine if nothing is there.

        Raises:
            StorageError: Something is left, the record with it, so that it is tried again.
        """
        self._specs.remove(uid)
        for enforcement in self._enforcements.values():
            enforcement.remove(uid)
        self._metadata.remove(uid)
        self._records.remove(uid)
        self._ledger.forget(uid)

    def _former(self, uid: str) -> Prepared | None:
        try:
            return self._records.load(uid)
        except RecordDamaged as error:
            aside = self._records.set_aside(uid)
            log.warning(
                "claim record can't be used and is made anew", claim_uid=uid, error=str(error), kept_at=str(aside)
            )
            return None

    def _undo(self, prepared: Prepared, former: Prepared | None, gpus: Mapping[str, Gpu], *, new: bool) -> None:
        try:
            if new:
                self.take_away(prepared.uid)
            elif former is not None and former != prepared:
                for kind in {use.enforced_by for use in former.uses}:
                    self._enforcements[kind].revive(former)
                self._records.save(former)
                self._metadata.save(former, gpus)  # what lacks of it is mended, from the record
        except HamiError as error:
            # The record stays, so unprepare or the next prepare finds it.
            log.warning("could not undo a failed prepare", claim_uid=prepared.uid, error=str(error))


def _refuse_other_gpus(prepared: Prepared, former: Prepared) -> None:
    """Devices are named by minors, which a driver gives out anew when it is loaded: a name may come to mean another GPU."""
    was = {(share.device, share.share_id): share.uuid for share in former.shares}
    for share in prepared.shares:
        uuid = was.get((share.device, share.share_id), share.uuid)
        if uuid != share.uuid:
            raise ClaimError(
                f"{prepared.ref}: device {share.device} was GPU {uuid} when it was allocated and is GPU {share.uuid} now; "
                "delete the pod so that a GPU is allocated anew"
            )


def _refuse_one_gpu_for_several(prepared: Prepared) -> None:
    """`count: 2` means two GPUs; kube-scheduler 1.35 may give two shares of one. What was prepared before goes on."""
    seen: set[tuple[str, str | None, str]] = set()
    for share in prepared.shares:
        key = share.request, share.subrequest, share.device
        if key in seen:
            raise ClaimError(
                f"{prepared.ref}: request {share.request!r} is for several GPUs and was given shares of one, {share.device}; "
                "kube-scheduler before 1.36 does that. Upgrade it and delete the pod, or write a request for each GPU, kept "
                "apart by distinctAttribute"
            )
        seen.add(key)
