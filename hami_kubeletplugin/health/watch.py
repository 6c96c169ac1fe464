"""Watches the GPUs over NVML: polls, and events between polls, one after the other.

NVML is held open for events only as long as containers hold the driver anyhow (`may_stay_open`): a session of ours keeps the
kernel's module from being unloaded, GPUs from being reset, and MIG mode from being switched.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import DriverMissing, HardwareError, NvmlCallFailed, StorageError
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, Conditions, What
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.gpu.nvml import ERROR_TIMEOUT
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.health.driver import XID, Event, Poll, events, poll
from hami_kubeletplugin.health.states import ANSWERS, Answer, State, after_answer, after_xid
from hami_kubeletplugin.health.xids import XidRules

SOURCE: Final = "nvml"
_WAIT: Final = 1.0
"""Seconds that one wait for events takes at the longest: so long does the next look at the hardware have to wait."""
_PACES: Final = 15
"""How many polls may come instead of one, if events call for them."""


def may_stay_open(in_use: Collection[str], states: Mapping[str, State]) -> bool:
    """Whether NVML may be held open: containers hold the driver anyhow, and each GPU that waits for an action, too. Pure.

    Args:
        in_use: UUIDs of the GPUs that prepared claims have.
        states: Of all GPUs.
    """
    return bool(in_use) and all(uuid in in_use for uuid, state in states.items() if state.waits)


class HealthWatch:
    """Reports on the board what the driver says of each GPU.

    Args:
        sessions: NVML.
        conditions: The board.
        interval: Seconds between polls.
        listen: Whether events are watched at all.
        rules: What Xids mean.
        sysfs: Where sysfs is mounted.
        in_use: UUIDs of the GPUs that prepared claims have; called in a thread, and may raise a StorageError.
        hardware_changed: Called in the event loop when slices may have to change.
    """

    def __init__(
        self,
        sessions: Sessions,
        conditions: Conditions,
        *,
        interval: float,
        listen: bool,
        rules: XidRules,
        sysfs: Path,
        in_use: Callable[[], Collection[str]],
        hardware_changed: Callable[[], None],
    ) -> None:
        self._sessions, self._conditions = sessions, conditions
        self._interval, self._listen, self._rules, self._sysfs = interval, listen, rules, sysfs
        self._read_in_use, self._hardware_changed = in_use, hardware_changed
        self._gpus: Mapping[str, Gpu] = {}
        self._states: dict[str, State] = {}
        self._xids: dict[str, dict[str, int]] = {}
        self._in_use: Collection[str] = ()
        self._shape: tuple[object, ...] | None = None
        self._silence: tuple[Condition, ...] = ()
        self._driver_is_missing = True
        self._failing, self._heard, self._asked = False, False, False
        self._faulty = False
        self._changed = asyncio.Event()

    def known(self, inventory: Inventory | None) -> None:
        """Watch these GPUs from now on; None while the driver is missing. In the event loop."""
        self._driver_is_missing = inventory is None
        if inventory is not None:
            self._gpus = inventory.by_uuid()
            self._states = {uuid: self._states.get(uuid, State()) for uuid in self._gpus}
            none = dict.fromkeys(self._rules.names(), 0)
            self._xids = {uuid: self._xids.get(uuid, dict(none)) for uuid in self._gpus}
            self._changed.set()
        self._report()

    @property
    def states(self) -> Mapping[str, State]:
        """How the GPUs are, by UUID."""
        return self._states

    @property
    def xids(self) -> Mapping[str, Mapping[str, int]]:
        """How many Xids the driver told of since the start, by UUID of the GPU and number."""
        return self._xids

    def restore(self, states: Mapping[str, State]) -> None:
        """Go on with what an earlier run knew; what it counted begins anew. Before GPUs are known."""
        self._states = {uuid: replace(state, answered=0, failed=0, calm=0) for uuid, state in states.items()}

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while not self._driver_is_missing:
                await self.poll()
                await self._until_next_poll()

    async def poll(self) -> None:
        """Ask the driver once; also whether NVML is held open from now on is decided here."""
        with contextlib.suppress(StorageError):  # else it is as known last
            self._in_use = await asyncio.to_thread(self._read_in_use)
        listen = self._listen and may_stay_open(self._in_use, self._states)
        self._sessions.keep_open = listen
        if self._faulty:
            self._sessions.renew()  # how a GPU is that comes back, an open session need not know
        try:
            found = await self._sessions.use(partial(poll, known=tuple(self._gpus), sysfs=self._sysfs, listen=listen))
        except HardwareError as error:
            self._failed(error)
        else:
            self._answered(found, listen)

    def _failed(self, error: HardwareError) -> None:
        self._asked = True
        message = f"nothing is known of the GPUs of this node, as the driver doesn't answer: {error}"
        silent = not isinstance(error, DriverMissing)  # of GPUs without a driver nothing is published
        self._silence = (Condition(What.NOT_ANSWERING, message, since=time.time()),) if silent else ()
        if not self._failing:
            self._hardware_changed()
        self._failing, self._heard = True, False
        self._report()

    def _answered(self, found: Poll, listen: bool) -> None:
        now = time.time()
        self._asked = True
        self._silence = ()
        self._heard = found.listening
        self._faulty = any(answer.error is not None for answer in found.answers.values())
        for uuid, state in self._states.items():
            answer = found.answers.get(uuid)
            if answer is not None:
                if self._listen and not listen and uuid in self._in_use:
                    answer = _unheard(answer)
                self._states[uuid] = after_answer(state, answer, bus=self._gpus[uuid].pci_bus_id, now=now)
        if any(state.failed >= ANSWERS for state in self._states.values()):
            self._sessions.renew()  # in one that is open, a GPU that comes back goes on failing
        if self._failing or self._shape not in (None, found.shape):
            self._sessions.renew()
            self._hardware_changed()
        self._shape, self._failing = found.shape, False
        self._report()

    async def _until_next_poll(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        pace, end = start + self._interval / _PACES, start + self._interval
        urgent = bool(self._silence)
        while (left := (pace if urgent else end) - loop.time()) > 0 and not self._driver_is_missing:
            if self._heard and not self._changed.is_set():
                urgent = await self.listen(min(left, _WAIT)) or urgent
            else:
                urgent = await self._pause(left) or urgent
        self._changed.clear()

    async def listen(self, seconds: float) -> bool:
        """Note what happens within this time; whether a poll has to say more of it."""
        try:
            told = await self._sessions.use(partial(events, seconds=seconds, enough=self._sessions.is_wanted))
        except HardwareError as error:
            self._heard = False
            if isinstance(error, NvmlCallFailed) and error.code == ERROR_TIMEOUT:
                self._failed(error)
            return True
        if told is None:
            self._heard = False
            return True
        return self._happened(told)

    async def _pause(self, seconds: float) -> bool:
        """Wait so long, or until GPUs have come or gone; whether they have."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(min(self._interval / _PACES, seconds))
        return True

    def _happened(self, told: Collection[Event]) -> bool:
        """Note it; whether a poll has to say more of it."""
        now = time.time()
        urgent = False
        for event in told:
            state = self._states.get(event.uuid)
            if state is None:
                continue
            if event.kind != XID:
                urgent = True
                continue
            self._xids[event.uuid][self._rules.name(event.xid)] += 1
            bus = self._gpus[event.uuid].pci_bus_id
            self._states[event.uuid] = after_xid(state, event.xid, event.action, self._rules, bus=bus, now=now)
            urgent = urgent or self._states[event.uuid].waits
        self._report()
        return urgent

    def _report(self) -> None:
        if not self._asked:
            return  # what an earlier run knew holds until then
        found = {uuid: tuple(state.conditions.values()) for uuid, state in self._states.items()}
        self._conditions.report(SOURCE, {**found, EVERY: self._silence})


def _unheard(answer: Answer) -> Answer:
    """Nobody listens to the GPU's events, as another one waits for its reset: a driver that names actions tells it when asked."""
    return replace(answer, monitored=None if answer.action is not None else False)
