"""Containers of pods, as the API server knows them: asked for in the background, never in the way of who wants to know."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.claims.allocation import PodRef

_AT_ONCE: Final = 32
"""Pods that are asked for in one go."""
_AGAIN: Final = 10.0
"""Seconds until a pod of which more is wanted is asked for again."""
_POD_TIME: Final = 5.0
_CONTAINERS: Final = 256
"""Of a pod that are looked at."""


class PodApi(Protocol):
    """What this needs of the API server."""

    async def get_pod(self, namespace: str, name: str, *, cached: bool = False) -> Mapping[str, Any]:
        """GET a Pod; raises an ApiError."""


@dataclass(frozen=True, slots=True)
class OfPod:
    """What is known of a pod's containers.

    Attributes:
        order: Their names, init containers first.
        init: Those that end before the others start.
        running: Those that ran when it was asked.
        ids: Names by the container runtime's id.
    """

    order: tuple[str, ...] = ()
    init: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    ids: Mapping[str, str] = field(default_factory=dict)


def of_pod(pod: Mapping[str, Any]) -> OfPod:
    """Read it. Pure."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    init = (spec.get("initContainers") or [])[:_CONTAINERS]
    containers = [*init, *(spec.get("containers") or [])][:_CONTAINERS]
    states = [
        state
        for kind in ("initContainerStatuses", "containerStatuses")
        for state in (status.get(kind) or [])[:_CONTAINERS]
    ]
    return OfPod(
        order=tuple(str(one["name"]) for one in containers),
        init=frozenset(str(one["name"]) for one in init if one.get("restartPolicy") != "Always"),
        running=frozenset(str(one["name"]) for one in states if (one.get("state") or {}).get("running") is not None),
        ids={str(one["containerID"]).rpartition("/")[2]: str(one["name"]) for one in states if one.get("containerID")},
    )


class Pods:
    """What is known of the pods of prepared claims.

    Args:
        api: The API server; None: nothing will be known.
    """

    def __init__(self, api: PodApi | None) -> None:
        self._api = api
        self._known: dict[str, OfPod] = {}
        self._asked: dict[str, float] = {}
        self._asking: asyncio.Task[None] | None = None

    @property
    def known(self) -> Mapping[str, OfPod]:
        """By UID."""
        return self._known

    def want(self, pods: Collection[PodRef], again: Collection[str]) -> None:
        """Ask, in the background, for what is not known yet, and anew for some; in the event loop.

        Args:
            pods: All pods of prepared claims; others are forgotten.
            again: UIDs of those of which what is known does not suffice.
        """
        here = {pod.uid for pod in pods}
        self._known = {uid: known for uid, known in self._known.items() if uid in here}
        self._asked = {uid: at for uid, at in self._asked.items() if uid in here}
        if self._api is None or (self._asking is not None and not self._asking.done()):
            return
        now = time.monotonic()
        due = [
            pod
            for pod in sorted(pods, key=lambda pod: self._asked.get(pod.uid, 0.0))
            if pod.uid not in self._known or pod.uid in again
            if now - self._asked.get(pod.uid, -_AGAIN) >= _AGAIN
        ]
        if due:
            self._asking = asyncio.create_task(self._ask(self._api, due[:_AT_ONCE]), name="pods' containers")

    async def _ask(self, api: PodApi, pods: Collection[PodRef]) -> None:
        for ref in pods:
            self._asked[ref.uid] = time.monotonic()
            try:
                async with asyncio.timeout(_POD_TIME):
                    pod = await api.get_pod(ref.namespace, ref.name, cached=True)
            except (HamiError, TimeoutError):  # whoever can't do without it says so
                continue
            if (pod.get("metadata") or {}).get("uid") == ref.uid:
                self._known[ref.uid] = of_pod(pod)
