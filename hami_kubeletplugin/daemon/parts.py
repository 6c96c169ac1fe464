"""The parts of the node daemon, wired: who tells whom of what."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.enforcement import Enforcements, NoEnforcement
from hami_kubeletplugin.claims.ledger import Ledger
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.recovery import Recovery
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.status_writer import StatusWriter
from hami_kubeletplugin.claims.suspects import Suspects
from hami_kubeletplugin.daemon.node import ThisNode
from hami_kubeletplugin.daemon.seen import Seen
from hami_kubeletplugin.daemon.standby import Standby
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.health.events import ConditionEvents
from hami_kubeletplugin.health.heard import Heard
from hami_kubeletplugin.health.kept import Keeper
from hami_kubeletplugin.health.needs import node_readiness
from hami_kubeletplugin.inforce.differing import LimitsDiffer
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.inforce.monitor import InForce
from hami_kubeletplugin.inforce.runtime import host_root
from hami_kubeletplugin.kube.claim_api import ClaimClient
from hami_kubeletplugin.kube.claim_status_api import ClaimStatusApi
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kubelet import handover, other_names
from hami_kubeletplugin.kubelet.gate import Gate
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import DriverLock, own_name
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.publish.beside import Beside
from hami_kubeletplugin.publish.order import UsageWatch
from hami_kubeletplugin.publish.publisher import Publisher

log = get_logger()

FILES_WATCH: Final = 5.0
"""Seconds between looks whether CDI specs are as they were made: a listing, and a `stat` for each."""
OTHERS_WAIT: Final = 5.0
"""Seconds for the first look at the directories beside ours: some `stat` calls, and records of former names if there are any."""
API_GRACE: Final = 4.0
"""Seconds from SIGTERM until prepares wait for the API server no longer: those that are answered in time come to their end."""


class Parts:
    """All of them. Made in the event loop; nothing runs yet, and nothing is written.

    Args:
        settings: The settings.
        api: The API server; open for as long as they run.
        claim_api: The same for prepares.
        lock: Held for as long as they run; not yet while they stand by.
        boot_id: Of the running kernel.
        counts: Told of what they do.

    Attributes:
        is_serving: The lock is held, and claims are worked on.
    """

    def __init__(
        self,
        settings: Settings,
        api: KubeClient,
        claim_api: ClaimClient,
        lock: DriverLock,
        boot_id: str,
        *,
        counts: Counts = UNCOUNTED,
    ) -> None:
        self._settings, self._api, self._claim_api, self._boot_id = settings, api, claim_api, boot_id
        self.counts, self.conditions, self.is_serving = counts, Conditions(), False
        self.node = ThisNode(
            settings, boot_id, conditions=self.conditions, counts=counts, pods=api, changed=self._hardware_changed
        )
        self._publish()
        self._prepare()
        self._serve(lock)

    def _publish(self) -> None:
        """What the cluster hears of it."""
        settings, api = self._settings, self._api
        driver, node = settings.driver_name, settings.node_name
        self.publisher = Publisher(
            api,
            driver=driver,
            node=node,
            sharing=settings,
            conditions=self.conditions,
            effects=settings.effects,
            counts=self.counts,
        )
        self._beside = Beside(
            api,
            driver=driver,
            node=node,
            resources=settings.plugin_resources,
            withhold=settings.given_out_twice == "withheld",
            conditions=self.conditions,
            publish=self.publisher.offer,
        )
        self._suspects = Suspects()
        self._ledger = Ledger(
            records=self.node.records, specs=self.node.specs, sharing=settings, waited_for=self._suspects.add
        )
        self._order = (
            UsageWatch(self._ledger.in_use, self.publisher.order_by) if settings.gpu_order == "spread" else None
        )
        self._heard = Heard(
            conditions=self.conditions,
            events=ConditionEvents(
                api, driver=driver, node=node, claims=self.node.in_records, devices=lambda: self.publisher.devices
            ),
            keeper=Keeper(settings.plugin_dir, own_name(), self._boot_id, self.conditions, self.node.health),
            devices=lambda: self.publisher.devices,
            tell=self.publisher.conditions_changed,
        )
        self.limits_differ = LimitsDiffer(
            self.node.usage.found, self.node.usage.gpus, PodEvents(api, driver=driver, node=node)
        )
        self.in_force = InForce(
            records=self.node.records,
            events=PodEvents(api, driver=driver, node=node),
            hami_dir=settings.hami_dir,
            host_root=host_root(settings.driver_root, settings.host_driver_root),
        )

    def _prepare(self) -> None:
        """What makes of claims what containers get."""
        settings = self._settings
        driver, node = settings.driver_name, settings.node_name
        self._enforcements: Enforcements = {
            "hami-core": HamiCore(self.node.host, settings.hami_dir),
            "none": NoEnforcement(),
        }
        written = settings.device_status == "written"
        self._statuses = StatusWriter(ClaimStatusApi(self._api, driver), pool=node) if written else None
        self.claims = Claims(
            api=self._claim_api,
            inventory=self.node.hardware.inventory,
            edits=self.node.edits,
            files=NodeFiles(
                records=self.node.records,
                specs=self.node.specs,
                ledger=self._ledger,
                enforcements=self._enforcements,
                metadata=self.node.metadata,
            ),
            driver=driver,
            node=node,
            boot_id=self._boot_id,
            timeout=settings.prepare_timeout,
            rights=settings.claim_rights,
            changed=self._order.changed if self._order else None,
            counts=self.counts,
            listener=self._statuses,
        )
        self.recovery = Recovery(
            claims=self.claims,
            api=self._api,
            records=self.node.records,
            specs=self.node.specs,
            driver=driver,
            node=node,
            grace=settings.stale_grace,
            clock=time.monotonic,
            stamp=self.node.edits.stamp,
            counts=self.counts,
        )

    def _serve(self, lock: DriverLock) -> None:
        """What the kubelet talks to."""
        settings = self._settings
        self._gate = Gate(self.claims)
        self.server = KubeletServer(settings, self._gate, self.publisher.health, lock, counts=self.counts)
        self.standby = Standby(settings, self.node, self._api, self.server)
        self.readiness = node_readiness(
            settings,
            self.node.host,
            self.node.edits,
            gpus=lambda: self.node.hardware.uuids,
            registration=self.server.registration,
            conditions=self.conditions,
            told=self.server.standard.tell,
        )
        self._others = other_names.OtherNames(
            other_names.Parts(
                settings,
                self._boot_id,
                self._api,
                self._claim_api,
                self.node.hardware.inventory,
                self.node.edits,
                self._enforcements,
                self.counts,
            ),
            self.conditions,
            self._beside.publishes,
        )

    async def open(self) -> None:
        """Clear up after a former run, and look at all that has to be known before anything is published."""
        await asyncio.to_thread(self.node.clear)
        with contextlib.suppress(TimeoutError):  # what is mounted beside our directory may hang; it is looked at again
            async with asyncio.timeout(OTHERS_WAIT):
                await self._others.look()
        self.publisher.know(await asyncio.to_thread(self.node.kept_in_use))
        await self.readiness.look()
        if self._order:
            await self._order.look()
        self.is_serving = True
        self._gate.open()

    async def hand_over(self) -> None:
        """Have a successor that is ready be registered, before we end."""
        await handover.offer(self._settings.plugin_dir, self.server.place)

    async def leave(self) -> None:
        """Be gone for the kubelet: as after `work`, and if nothing was ever worked on."""
        if not self.is_serving:
            self._gate.close()
        await self.server.leave()

    def work(self) -> Mapping[str, Coroutine[None, None, None]]:
        """What runs side by side until cancelled, by name."""
        settings = self._settings
        return {
            "edits": _until_stop(self.node.edits.close),
            "API server": _until_stop(self.give_up, after=API_GRACE),
            "hardware": self.node.hardware.run(),
            "health": self.node.health.run(),
            "beside": self._beside.run(),
            "publisher": self.publisher.run(),
            "conditions": self._heard.run(),
            **({"order": self._order.run()} if self._order else {}),
            **({"statuses": self._statuses.run()} if self._statuses else {}),
            "kubelet": self.server.run(),
            "other names": self._others.run(),
            "recovery": self.recovery.run(settings.stale_interval),
            "specs": self.recovery.watch(FILES_WATCH),
            "suspects": self._suspects.run(self.recovery.look_at),
            "readiness": self.readiness.run(),
            "in force": self.in_force.run(settings.container_interval),
            "limits differ": self.limits_differ.run(settings.container_interval),
        }

    def seen(self) -> Seen:
        """Who looks what metrics show of GPUs and containers."""
        return Seen(
            self._settings.node_name,
            self._settings,
            usage=self.node.usage,
            gpus=self.node.hardware.by_uuid,
            published=lambda: self.publisher.offered,
            held=self._ledger.in_use,
        )

    def give_up(self) -> None:
        """Prepares no longer wait for the API server; what they write is finished."""
        self.claims.hurry()
        self._claim_api.close()

    def _hardware_changed(self, inventory: Inventory | None) -> None:
        self._beside.offer(inventory)
        self.node.health.known(inventory)
        self.recovery.wake()
        self.readiness.wake()


async def _until_stop(close: Callable[[], None], *, after: float = 0.0) -> None:
    """Call `close` some seconds after the daemon began to stop, before calls in flight have ended: they may wait for it."""
    try:
        await asyncio.Event().wait()
    finally:
        asyncio.get_running_loop().call_later(after, close)
