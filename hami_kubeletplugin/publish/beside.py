"""Watches what others say of this node's GPUs: who gives them out too, which are cordoned, what hides them.

Node object, every `LOOK` seconds ────────┐
slices of other drivers on the node ──────┼─> conditions of GPUs (`others`) ──> board
slices of our driver without a node ──────┘        └─> what is published: all, or not what is given out twice

Slices are watched, as the daemon may do anyway, which costs nothing while nothing changes. The Node is asked for, from the API
server's memory: who may watch one Node may watch all.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, Protocol

from hami_kubeletplugin.api.errors import ApiError, ApiUnavailable
from hami_kubeletplugin.gpu.conditions import Condition, Conditions, What
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.informer import list_and_watch
from hami_kubeletplugin.kube.resource_api import Listed, kept
from hami_kubeletplugin.kube.retry import Retry, Sleep
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.publish.others import NodeSays, TheirSlice, found, node_says, same_gpus, same_pool, unknown

log = get_logger()

LOOK: Final = 20.0
"""Seconds between looks at the Node, at the most."""
GONE: Final = 30.0
"""Seconds for which nobody else may be seen to give out a GPU until nobody does: device plugins are restarted, and a kubelet
that is restarted deletes all slices of its node, which come again a moment later."""
FIRST_LOOK: Final = 60.0
"""Seconds from the API server's first answer on after which GPUs are published though not all is known of who gives them out."""
_NAMED: Final = 5


class Api(Protocol):
    """What is needed of the API server."""

    async def get_node(self, name: str, *, cached: bool = False) -> Object:
        """GET a Node; raises an ApiError."""

    def selected_slices(self, selector: Mapping[str, str]) -> AsyncGenerator[Listed[Object]]:
        """LIST ResourceSlices; raises an ApiError."""

    def watch_selected_slices(self, selector: Mapping[str, str], since: str) -> AsyncGenerator[Event]:
        """WATCH ResourceSlices; raises an ApiError."""


