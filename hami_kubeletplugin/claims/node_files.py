"""What a prepared claim leaves on the node: record, regions or cache directories, CDI spec. Blocking: called in threads.

Order makes a crash harmless at any point. Preparing: what an outdated record tells of goes first, then the record is written
(durable), then what can be made from it; so nothing exists that no record tells of, and no record tells of more than can be
made from it. Unprepare: record last. Every path follows from the claim's UID alone, so unprepare works without a record too.
"""

from collections.abc import Mapping
from pathlib import Path

from hami_kubeletplugin.api.errors import ClaimError, HamiError, RecordDamaged
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.spec import regions, render
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore.caches import create_cache, remove_caches
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.region import Region
from hami_kubeletplugin.hamicore.regions import create_regions, region_files, remove_templates
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()


class NodeFiles:
    """The claims' files on this node.

    Args:
        records: Claim records.
        specs: CDI specs.
        host: HAMi-core's files.
        hami_dir: Where they are; the cache directories too.
    """

    def __init__(self, *, records: Records, specs: SpecFiles, host: HostFiles, hami_dir: Path) -> None:
        self._records, self._specs, self._host, self._hami_dir = records, specs, host, hami_dir

    def put(self, prepared: Prepared, gpus: Mapping[str, Gpu], edits: DriverEdits) -> None:
        """Make everything of a claim be there, whatever was there before. Does nothing where it is right already.

        Args:
            prepared: The plan.
            gpus: The node's GPUs by UUID.
            edits: The driver's edits.

        Raises:
            ClaimError, StorageError: The state is what it was before.
        """
        uid = prepared.uid
        installed = self._host.check()
        prepared = prepared.model_copy(update={"library": installed.version, "regions": installed.renewal is not None})
        made = regions(prepared, gpus=gpus, installed=installed)
        spec = render(prepared, gpus=gpus, edits=edits, installed=installed, made=made, hami_dir=self._hami_dir)
        former = self._former(uid)
        if former is not None:
            _refuse_other_gpus(prepared, former)
        has_spec = self._specs.exists(uid)
        new = not has_spec and not self._records.exists(uid)
        # Without a good record, a spec is what tells that a container may be running: a reboot empties its directory.
        fresh = prepared.needs_fresh_caches(former) if former is not None else not (has_spec or prepared.regions)
        try:
            if fresh:
                remove_caches(self._hami_dir, uid)
            if former != prepared:
                self._records.save(prepared)
            self._create_caches(prepared)
            create_regions(self._hami_dir, uid, made)
            self._specs.save(uid, spec)
        except HamiError:
            self._undo(prepared, former, new=new)
            raise
        self._forget_templates(uid, made)

    def load(self, uid: str) -> Prepared | None:
        """A claim's record, or None if it has none.

        Raises:
            RecordDamaged, RecordTooNew, StorageError: It can't be used; it is left as it is.
        """
        return self._records.load(uid)

    def knows(self, uid: str) -> bool:
        """Whether a claim has a record, damaged or not."""
        return self._records.exists(uid)

    def take_away(self, uid: str) -> None:
        """Remove everything of a claim. Fine if nothing is there.

        Raises:
            StorageError: Something is left, the record with it, so that it is tried again.
        """
        self._specs.remove(uid)
        remove_caches(self._hami_dir, uid)
        self._records.remove(uid)

    def _former(self, uid: str) -> Prepared | None:
        try:
            return self._records.load(uid)
        except RecordDamaged as error:
            aside = self._records.set_aside(uid)
            log.warning("claim record is damaged and made anew", claim_uid=uid, error=str(error), kept_at=str(aside))
            return None

    def _create_caches(self, prepared: Prepared) -> None:
        for use in prepared.stored("directory"):
            create_cache(self._hami_dir, prepared.uid, use)

    def _forget_templates(self, uid: str, made: Mapping[str, Region]) -> None:
        """Former templates go when no spec names them any more: until then a container may start with one."""
        named = [region_files(self._hami_dir, uid, use, region).template for use, region in made.items()]
        try:
            remove_templates(self._hami_dir, uid, named)
        except HamiError as error:
            log.warning("an old template stays until the claim is unprepared", claim_uid=uid, error=str(error))

    def _undo(self, prepared: Prepared, former: Prepared | None, *, new: bool) -> None:
        try:
            if new:
                self.take_away(prepared.uid)
            elif former is not None and former != prepared:
                self._create_caches(former)
                self._records.save(former)
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
