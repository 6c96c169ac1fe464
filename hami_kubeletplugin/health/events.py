"""Events of GPUs' conditions: on the Node when one begins and ends, and on the pods that use a GPU that is not well."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import ApiConflict, ApiDenied, ApiError, ApiInvalid, ApiNotFound, StorageError
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.gpu.conditions import EVERY, HEALTH, Condition, Found, Health, What
from hami_kubeletplugin.kube.event import EventApi, Json, event
from hami_kubeletplugin.kube.retry import Retry, Sleep
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

MOST: Final = 500
"""Events that wait for an API server that is away; beyond that the oldest go. A node has hundreds of pods at the most."""
SAME: Final = 3600.0
"""Seconds in which the same is told once: about as long as the API server keeps Events. So a GPU that comes and goes is two
Events an hour, and a daemon that is started anew repeats nothing."""

INFORMATION: Final = frozenset({What.XID, What.ROW_REMAP_PENDING, What.UNMONITORED, What.CORDONED})
"""Nobody has to do anything."""

Key = tuple[str, What]
"""UUID or `EVERY`, and the kind: of conditions that are there at the same time."""


class ConditionEvents:
    """Writes them.

    Args:
        api: The API server.
        driver: Our driver name.
        node: Our node name.
        claims: What is prepared; called in a thread. Raises a StorageError if that can't be told.
        devices: Names of devices by UUID, as far as they are known.
        sleep: Waits that many seconds.
        clock: UNIX time.
    """

    def __init__(
        self,
        api: EventApi,
        *,
        driver: str,
        node: str,
        claims: Callable[[], Iterable[Prepared]],
        devices: Callable[[], Mapping[str, str]],
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._driver, self._node, self._claims, self._devices = api, driver, node, claims, devices
        self._clock = clock
        self._there: dict[Key, Condition] = {}
        self._waiting: dict[str, Json] = {}
        self._told = set[str]()
        self._hour = 0
        self._some = asyncio.Event()
        self._retry = Retry(
            failing="Events of GPUs can't be written; trying again",
            working="Events of GPUs are written again",
            restarting="Writing Events of GPUs again",
            sleep=sleep,
        )

    async def look(self, found: Found) -> None:
        """Have Events of what has begun and ended since the last look."""
        now = {(uuid, each.what): each for uuid, conditions in found.items() for each in conditions}
        begun = {
            key: each for key, each in now.items() if key not in self._there or each.value != self._there[key].value
        }
        ended = {key: each for key, each in self._there.items() if key not in now}
        self._there = now
        not_well = any(HEALTH[what] is not Health.HEALTHY for _, what in (*begun, *ended))
        pods = await asyncio.to_thread(self._pods) if not_well else {}
        for key, condition in begun.items():
            self._say(key, condition, pods, begins=True)
        for key, condition in ended.items():
            self._say(key, condition, pods, begins=False)

    async def run(self) -> None:
        """Write what has to be told, until cancelled."""
        while True:
            await self._some.wait()
            name = next(iter(self._waiting), None)
            if name is None:
                self._some.clear()
                continue
            try:
                await self._api.create_event(self._waiting[name])
            except ApiConflict:
                pass  # told before we were started
            except (ApiNotFound, ApiDenied, ApiInvalid) as error:
                log.debug("an Event is not wanted", error=str(error))  # as where a namespace is being deleted
            except ApiError as error:
                await self._retry.after(error)
                continue
            self._waiting.pop(name, None)
            self._retry.works()

    def _pods(self) -> dict[str, list[PodRef]]:
        """Who uses each GPU, by UUID; under `EVERY` all."""
        found: dict[str, dict[PodRef, None]] = {}
        try:
            for claim in self._claims():
                for uuid in {EVERY, *(share.uuid for share in claim.shares)}:
                    found.setdefault(uuid, {}).update(dict.fromkeys(claim.pods))
        except StorageError as error:
            log.warning("can't tell which pods use a GPU that is not well", error=str(error))
        return {uuid: list(pods) for uuid, pods in found.items()}

    def _say(self, key: Key, condition: Condition, pods: Mapping[str, list[PodRef]], *, begins: bool) -> None:
        uuid, what = key
        device = self._devices().get(uuid, "")
        subject = "all GPUs of this node" if uuid == EVERY else f"GPU {device} ({uuid})" if device else f"GPU {uuid}"
        kind = f"{what}={condition.value}" if condition.value else str(what)
        serious = begins and what not in INFORMATION
        text = f"{subject}: {kind}: {condition.message}" if begins else f"{subject}: {kind} is over"
        # The API server looks for Events of a Node by its name in this place, as the kubelet's own.
        node = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}
        # Of mere information one of a kind is enough, however many values it has had.
        same = f"{uuid}/{what}/{condition.value if what not in INFORMATION else ''}"
        severity: Literal["Normal", "Warning"] = "Warning" if serious else "Normal"
        reason = names.GPU_CONDITION if begins else names.GPU_CONDITION_ENDED
        abouts = [node]
        if HEALTH[what] is not Health.HEALTHY:
            abouts += [
                {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
                for pod in pods.get(uuid, ())
            ]
        for about in abouts:
            self._queue(about, same, severity, reason, text)

    def _queue(self, about: Json, same: str, severity: Literal["Normal", "Warning"], reason: str, text: str) -> None:
        hour = int(self._clock() // SAME)
        if hour != self._hour:
            self._hour = hour
            self._told.clear()
        made = event(
            about,
            f"{about['uid']}/{same}/{reason}/{hour}",
            driver=self._driver,
            node=self._node,
            severity=severity,
            reason=reason,
            message=text,
        )
        name = f"{made['metadata']['namespace']}/{made['metadata']['name']}"
        if name in self._told:
            return
        self._told.add(name)
        self._waiting[name] = made
        while len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
        self._some.set()