class Beside:
    """Reports conditions, and passes on which GPUs are to be published.

    Args:
        api: The API server.
        driver: Our driver name.
        node: Our node name.
        resources: By which device plugins give out GPUs.
        withhold: Whether GPUs that are given out twice are not to be published.
        conditions: The board.
        publish: Told what is to be published, as `Publisher.offer` is; not before it is known who else is there.
        sleep: Waits that many seconds.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        api: Api,
        *,
        driver: str,
        node: str,
        resources: frozenset[str],
        withhold: bool,
        conditions: Conditions,
        publish: Callable[[Inventory | None], None],
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._node_name, self._resources = api, node, resources
        self._withhold, self._conditions, self._publish = withhold, conditions, publish
        self._sleep, self._clock = sleep, clock
        self._inventory: Inventory | None = None
        self._offered = self._open = False
        self._passed: list[Inventory | None] = []
        self._node, self._node_known = NodeSays(), asyncio.Event()
        self._others = _Slices(
            f"spec.nodeName={node},spec.driver!={driver}", "ResourceSlices of other drivers", same_gpus, self._judge
        )
        self._hiding = _Slices(
            f"spec.driver={driver},spec.nodeName=",
            "ResourceSlices without a node",
            lambda item: same_pool(item, node),
            self._judge,
        )
        self._twice: dict[tuple[str, str], tuple[float, Condition]] = {}
        self._strange = Once[str]()
        conditions.follow(self._pass_on)

    def offer(self, inventory: Inventory | None) -> None:
        """These are the node's GPUs from now on; None: there is no driver. Never blocks."""
        self._inventory, self._offered = inventory, True
        self._judge()
        self._pass_on()

    def publishes(self, driver: str) -> bool:
        """Whether another driver has slices with GPUs on this node."""
        return any(each.driver == driver for each in self._others.all.values())

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._begin())
            tasks.create_task(self._look_at_node())
            for slices in (self._others, self._hiding):
                tasks.create_task(slices.run(self._api, sleep=self._sleep, clock=self._clock))

    async def _begin(self) -> None:
        all_known = [self._node_known, self._others.known, self._hiding.known]
        waits = [asyncio.ensure_future(known.wait()) for known in all_known]
        try:
            # While there is no answer at all nothing can be published either.
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(waits, timeout=FIRST_LOOK)
        finally:
            for wait in waits:
                wait.cancel()
        self._open = True
        self._judge()
        self._pass_on()

    async def _look_at_node(self) -> None:
        retry = Retry(
            failing="what is said of this node's GPUs on its Node can't be read; what was known stays",
            working="what is said of this node's GPUs on its Node can be read again",
            restarting="reading the Node again",
            sleep=self._sleep,
        )
        while True:
            try:
                node = await self._api.get_node(self._node_name, cached=True)
            except ApiError as error:
                if not isinstance(error, ApiUnavailable):
                    self._node_known.set()
                self._judge()  # what was seen a while ago may be gone
                await retry.after(error)
            else:
                retry.works()
                self._node = node_says(node, self._resources)
                self._judge()
                self._node_known.set()
                # At random, so that two daemons with the same GPUs don't stay back, and come again, at the same moments.
                await self._sleep(LOOK * random.uniform(0.8, 1.0))  # noqa: S311 - no secret

    def _judge(self) -> None:
        """Report what follows of all that is known now; nothing before it is, as what an earlier run knew holds until then."""
        if not self._open:
            return
        gpus = self._inventory.by_uuid().keys() if self._inventory else frozenset[str]()
        now = found(gpus, self._node, self._others.all.values(), self._hiding.all.values())
        self._conditions.report("beside", self._lasting(now))
        strangers = unknown(gpus, self._node) if self._inventory else ()
        if not strangers:
            self._strange.ended("cordon")
        elif self._strange.is_new("cordon", strangers):
            log.warning(
                "what the node's annotation cordons is no GPU of this node, so it has no effect",
                annotated=[text[:64] for text in strangers[:_NAMED]],
                gpus=sorted(gpus),
            )

    def _lasting(self, now: Mapping[str, list[Condition]]) -> dict[str, list[Condition]]:
        """What holds now, and who gave out a GPU a short while ago."""
        clock = self._clock()
        twice = {
            (uuid, each.value): (clock, each)
            for uuid, conditions in now.items()
            for each in conditions
            if each.what is What.GIVEN_OUT_TWICE
        }
        before = {key: (seen, each) for key, (seen, each) in self._twice.items() if clock - seen < GONE}
        self._twice = before | twice
        lasting = {uuid: list(conditions) for uuid, conditions in now.items()}
        for (uuid, value), (_, each) in before.items():
            if (uuid, value) not in twice:
                lasting.setdefault(uuid, []).append(each)
        return lasting

    def _pass_on(self) -> None:
        """Have published what is to be; does nothing before it is known who else is there."""
        if not (self._open and self._offered):
            return
        inventory = self._inventory
        if inventory is not None and self._withhold:
            inventory = Inventory(tuple(gpu for gpu in inventory.gpus if not self._is_given_out_twice(gpu.uuid)))
        # Slices follow what else the board says at a pace of their own.
        if self._passed != [inventory]:
            self._passed = [inventory]
            self._publish(inventory)

    def _is_given_out_twice(self, uuid: str) -> bool:
        return any(each.what is What.GIVEN_OUT_TWICE for each in self._conditions.of(uuid))


class _Slices:
    """What counts of the slices that a field selector finds; a store for `list_and_watch`.

    Attributes:
        all: By name.
        known: Set once it is known what there is, or that it can't be known.
    """

    def __init__(
        self,
        selector: str,
        what: str,
        read: Callable[[Object], TheirSlice | None],
        changed: Callable[[], None],
    ) -> None:
        self._selector, self._what, self._read, self._changed = {"fieldSelector": selector}, what, read, changed
        self.all: dict[str, TheirSlice] = {}
        self.known = asyncio.Event()

    async def run(self, api: Api, *, sleep: Sleep, clock: Callable[[], float]) -> None:
        """Follow them until cancelled."""

        async def listed() -> Listed[TheirSlice]:
            try:
                return await kept(api.selected_slices(self._selector), self._read)
            except ApiUnavailable:
                raise
            except ApiError:
                self.known.set()
                raise

        def watch(since: str) -> AsyncGenerator[Event]:
            return api.watch_selected_slices(self._selector, since)

        await list_and_watch(self._what, listed, watch, self, sleep=sleep, clock=clock)

    def replace(self, listed: Listed[TheirSlice]) -> None:
        """See `Store`."""
        self.all = {each.name: each for each in listed.items}
        self._changed()
        self.known.set()

    def take(self, event: Event) -> None:
        """See `Store`."""
        if event.type == "BOOKMARK":
            return
        name = event.object["metadata"]["name"]
        seen = None if event.type == "DELETED" else self._read(event.object)
        if seen == self.all.get(name):
            return
        if seen is None:
            del self.all[name]
        else:
            self.all[name] = seen
        self._changed()
