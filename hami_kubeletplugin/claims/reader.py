"""What the API server says about the claims of one call: each object is asked for once, all at the same time."""

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ApiNotFound, ApiUnavailable, ClaimError
from hami_kubeletplugin.claims.allocation import AllocatedClaim, PodRef, has_devices_of, read_claim
from hami_kubeletplugin.claims.pods import Pod, read_pod

Json = Mapping[str, Any]

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
"""Seconds, at the most, until the API server is asked again; doubled each time."""


class ClaimApi(Protocol):
    """What prepare needs of the API server."""

    async def get_claim(self, namespace: str, name: str) -> Json:
        """GET a ResourceClaim; raises an ApiError."""

    async def get_pod(self, namespace: str, name: str, *, cached: bool = False) -> Json:
        """GET a Pod, as it is or, at half the cost, as it was some moments ago; raises an ApiError."""


class ClaimReader:
    """Reads the claims and pods of one call, from within the event loop.

    An API server that is away is asked again until `patience` seconds of the call are over: the kubelet itself would come
    back only after a minute and a half.
    """

    def __init__(self, api: ClaimApi, *, driver: str, node: str, patience: float) -> None:
        self._driver, self._node = driver, node
        self._asks: Mapping[str, Callable[[str, str], Awaitable[Json]]] = {
            "claim": api.get_claim,
            "pod": api.get_pod,
            "cached pod": functools.partial(api.get_pod, cached=True),
        }
        self._deadline = asyncio.get_running_loop().time() + patience
        self._answers: dict[tuple[str, str, str], asyncio.Task[Json]] = {}

    async def claim(self, ref: ClaimRef) -> AllocatedClaim:
        """The claim that the kubelet named.

        Raises:
            ClaimError: It is not there, or not as it has to be.
            ApiError: The API server doesn't say.
        """
        try:
            found = await self._get("claim", ref.namespace, ref.name)
        except ApiNotFound as error:
            raise ClaimError(f"{ref} is not found in the API server; it was deleted, so delete its pod too") from error
        return read_claim(found, ref, driver=self._driver, node=self._node)

    async def pods(self, claim: AllocatedClaim) -> list[Pod]:
        """The pods that the claim is reserved for, less those that have finished or are gone.

        Raises:
            ClaimError: None is left.
            ApiError: The API server doesn't say.
        """
        alone = len(claim.consumers) == 1
        found = await asyncio.gather(*(self._pod(pod, alone=alone) for pod in claim.consumers), return_exceptions=True)
        pods = []
        for consumer, answer in zip(claim.consumers, found, strict=True):
            if isinstance(answer, ApiNotFound):
                continue
            if isinstance(answer, BaseException):
                raise answer
            pod = read_pod(answer)
            if pod.ref.uid == consumer.uid and not pod.finished:
                pods.append(pod)
        if not pods:
            raise ClaimError(f"{claim.ref} is reserved for {', '.join(map(str, claim.consumers))}, which is gone")
        return pods

    async def neighbours(self, claim: AllocatedClaim, pods: Sequence[Pod]) -> list[AllocatedClaim]:
        """Other claims with devices of ours that some container uses together with this one.

        Raises:
            ClaimError: One of them is not as it has to be.
            ApiError: The API server doesn't say.
        """
        together = {
            name
            for pod in pods
            for container in pod.containers
            if any(used == claim.ref.name for used, _ in container.claims)
            for name, _ in container.claims
        }
        names = sorted(together - {claim.ref.name})
        found = await asyncio.gather(*(self._get("claim", claim.ref.namespace, name) for name in names))
        return [
            read_claim(
                other,
                ClaimRef(claim.ref.namespace, name, str(other["metadata"]["uid"])),
                driver=self._driver,
                node=self._node,
            )
            for name, other in zip(names, found, strict=True)
            if has_devices_of(other, self._driver)
        ]

    async def close(self) -> None:
        """Stop what is still being asked."""
        for task in self._answers.values():
            task.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)

    async def _pod(self, pod: PodRef, *, alone: bool) -> Json:
        """A consumer of a claim; the only one may come from the API server's cache.

        Once a pod is bound, nothing that is read of it changes but its phase: its containers are fixed, and its claims were
        named before the scheduler could look at it. The phase matters only beside other pods.
        """
        if alone:
            with contextlib.suppress(ApiNotFound):  # not yet in the cache
                found = await self._get("cached pod", pod.namespace, pod.name)
                if found["metadata"]["uid"] == pod.uid and found["spec"].get("nodeName"):
                    return found
        return await self._get("pod", pod.namespace, pod.name)

    async def _get(self, kind: Literal["claim", "pod", "cached pod"], namespace: str, name: str) -> Json:
        key = (kind, namespace, name)
        if key not in self._answers:
            self._answers[key] = asyncio.create_task(self._patiently(self._asks[kind], namespace, name))
        # Shielded: the answer belongs to all claims of the call, one of them being given up must not take it away.
        return await asyncio.shield(self._answers[key])

    async def _patiently(self, ask: Callable[[str, str], Awaitable[Json]], namespace: str, name: str) -> Json:
        failure = ApiUnavailable(f"the API server gave no answer about {namespace}/{name} in time; is it overloaded?")
        pause = _FIRST_PAUSE
        try:
            async with asyncio.timeout_at(self._deadline):
                while True:
                    try:
                        return await ask(namespace, name)
                    except ApiUnavailable as error:
                        failure = error
                    # Not all nodes of a cluster at once.
                    await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except TimeoutError:
            raise failure from None
