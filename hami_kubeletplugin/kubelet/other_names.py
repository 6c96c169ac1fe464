"""Serves claims that were prepared under another driver name, until they are gone.

The kubelet asks the driver that a claim was allocated by: with a new `--driver-name` nobody answers for the old one, and its pods
hang in Terminating for ever. So the old name is registered, too, for what is prepared under it; it publishes nothing, so nothing
comes to it. A name that another daemon serves is left to it, and one that a daemon comes for is given back.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hami_kubeletplugin.api.errors import AlreadyServing, HamiError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.enforcement import Enforcements
from hami_kubeletplugin.claims.ledger import Ledger
from hami_kubeletplugin.claims.metadata_files import FOLDER, MetadataFiles
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.other_names import OtherName, other_names
from hami_kubeletplugin.claims.reader import ClaimApi
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.recovery import Recovery, RecoveryApi
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.gpu.conditions import Condition, Conditions, What
from hami_kubeletplugin.gpu.edits import DriverEditsSource
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import DriverLock, driver_lock
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.observable import Observable
from hami_kubeletplugin.observe.once import Once

log = get_logger()

LOOK: Final = 10.0
"""Seconds between looks at the directories beside ours."""
ABANDONED: Final = 45.0
"""Seconds for which nobody may hold a name's lock until we serve its claims: the kubelet takes 30 to delete the slices of a
driver that is gone, and would keep them from then on; and a daemon that is replaced is back by then."""
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Parts:
    """What claims of any name are served with.

    Attributes:
        settings: Ours; name and directory are the other name's then.
        boot_id: Of the running kernel.
        api: For recovery.
        claim_api: For prepares.
        inventory: As for `Claims`.
        edits: The driver's edits.
        enforcements: What keeps limits.
        counts: Told of what is done.
    """

    settings: Settings
    boot_id: str
    api: RecoveryApi
    claim_api: ClaimApi
    inventory: Callable[[float], Inventory]
    edits: DriverEditsSource
    enforcements: Enforcements
    counts: Counts = UNCOUNTED


class OtherNames:
    """Looks for claims of other names and serves those that nobody else does.

    Args:
        parts: What they are served with.
        conditions: The board: on a GPU that they hold there is less than we would publish.
        publishes: Whether there are slices of a driver on this node.
        look: Seconds between looks.
        abandoned: See `ABANDONED`.
    """

    def __init__(
        self,
        parts: Parts,
        conditions: Conditions,
        publishes: Callable[[str], bool],
        *,
        look: float = LOOK,
        abandoned: float = ABANDONED,
    ) -> None:
        self._parts, self._conditions, self._publishes = parts, conditions, publishes
        self._interval, self._abandoned = look, abandoned
        self._found: list[OtherName] = []
        self._free_since: dict[str, float] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._said = Once[str]()

    async def look(self) -> None:
        """Find them, and have what they hold be known."""
        settings = self._parts.settings
        self._found = await asyncio.to_thread(other_names, settings.plugin_dir, settings.driver_name)
        held: dict[str, list[Condition]] = {}
        for name in self._found:
            for uuid in {uuid for claim in name.claims for use in claim.uses if not use.admin for uuid in use.gpus}:
                held.setdefault(uuid, []).append(_holds(name))
            if self._said.is_new(name.driver, len(name.claims)):
                log.warning(
                    "claims are prepared on this node under another driver name; GPUs that they hold are given out twice if "
                    "they are published: delete their pods, or wait for their end",
                    driver=name.driver,
                    plugin_dir=str(name.plugin_dir),
                    claims=[claim.ref.full_name for claim in name.claims[:_NAMED]],
                    pods=sorted({f"{pod.namespace}/{pod.name}" for claim in name.claims for pod in claim.pods})[
                        :_NAMED
                    ],
                )
        self._said.keep({name.driver for name in self._found}.__contains__)
        self._conditions.report("other names", held)

    async def run(self) -> None:
        """Look, and serve, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval)
                await self.look()
                for name in self._found:
                    if name.driver not in self._serving and await self._is_abandoned(name):
                        self._serving[name.driver] = asyncio.create_task(self._serve(name), name=name.driver)
        finally:
            for task in self._serving.values():
                task.cancel()
            await asyncio.gather(*self._serving.values(), return_exceptions=True)

    async def _is_abandoned(self, name: OtherName) -> bool:
        now = time.monotonic()
        try:
            async with driver_lock(name.plugin_dir, 0):
                since = self._free_since.setdefault(name.driver, now)
        except HamiError:
            self._free_since.pop(name.driver, None)
            return False
        return now - since >= self._abandoned and not self._publishes(name.driver)

    async def _serve(self, name: OtherName) -> None:
        try:
            async with driver_lock(name.plugin_dir, 0) as lock:
                log.info("serving the claims of another driver name until they are gone", driver=name.driver)
                await self._serve_locked(name, lock)
        except AlreadyServing:
            log.info("another daemon serves that driver name now", driver=name.driver)
        except HamiError as error:
            log.error("claims of another driver name can't be served", driver=name.driver, error=str(error))
        finally:
            self._free_since.pop(name.driver, None)
            del self._serving[name.driver]

    async def _serve_locked(self, name: OtherName, lock: DriverLock) -> None:
        parts = self._parts
        settings = parts.settings.model_copy(update={"driver_name": name.driver, "plugin_dir": name.plugin_dir})
        records, specs = Records(name.plugin_dir / "claims"), SpecFiles(settings.cdi_dir, name.driver)
        ledger = Ledger(records=records, specs=specs, sharing=settings, waited_for=lambda _: None)
        metadata = MetadataFiles(name.plugin_dir / FOLDER, wanted=settings.device_metadata == "mounted")
        await asyncio.to_thread(lambda: metadata.open({*records.uids(), *specs.uids()}))
        claims = Claims(
            api=parts.claim_api,
            inventory=parts.inventory,
            edits=parts.edits,
            files=NodeFiles(
                records=records, specs=specs, ledger=ledger, enforcements=parts.enforcements, metadata=metadata
            ),
            driver=name.driver,
            node=settings.node_name,
            boot_id=parts.boot_id,
            timeout=settings.prepare_timeout,
            rights=settings.claim_rights,
            counts=parts.counts,
        )
        recovery = Recovery(
            claims=claims,
            api=parts.api,
            records=records,
            specs=specs,
            driver=name.driver,
            node=settings.node_name,
            grace=settings.stale_grace,
            clock=time.monotonic,
            counts=parts.counts,
        )
        server = KubeletServer(settings, claims, Observable(()), lock, counts=parts.counts)
        recovery.wake()  # after a reboot there are records alone
        work = [
            asyncio.create_task(each)
            for each in (server.run(), recovery.run(settings.stale_interval), recovery.watch(self._interval))
        ]
        try:
            # Slices that are there after all would stay there as long as the name is registered.
            while not (wanted := lock.is_wanted or self._publishes(name.driver)) and await asyncio.to_thread(
                lambda: bool(records.uids() or specs.uids())
            ):
                done, _ = await asyncio.wait(work, timeout=self._interval, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await asyncio.to_thread(claims.close)
        log.info(
            "the other driver name is given back" if wanted else "all claims of another driver name are gone",
            driver=name.driver,
        )


def _holds(name: OtherName) -> Condition:
    return Condition(
        What.GIVEN_OUT_TWICE,
        f"claims that were prepared under driver name {name.driver} hold it: it is this driver's alone when their pods are gone",
        name.driver,
    )
