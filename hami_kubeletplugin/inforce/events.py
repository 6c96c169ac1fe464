"""Events of a pod whose limits are not in force."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hami_kubeletplugin.api.errors import ApiConflict
from hami_kubeletplugin.api.names import LIMIT_NOT_IN_FORCE
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.kube.event import EventApi, Json, event


class PodEventApi(EventApi, Protocol):
    """What an Event needs of the API server."""

    async def get_pod(self, namespace: str, name: str, *, cached: bool = False) -> Json:
        """GET a Pod; raises an ApiError."""


class _Container(NamedTuple):
    """A container, and the field of its pod's `spec` that it is in."""

    pod: PodRef
    name: str
    field: str


class PodEvents:
    """Writes them.

    Args:
        api: The API server.
        driver: Our driver name.
        node: Our node name.
    """

    def __init__(self, api: PodEventApi, *, driver: str, node: str) -> None:
        self._api, self._driver, self._node = api, driver, node
        self._told: dict[str, set[tuple[str, str]]] = {}

    def forget_all_but(self, claim_uids: Sequence[str]) -> None:
        """Claims that are gone are not asked about again."""
        self._told = {uid: told for uid, told in self._told.items() if uid in claim_uids}

    async def write(self, claim: Prepared, use: Use, message: str, start: int | None = None) -> bool:
        """Have an Event of the container that runs with a use; False while it can't be told which one that is.

        Args:
            claim: The claim.
            use: The use.
            message: For people; `{container}` stands for its name.
            start: Tells starts of the container apart, each of which has an Event of its own; None: one is for all of them.

        Raises:
            ApiError: It may not be there.
        """
        container = await self._running(claim, use)
        if container is None:
            return False
        told = self._told.setdefault(claim.uid, set())
        what = container.pod.uid, container.name if start is None else f"{container.name}/{start}"
        if what not in told:
            words = message.replace("{container}", container.name)
            with contextlib.suppress(ApiConflict):  # written before we were started
                await self._api.create_event(self._event(container, "/".join(what), words))
            told.add(what)
        return True

    async def _running(self, claim: Prepared, use: Use) -> _Container | None:
        """Which of the containers that have the use one after the other it is; None if that can't be told now."""
        found: list[_Container] = []
        for pod in claim.pods:
            names = {name for its, _, name in (each.partition("/") for each in use.containers) if its == pod.name}
            if names:
                running = _running(await self._api.get_pod(pod.namespace, pod.name, cached=True), pod)
                found += [container for container in running if container.name in names]
        return found[0] if len(found) == 1 else None

    def _event(self, container: _Container, key: str, message: str) -> Json:
        pod = container.pod
        return event(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "fieldPath": f"spec.{container.field}{{{container.name}}}",
            },
            key,
            driver=self._driver,
            node=self._node,
            severity="Warning",
            reason=LIMIT_NOT_IN_FORCE,
            message=message,
        )


def _running(pod: Json, ref: PodRef) -> list[_Container]:
    """The containers that run now, unless it is another pod of that name."""
    if pod["metadata"].get("uid") != ref.uid:
        return []
    status = pod.get("status") or {}
    return [
        _Container(ref, str(one["name"]), field)
        for field, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses"))
        for one in status.get(statuses) or []
        if (one.get("state") or {}).get("running") is not None
    ]
