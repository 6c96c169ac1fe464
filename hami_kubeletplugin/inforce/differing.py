"""Whether the limits in running containers' regions are those that their claims were given.

A region is its container's to write, so a program there can raise its own limit. Nobody else writes an existing one, nor do we:
a program that raised its limit would do so again, and HAMi-core keeps some of it in each process. It is told instead, and ends
with the container: at each start the hook writes the region anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore.differences import differences
from hami_kubeletplugin.hamicore.enforcement import HOOK_SECONDS
from hami_kubeletplugin.hamicore.processes import UseKey
from hami_kubeletplugin.hamicore.storage import storage
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.inforce.running import uses_with_files
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.usage.joined import Found, in_order, is_numbered

log = get_logger()

_PAUSE: Final = HOOK_SECONDS + 1.0
"""Seconds until a second look at what differs. A container that starts has its first process, and what the one before it left in
the region, until the hook has written that anew: mostly milliseconds, but as long as a slow disk takes."""
_NAMED: Final = 3


class Differing(NamedTuple):
    """A running container whose region has other limits than its claim.

    Attributes:
        started: Tells this start of it from others.
        claim, use: What it was given.
        differences: In words.
    """

    started: int
    claim: Prepared
    use: Use
    differences: tuple[str, ...]


def differing(found: Found, gpus: Mapping[str, Gpu]) -> Mapping[UseKey, Differing]:
    """Which do. Pure.

    Args:
        found: What was found on the node.
        gpus: Its GPUs by UUID; a container with one that isn't known any more can't be judged.
    """
    uses = {key: (claim, use) for claim in found.claims for key, use in uses_with_files(claim).items()}
    told = {}
    for key, started in found.started.items():
        claim, use = uses[key]
        content = found.regions.get(key)
        if key in found.unreadable and storage(claim, use) == "region":
            told[key] = Differing(started, claim, use, (f"its region is none any more: {found.unreadable[key]}",))
        elif content is not None and is_numbered(use, gpus):
            given = {uuid: use.gpus[uuid] for uuid in in_order(use, gpus)}
            if words := differences(content, given, use.policy):
                told[key] = Differing(started, claim, use, words)
    return told


@dataclass(slots=True)
class _Told:
    """What has been said of one start of a container: each once, however often it changes its limit to and fro."""

    started: int
    event: bool = False
    again: bool = False


class LimitsDiffer:
    """Looks now and then, and says in the log and by an Event of the pod what it found, once for each start of a container.

    Args:
        found: Gives what is on this node; called in a thread.
        gpus: Gives the node's GPUs by UUID.
        events: Writes Events of pods.
        pause: Waits between the two looks that it takes.
    """

    def __init__(
        self,
        found: Callable[[], Found],
        gpus: Callable[[], Mapping[str, Gpu]],
        events: PodEvents,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._found, self._gpus, self._events, self._pause = found, gpus, events, pause
        self.count: int | None = None
        """Running containers whose region has other limits than their claim; None while that can't be told."""
        self._told: dict[UseKey, _Told] = {}
        self._visible = True
        self._said = Once[str]()

    async def run(self, interval: float) -> None:
        """Look every `interval` seconds until cancelled."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - what only reports must not be the end of the rest
                self.count = None
                self._fail("whether regions have the limits of their claims can't be told now", error)

    async def check(self) -> None:
        """One look, and a second one if something differs, and reports of that.

        Raises:
            StorageError, OSError: As `UsageOfNode.found`.
        """
        seen = await self._look()
        if seen:
            await self._pause(_PAUSE)
            again = await self._look()
            seen = {key: each for key, each in again.items() if key in seen and seen[key].started == each.started}
        self.count = len(seen) if self._visible else None
        failures = [error for key, each in seen.items() if (error := await self._report(key, each))]
        for key in self._told.keys() - seen.keys():
            self._agrees(key, self._told[key])
        if not failures:
            self._said.ended("failure")
        else:
            self._fail("an event that a limit has been changed can't be written; it is tried again", failures[0])

    async def _look(self) -> Mapping[UseKey, Differing]:
        found = await asyncio.to_thread(self._found)
        self._visible = found.visible
        self._told = {key: told for key, told in self._told.items() if found.started.get(key) == told.started}
        self._events.forget_all_but([claim.uid for claim in found.claims])
        return differing(found, self._gpus())

    async def _report(self, key: UseKey, each: Differing) -> HamiError | None:
        """Log, and have the Event; returns what kept it from being written."""
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = _Told(each.started)
            log.warning(
                "a running container's region has other limits than its claim: something in it has changed them",
                claim=each.claim.ref.full_name,
                claim_uid=each.claim.uid,
                containers=list(each.use.containers),
                differences=each.differences[:_NAMED],
            )
        if not told.event:
            try:
                told.event = await self._events.write(each.claim, each.use, _message(each), each.started)
            except HamiError as error:
                return error
        return None

    def _agrees(self, key: UseKey, told: _Told) -> None:
        if not told.again:
            told.again = True
            log.info("a container's region has the limits of its claim again", claim_uid=key.claim_uid, use=key.use)

    def _fail(self, event: str, error: Exception) -> None:
        if self._said.is_new("failure", str(error)):
            unexpected = None if isinstance(error, HamiError | OSError) else error
            log.warning(event, error=str(error), exc_info=unexpected)


def _message(each: Differing) -> str:
    more = len(each.differences) - _NAMED
    words = "; ".join(each.differences[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return (
        f"Container {{container}} has other GPU limits than its claim {each.claim.ref.full_name}: {words}. Something in it has "
        "written to HAMi-core's shared region, which every process of the container may. Find out what runs there; the "
        "limits are as allocated again when the container is started again"
    )
