"""What is on this node: GPUs, the files of claims, HAMi-core, and what is used of them."""

from collections.abc import Callable, Mapping

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.metadata_files import FOLDER, MetadataFiles
from hami_kubeletplugin.claims.other_names import check_names
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.gpu.known import KnownGpus
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.gpu.source import driver_edits_for, sessions_for, source_for
from hami_kubeletplugin.gpu.watch import HardwareWatch
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.hamicore.toolkit_hook import ToolkitHook
from hami_kubeletplugin.hanging import MayHang
from hami_kubeletplugin.health.service import GpuHealth
from hami_kubeletplugin.inforce.runtime import host_root
from hami_kubeletplugin.observe.counts import Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.usage.pods import PodApi
from hami_kubeletplugin.usage.service import UsageOfNode

log = get_logger()


class ThisNode:
    """All of it. Nothing is looked at yet, and nothing is written.

    Args:
        settings: The settings.
        boot_id: Of the running kernel.
        conditions: Where what is to be said of GPUs is reported.
        counts: Told of what is done.
        pods: Where pods can be asked for.
        changed: Called, in the event loop, with each new inventory, or None while there is none.
    """

    def __init__(
        self,
        settings: Settings,
        boot_id: str,
        *,
        conditions: Conditions,
        counts: Counts,
        pods: PodApi,
        changed: Callable[[Inventory | None], None],
    ) -> None:
        self._driver, self._folder = settings.driver_name, settings.plugin_dir / "claims"
        self.records = Records(self._folder)
        self._reading = MayHang("the directory of claims' records", StorageError)
        self.specs = SpecFiles(settings.cdi_dir, settings.driver_name)
        self.metadata = MetadataFiles(settings.plugin_dir / FOLDER, wanted=settings.device_metadata == "mounted")
        shipped = Shipped(
            settings.hami_core, settings.hami_core_version, settings.glibc_floor, region_hook=settings.region_hook
        )
        self.host = HostFiles(shipped, settings.hami_dir, settings.claim_files, counts)
        self._hook, self._may_write = ToolkitHook(settings.own_cdi_hook, settings.hami_dir, counts), False
        self.edits = driver_edits_for(
            settings, host_root(settings.driver_root, settings.host_driver_root), self.own_hook
        )
        self.sessions = sessions_for(settings)
        self.only_looks = source_for(settings, sessions=self.sessions)
        """The GPUs as they are found by who may write nothing."""
        self.hardware = HardwareWatch(
            source_for(settings, self._devices_in_use, sessions=self.sessions),
            interval=settings.rescan_interval,
            on_change=changed,
            in_use=self._gpus_in_use,
            known=KnownGpus(settings.plugin_dir / "gpus.json", boot_id),
        )
        self.health = GpuHealth(
            settings, conditions, self.sessions, in_use=self._gpus_in_use, hardware_changed=self.hardware.wake
        )
        self.usage = UsageOfNode(
            records=self.records,
            hami_dir=settings.hami_dir,
            gpus=self.hardware.by_uuid,
            sessions=self.sessions,
            pods=pods,
            installed=lambda: self.host.installed,
            idle=settings.health_poll,
        )

    def own_hook(self) -> str:
        """Where the image's `nvidia-cdi-hook` is on the host, or will be as soon as we may write; see `ToolkitHook`. Blocks."""
        return self._hook.path() if self._may_write else self._hook.planned()

    def in_records(self) -> tuple[Prepared, ...]:
        """What is prepared. GPUs are watched, and told of, also while the disk hangs: then that is a StorageError."""
        folder = str(self._folder)
        return self._reading.each(lambda _: tuple(self.records.usable()), [folder])[folder]

    def _devices_in_use(self) -> Mapping[str, str]:
        """Which GPU (UUID) each device was when a claim was prepared for it."""
        return {share.device: share.uuid for claim in self.in_records() for share in claim.shares}

    def _gpus_in_use(self) -> frozenset[str]:
        return frozenset(self._devices_in_use().values())

    def kept_in_use(self) -> Mapping[str, str]:
        """Which GPU (UUID) each device is that claims hold, as far as their records can be read. Blocks."""
        try:
            return self._devices_in_use()
        except StorageError:  # recovery says so
            return {}

    def check_records(self) -> None:
        """See, without writing, that records can be read, and are this driver's. Blocks, for a bounded time.

        Raises:
            StorageError: They can't, or aren't, and `clear` would say so, too.
        """
        self.in_records()
        folder = str(self._folder)
        self._reading.each(lambda _: check_names(self.records, self._driver), [folder])

    def clear(self) -> None:
        """Remove what a former run left of writes that it did not finish: from now on we write. Blocks."""
        check_names(self.records, self._driver)
        self._may_write = True

        def forget() -> None:
            self.metadata.open({*self.records.uids(), *self.specs.uids()})

        for clear in (self.records.open, self.specs.open, forget):
            try:
                clear()
            except StorageError as error:
                # Not fatal: claims that are prepared can still be unprepared. What prepares need is looked at by itself.
                log.error("what a former run left can't be cleared away", error=str(error))
