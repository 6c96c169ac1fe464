"""When pods are bound, when they run and when they are gone, as a watch tells it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client, Event
from hami_kubeletplugin.kube.resource_api import watch_query

_LONGEST: Final = 1800
"""Seconds of one watch."""
_PATIENCE: Final = 180.0
"""Seconds for pods to start, or to go."""


class Pods:
    """All pods of a namespace. Use `followed()`.

    Attributes:
        there: Their names.
        bound: Name -> when it had got its node, on the clock of time.perf_counter. Those that are gone stay in here.
        refused: The same for when the scheduler first said that no node has room for it.
        running: The same for when it began to run.
    """

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.bound: dict[str, float] = {}
        self.refused: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self._changed = asyncio.Condition()

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for that.

        Raises:
            TimeoutError: It does not come; the message has `what`.
        """
        try:
            async with asyncio.timeout(_PATIENCE), self._changed:
                await self._changed.wait_for(true)
        except TimeoutError:
            raise TimeoutError(f"{what}: not in {_PATIENCE:g} s; {len(self.there)} pods are there") from None

    async def follow(self, api: Client, path: str, since: str) -> None:
        """Take in what happens after resource version `since`.

        The API server ends the watch of one who reads too slowly, as we may while we create many pods, so the next one goes on
        where that ended. One that ends with nothing new is an error.
        """
        before = ""
        while since != before:
            before = since
            async for event in api.watch(Call("watch", "pods", path, query=watch_query(since, _LONGEST)), _LONGEST):
                now = time.perf_counter()
                since = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    await self._take_in(event, now)
        raise RuntimeError("the watch of pods ended")

    async def _take_in(self, event: Event, now: float) -> None:
        name = event.object["metadata"]["name"]
        async with self._changed:
            if event.type == "DELETED":
                self.there.discard(name)
            else:
                self.there.add(name)
                if "nodeName" in event.object["spec"]:
                    self.bound.setdefault(name, now)
                if any(map(_fits_nowhere, event.object["status"].get("conditions") or ())):
                    self.refused.setdefault(name, now)
                if event.object["status"].get("phase") == "Running":
                    self.running.setdefault(name, now)
            self._changed.notify_all()


def _fits_nowhere(condition: Mapping[str, Any]) -> bool:
    """After a try: a pod whose claim is not there yet says something else."""
    tried = "nodes are available" in condition.get("message", "")
    return condition["type"] == "PodScheduled" and condition["status"] == "False" and tried


@contextlib.asynccontextmanager
async def followed(api: Client, path: str) -> AsyncIterator[Pods]:
    """Follow the pods of a namespace that has none yet."""
    since = (await api.ask(Call("list", "pods", path)))["metadata"]["resourceVersion"]
    found = Pods()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(found.follow(api, path, since))
        yield found
        following.cancel()
