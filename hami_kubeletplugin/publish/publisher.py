"""Keeps the node's ResourceSlices as they should be, whatever happens to them.

One session = check the server's version, list our slices, then watch them and write what differs. Every error of the API
ends the session; after a growing wait the next one starts from a fresh list. So nothing is ever concluded from an old state,
and an API server that is away for minutes costs one attempt per half minute.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from hami_kubeletplugin.api.errors import ApiError, ApiExpired, ApiNotFound, ApiUnavailable
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.publish.devices import Device, devices
from hami_kubeletplugin.publish.slices import Pool, Slice, Write, differences, reconcile, split

log = get_logger()

OLDEST: Final = (1, 35)
"""The allocator of 1.34 checks the capacity of the wrong device of a slice, and a claim with `count: 2` can crash it."""
RECHECK: Final = 300.0
"""Seconds until a refused server is asked for its version again."""
ERROR_WAIT: Final = (0.8, 30.0)
"""Seconds, first and longest, less up to half at random; the same as client-go's."""
REPAIR_WAIT: Final = (1.0, 60.0)
"""Seconds. The first second gathers the events of one wipe or `kubectl delete` into one repair; the doubling bounds a fight
with another writer to one write a minute; the longest wait is what a pool can stay wrong for in such a fight."""
REPAIR_QUIET: Final = 180.0
"""Seconds without a repair until the wait is short again: longer than the longest wait, or a fight would never slow down."""
_LONGEST_RETRY_AFTER: Final = 120.0
_SHORTEST_WATCH: Final = 1.0


