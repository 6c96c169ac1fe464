"""Keeps the node's ResourceSlices as they should be, whatever happens to them.

One session = check the server's version, list our slices, then watch them and write what differs. Every error of the API
ends the session; after a growing wait the next one starts from a fresh list. So nothing is ever concluded from an old state,
and an API server that is away for minutes costs one attempt per half minute.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

from hami_kubeletplugin.api.errors import ApiError, ApiExpired, ApiForbidden, ApiNotFound
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.api.taint_settings import DEFAULT_EFFECTS, Effect
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.gpu.device_health import Reported, reported
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.informer import follow
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kube.retry import Retry, Sleep
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.publish.accepted import Accepted
from hami_kubeletplugin.publish.devices import Device, uuid
from hami_kubeletplugin.publish.observed import Observed
from hami_kubeletplugin.publish.slices import DEVICES_PER_SLICE, TAINTED_PER_SLICE, Pool, Write, reconcile, split
from hami_kubeletplugin.publish.taints import allocatable
from hami_kubeletplugin.publish.wanted import Wanted

log = get_logger()

OLDEST: Final = (1, 35)
"""The allocator of 1.34 checks the capacity of the wrong device of a slice, and a claim with `count: 2` can crash it."""
TAINTS: Final = (1, 36)
"""From here on taints of devices are on by default."""
RECHECK: Final = 300.0
"""Seconds until a refused server is asked for its version again."""
REPAIR_WAIT: Final = (1.0, 60.0)
"""Seconds. The first second gathers the events of one wipe or `kubectl delete` into one repair; the doubling bounds a fight
with another writer to one write a minute; the longest wait is what a pool can stay wrong for in such a fight."""
REPAIR_QUIET: Final = 180.0
"""Seconds without a repair until the wait is short again: longer than the longest wait, or a fight would never slow down."""
_LONGEST_RETRY_AFTER: Final = 120.0


class Publisher:
    """Publishes what it is offered.

    Args:
        client: Open for as long as `run` runs.
        driver: Driver name.
        node: This node, and the pool.
        sharing: Scaling and split count.
        conditions: What is to be said of GPUs; `conditions_changed` has to be called when that is something else.
        effects: Of taints, by kind of condition.
        counts: Told of writes, and of what others had changed.
        sleep: Waits that many seconds.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        driver: str,
        node: str,
        sharing: Sharing,
        conditions: Conditions | None = None,
        effects: Mapping[str, Effect] = DEFAULT_EFFECTS,
        counts: Counts = UNCOUNTED,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._driver, self._node = client, driver, node
        self._conditions = conditions or Conditions()
        self._wanted = Wanted(sharing, self._conditions, effects)
        self._sleep, self._clock, self._counts = sleep, clock, counts
        self.first_published = asyncio.Event()
        """Set once the API server has the first pool."""
        self.published_at: float | None = None
        """UNIX time at which the slices were last known to be right: found so, made so, or not heard of for a while."""
        self._offered = asyncio.Event()
        self._desired: list[Device] | None = None
        self.health = Reported(())
        """How the devices are that the API server has from us, and others of which there is something to be said."""
        self._published: Mapping[str, str] = {}
        self._known: Mapping[str, str] = {}
        self._observed, self._accepted = Observed(), Accepted()
        self._version: tuple[int, int] | None = None
        self._owner: str | None = None
        self._dirty, self._urgent, self._written = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._repairs, self._last_repair = Backoff(*REPAIR_WAIT), float("-inf")
        self._refused = Once[str]()
        self._retry = Retry(
            failing="ResourceSlices can't be published; trying again",
            working="ResourceSlices can be published again",
            restarting="Listing ResourceSlices again",
            longest_retry_after=_LONGEST_RETRY_AFTER,
            sleep=sleep,
        )
        self._unwatched = Retry(
            failing="ResourceSlices may not be watched; they are published all the same, and listed now and then",
            working="ResourceSlices are watched again",
            restarting="Watching ResourceSlices again",
            sleep=sleep,
        )

    def offer(self, inventory: Inventory | None) -> None:
        """Publish these GPUs from now on; None withdraws the pool, e.g. when there is no driver. Never blocks."""
        self._wanted.find(inventory)
        self._want()
        self._offered.set()

    def order_by(self, used: Mapping[str, Usage]) -> None:
        """Have the GPU first of which least is in use, from now on. By UUID. Never blocks."""
        self._wanted.used = used
        self._want()

    def conditions_changed(self) -> None:
        """Taint and report devices by what is said of their GPUs now. Never blocks."""
        self._want()
        self._tell()

    def know(self, prepared: Mapping[str, str]) -> None:
        """Have the kubelet told of these devices too, as pods use them, while there is something to be said: UUIDs by name."""
        self._known = {**{uuid: name for name, uuid in prepared.items()}, **self._known}
        self._tell()

    @property
    def offered(self) -> frozenset[str]:
        """UUIDs of the GPUs that are to be published."""
        return frozenset(map(uuid, self._desired or ()))

    @property
    def devices(self) -> Mapping[str, str]:
        """Names of all devices that are known, by UUID."""
        return self._known

    def _tell(self) -> None:
        self._known = {**self._known, **self._published}
        self.health.set(reported(self._node, self._published, self._known, self._conditions.all.get()))

    def _want(self) -> None:
        desired = self._wanted.devices()
        if desired == self._desired:
            return
        self._desired = desired
        self._urgent.set()
        self._dirty.set()

    async def run(self) -> None:
        """Publish until cancelled. The slices stay then: a daemon that is replaced must not take its pool away."""
        # Before the first offer nothing is known, so slices of an earlier run stay as they are.
        await self._offered.wait()
        while True:
            try:
                await self._session()
            except* ApiError as errors:
                await self._retry.after(_first(errors))

    async def _session(self) -> None:
        version = await self._client.server_version()
        if version < OLDEST:
            await self._refuse(version)
            return
        listed = await self._client.list_slices(self._driver, self._node)
        self._observed, self._owner = Observed.of(listed), None
        if version != self._version:
            self._version, self._accepted.drops_taints = version, False
        self._accepted.forget()
        self._urgent.set()
        self._dirty.set()
        self._written.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(listed.resource_version, version))
            tasks.create_task(self._keep())

    async def _refuse(self, version: tuple[int, int]) -> None:
        listed = await self._client.list_slices(self._driver, self._node)
        for item in listed.items:
            await self._client.delete_slice(item)
        self._published = {}
        self._tell()
        self._retry.works()
        found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        refused = (
            f"Kubernetes {found} is refused, no GPU is published: its scheduler checks the capacity of the wrong device, "
            f"and claims for several GPUs can crash it. Upgrade the cluster to {oldest} or newer"
        )
        if self._refused.is_new(refused):
            log.error(refused, withdrawn=len(listed.items))
        await self._sleep(RECHECK * random.uniform(0.9, 1.1))  # noqa: S311 - no secret

    async def _follow(self, since: str, version: tuple[int, int]) -> None:
        def watch(since: str) -> AsyncGenerator[Event]:
            return self._client.watch_slices(self._driver, self._node, since)

        def take(event: Event) -> None:
            self._unwatched.works()
            if self._observed.take(event):
                if event.type == "DELETED":
                    # Garbage collection takes our slices when the Node object was replaced: look at its UID again.
                    self._owner = None
                self._dirty.set()
            elif not self._dirty.is_set():
                self.published_at = time.time()  # nothing has changed until now

        async def ended(lasted: bool) -> None:
            if lasted:
                self._unwatched.works()
            # It may mean that the server was replaced.
            if await self._client.server_version() != version:
                raise ApiExpired("the API server has another version now: starting over")

        try:
            await follow(watch, since, take, ended, sleep=self._sleep, clock=self._clock)
        except ApiForbidden as error:
            await self._written.wait()
            await self._unwatched.after(error)
            raise ApiExpired(f"listing again, as watching is refused: {error}") from error

    async def _keep(self) -> None:
        while True:
            await self._dirty.wait()
            if not self._urgent.is_set():
                if self._clock() - self._last_repair > REPAIR_QUIET:
                    self._repairs.reset()
                await self._pause(self._repairs.delay)
            repair = not self._urgent.is_set()
            self._urgent.clear()
            self._dirty.clear()
            writes = await self._sync()
            self._written.set()
            self._retry.works()
            if repair and writes:
                self._last_repair = self._clock()
                self._repairs.grow()
                self._counts.repaired("slices")
                log.warning("ResourceSlices were changed or deleted by others; restored", writes=writes)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not longer than until the next offer."""
        waits = [asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._urgent.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _sync(self) -> int:
        """Write what differs; returns the number of writes."""
        wanted, taints = self._desired, self._version is not None and self._version >= TAINTS
        keeps = taints and not self._accepted.drops_taints
        offered = wanted if wanted is None or keeps else allocatable(wanted)
        parts = [] if offered is None else split(offered, TAINTED_PER_SLICE if taints else DEVICES_PER_SLICE)
        if parts and self._owner is None:
            self._owner = await self._node_uid()
        desired = [self._accepted.devices(index, part) for index, part in enumerate(parts)]
        writes = reconcile(Pool(self._driver, self._node, self._owner or ""), desired, self._observed.all())
        for write in writes:
            try:
                await self._write(write)
            except ApiError:
                self._counts.slice_written(write.verb, good=False)
                raise
            self._counts.slice_written(write.verb, good=True)
        if keeps and self._accepted.drops_taints:
            self._urgent.set()
            self._dirty.set()
        self._published = {uuid(device): device["name"] for device in wanted or ()}
        self._tell()
        self.published_at = time.time()
        if writes:
            log.info("ResourceSlices written", devices=sum(map(len, parts)), slices=len(parts), writes=len(writes))
        if parts:
            self.first_published.set()
        return len(writes)

    async def _write(self, write: Write) -> None:
        if write.verb == "delete":
            await self._client.delete_slice(write.slice)
            self._observed.deleted(write.slice)
            return
        send = self._client.create_slice if write.verb == "create" else self._client.update_slice
        stored = await send(write.slice)
        self._observed.wrote(stored)
        self._accepted.note(write.slice, stored)

    async def _node_uid(self) -> str:
        try:
            return str((await self._client.get_node(self._node))["metadata"]["uid"])
        except ApiNotFound as error:
            raise ApiNotFound(
                f"node {self._node} does not exist in the cluster, so its GPUs can't be published: check --node-name, "
                f"or wait until the kubelet has registered it ({error})"
            ) from error


def _first(errors: BaseExceptionGroup[ApiError]) -> ApiError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