class Publisher:
    """Publishes what it is offered.

    Args:
        client: Open for as long as `run` runs.
        driver: Driver name.
        node: This node, and the pool.
        sharing: Scaling and split count.
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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._driver, self._node, self._sharing = client, driver, node, sharing
        self._sleep, self._clock = sleep, clock
        self.first_published = asyncio.Event()
        """Set once the API server has the first pool."""
        self.published_at: float | None = None
        """UNIX time at which the slices were last found, or made, right."""
        self._offered = asyncio.Event()
        self._desired: list[Device] | None = None
        self._published: tuple[tuple[str, str], ...] = ()
        self._republished = asyncio.Event()
        self._observed: dict[str, Slice] = {}
        self._owner: str | None = None
        self._accepted: dict[int, tuple[list[Device], list[Device]]] = {}
        self._dirty, self._urgent = asyncio.Event(), asyncio.Event()
        self._errors, self._repairs, self._last_repair = Backoff(*ERROR_WAIT), Backoff(*REPAIR_WAIT), float("-inf")
        self._told: set[str] = set()
        self._last_error = ""

    def offer(self, inventory: Inventory | None) -> None:
        """Publish these GPUs from now on; None withdraws the pool, e.g. when there is no driver. Never blocks."""
        desired = None if inventory is None else devices(inventory.gpus, self._sharing)
        if self._offered.is_set() and desired == self._desired:
            return
        self._desired = desired
        self._offered.set()
        self._urgent.set()
        self._dirty.set()

    def published(self) -> Sequence[tuple[str, str]]:
        """(pool, device) of what the API server has from us."""
        return self._published

    async def changed(self, since: Sequence[tuple[str, str]]) -> None:
        """Return as soon as `published()` differs from `since`."""
        while tuple(since) == self._published:
            await self._republished.wait()

    async def run(self) -> None:
        """Publish until cancelled. The slices stay then: a daemon that is replaced must not take its pool away."""
        # Before the first offer nothing is known, so slices of an earlier run stay as they are.
        await self._offered.wait()
        while True:
            try:
                await self._session()
            except* ApiError as errors:
                await self._back_off(_first(errors))

    async def _session(self) -> None:
        version = await self._client.server_version()
        if version < OLDEST:
            await self._refuse(version)
            return
        listed = await self._client.list_slices(self._driver, self._node)
        self._observed = {item["metadata"]["name"]: item for item in listed.items}
        self._owner = None
        # What the server dropped last time may be accepted now, if it was restarted with another gate.
        self._accepted.clear()
        self._urgent.set()
        self._dirty.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(listed.resource_version, version))
            tasks.create_task(self._keep())

    async def _refuse(self, version: tuple[int, int]) -> None:
        listed = await self._client.list_slices(self._driver, self._node)
        for item in listed.items:
            await self._client.delete_slice(item)
        self._now_published(())
        self._worked()
        found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        self._once(
            f"Kubernetes {found} is refused, no GPU is published: its scheduler checks the capacity of the wrong device, "
            f"and claims for several GPUs can crash it. Upgrade the cluster to {oldest} or newer",
            withdrawn=len(listed.items),
        )
        await self._sleep(RECHECK * random.uniform(0.9, 1.1))  # noqa: S311 - no secret

    async def _follow(self, since: str, version: tuple[int, int]) -> None:
        while True:
            started = self._clock()
            async with aclosing(self._client.watch_slices(self._driver, self._node, since)) as events:
                async for event in events:
                    since = event.object["metadata"]["resourceVersion"]
                    if self._is_news(event):
                        self._dirty.set()
            if self._clock() - started < _SHORTEST_WATCH:
                await self._sleep(_SHORTEST_WATCH)
            # A watch that ended may mean that the server was replaced.
            if await self._client.server_version() != version:
                raise ApiExpired("the API server has another version now: starting over")

    def _is_news(self, event: Event) -> bool:
        """Take an event into what we know; False for bookmarks and for the echo of our own writes."""
        if event.type == "BOOKMARK":
            return False
        name, theirs = event.object["metadata"]["name"], event.object["metadata"]
        ours = self._observed.get(name, {}).get("metadata", {})
        if event.type == "DELETED":
            if ours.get("uid") != theirs["uid"]:
                return False
            del self._observed[name]
            # Garbage collection takes our slices when the Node object was replaced: look at its UID again.
            self._owner = None
            return True
        if ours.get("uid") == theirs["uid"] and int(ours["resourceVersion"]) >= int(theirs["resourceVersion"]):
            return False
        self._observed[name] = event.object
        return True

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
            self._worked()
            if repair and writes:
                self._last_repair = self._clock()
                self._repairs.grow()
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
        offered = self._desired
        parts = [] if offered is None else split(offered)
        if parts and self._owner is None:
            self._owner = await self._node_uid()
        desired = [self._as_accepted(index, part) for index, part in enumerate(parts)]
        writes = reconcile(Pool(self._driver, self._node, self._owner or ""), desired, self._observed.values())
        for write in writes:
            await self._write(write)
        self._now_published(tuple((self._node, device["name"]) for device in offered or ()))
        self.published_at = time.time()
        if writes:
            log.info("ResourceSlices written", devices=len(self._published), slices=len(parts), writes=len(writes))
        if parts:
            self.first_published.set()
        return len(writes)

    def _now_published(self, devices: tuple[tuple[str, str], ...]) -> None:
        if devices != self._published:
            self._published = devices
            self._republished.set()
            self._republished = asyncio.Event()

    def _as_accepted(self, index: int, sent: list[Device]) -> list[Device]:
        """What the server made of these devices last time, if it dropped something."""
        before, accepted = self._accepted.get(index, (None, sent))
        return accepted if before == sent else sent

    async def _write(self, write: Write) -> None:
        if write.verb == "delete":
            await self._client.delete_slice(write.slice)
            self._observed.pop(write.slice["metadata"]["name"], None)
            return
        send = self._client.create_slice if write.verb == "create" else self._client.update_slice
        stored = await send(write.slice)
        self._observed[stored["metadata"]["name"]] = stored
        sent, got = write.slice["spec"]["devices"], stored["spec"].get("devices", [])
        dropped = differences(sent, got)
        if dropped:
            self._tell_dropped(dropped)
            # From now on what the server keeps is right, or we would write the same again and again.
            index = int(stored["metadata"]["name"].partition("-")[0], 16)
            self._accepted[index] = (sent, got)

    def _tell_dropped(self, fields: list[str]) -> None:
        gated = [field for field in fields if "allowMultipleAllocations" in field or "requestPolicy" in field]
        if gated:
            self._once(
                "The API server dropped fields of our devices: its feature gate DRAConsumableCapacity is off. Turn it on in "
                "kube-apiserver, kube-scheduler, kube-controller-manager and kubelet; GPUs are published without them",
                fields=gated,
            )
        others = [field for field in fields if field not in gated]
        if others:
            self._once("The API server changed fields of our devices, is there a webhook that does?", fields=others)

    async def _node_uid(self) -> str:
        try:
            return str((await self._client.get_node(self._node))["metadata"]["uid"])
        except ApiNotFound as error:
            raise ApiNotFound(
                f"node {self._node} does not exist in the cluster, so its GPUs can't be published: check --node-name, "
                f"or wait until the kubelet has registered it ({error})"
            ) from error

    async def _back_off(self, error: ApiError) -> None:
        wait = self._errors.delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        if isinstance(error, ApiUnavailable) and error.retry_after is not None:
            wait = max(wait, min(error.retry_after, _LONGEST_RETRY_AFTER))
        self._errors.grow()
        if isinstance(error, ApiExpired):
            log.debug("Listing ResourceSlices again", reason=str(error))
        elif str(error) != self._last_error:
            self._last_error = str(error)
            log.warning("ResourceSlices can't be published; trying again", error=str(error))
        await self._sleep(wait)

    def _worked(self) -> None:
        self._errors.reset()
        if self._last_error:
            self._last_error = ""
            log.info("ResourceSlices can be published again")

    def _once(self, event: str, **facts: object) -> None:
        if event not in self._told:
            self._told.add(event)
            log.error(event, **facts)


def _first(errors: BaseExceptionGroup[ApiError]) -> ApiError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
