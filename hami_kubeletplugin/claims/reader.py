"""What the API server says about the claims of one call: each object is asked for once, and as much as can be at the same time.

Blocking: the claims of a call are read by several threads.
"""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ApiError, ApiNotFound, ApiUnavailable, ClaimError
from hami_kubeletplugin.api.gpuconfig import ALL_RIGHTS, ClaimRights
from hami_kubeletplugin.api.names import POD_CLAIM_NAME
from hami_kubeletplugin.claims.allocation import AllocatedClaim, PodRef, has_devices_of, read_claim
from hami_kubeletplugin.claims.pods import Pod, read_pod
from hami_kubeletplugin.kube.claim_api import Wanted

Json = Mapping[str, Any]

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
"""Seconds, at the most, until the API server is asked again; doubled each time."""
_AT_ONCE: Final = 8
"""Objects that one thread asks for at the same time."""
_NAMES: Final = 16


class ClaimApi(Protocol):
    """What prepare needs of the API server."""

    def ask(self, wanted: Sequence[Wanted], *, deadline: float) -> Sequence[Json | ApiError]:
        """For each the object, or the error that says why there is none."""


class PodGuess:
    """Guesses the pod of a claim before the claim is there, so that both can be asked for at the same time.

    A claim made from a template is called `<pod>-<name in the pod>-<five letters>`. Names in pods repeat on a node, and where
    one is new its last part is tried alone. A wrong guess costs a request more, a right one saves the wait for a second one.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()  # replaced, never changed: others walk through it meanwhile

    def pod_of(self, claim: str) -> str | None:
        """The name that the pod may have; None if that of the claim was not generated."""
        base, _, suffix = claim.rpartition("-")
        if len(suffix) != 5 or not base:
            return None
        for name in reversed(self._names):
            if base.endswith(f"-{name}"):
                return base[: -len(name) - 1] or None
        return base.rpartition("-")[0] or None

    def learn(self, claim: Json) -> None:
        """Remember the name of a claim in its pod."""
        name = (claim.get("metadata", {}).get("annotations") or {}).get(POD_CLAIM_NAME)
        if isinstance(name, str) and name and name not in self._names:
            self._names = (*self._names, name)[-_NAMES:]


class ClaimReader:
    """Reads the claims and pods of one call. Thread-safe.

    An API server that is away is asked again until the deadline: the kubelet itself would come back only after a minute and a
    half.

    Args:
        api: The API server.
        driver: Our driver name.
        node: Our node name.
        deadline: By the monotonic clock.
        guess: Remembers across calls how pods call their claims.
        rights: What claims may say about their own limits.
        closing: Set when nobody waits for the call any more: what isn't known by then is not asked for again.
    """

    def __init__(
        self,
        api: ClaimApi,
        *,
        driver: str,
        node: str,
        deadline: float,
        guess: PodGuess,
        rights: ClaimRights = ALL_RIGHTS,
        closing: threading.Event | None = None,
    ) -> None:
        self._api, self._driver, self._node, self._deadline, self._guess = api, driver, node, deadline, guess
        self._rights = rights
        self._closing = closing or threading.Event()
        self._lock = threading.Lock()
        self._answers: dict[Wanted, Future[Json | ApiError]] = {}

    def claim(self, ref: ClaimRef) -> AllocatedClaim:
        """The claim that the kubelet named.

        Raises:
            ClaimError: It is not there, or not as it has to be.
            ApiError: The API server doesn't say.
        """
        pod = self._guess.pod_of(ref.name)
        beside = [Wanted("cached pod", ref.namespace, pod)] if pod else []
        (found,) = self._get([Wanted("claim", ref.namespace, ref.name)], beside=beside)
        if isinstance(found, ApiNotFound):
            raise ClaimError(f"{ref} is not found in the API server; it was deleted, so delete its pod too") from found
        if isinstance(found, ApiError):
            raise found
        self._guess.learn(found)
        return self._read(found, ref)

    def pods(self, claim: AllocatedClaim) -> list[Pod]:
        """The pods that the claim is reserved for, less those that have finished or are gone.

        Raises:
            ClaimError: None is left.
            ApiError: The API server doesn't say.
        """
        consumers = claim.consumers
        found: list[Json | ApiError] = []
        # The only one may come from the API server's cache. Once a pod is bound, nothing that is read of it changes but its
        # phase: its containers are fixed, and its claims were named before the scheduler could look at it. The phase matters
        # only beside other pods.
        if len(consumers) == 1:
            found = [
                one
                for one in self._get([Wanted("cached pod", consumers[0].namespace, consumers[0].name)])
                if _is_bound(one, consumers[0])
            ]
        if not found:
            found = self._get([Wanted("pod", pod.namespace, pod.name) for pod in consumers])
        pods = []
        for consumer, answer in zip(consumers, found, strict=True):
            if isinstance(answer, ApiNotFound):
                continue
            if isinstance(answer, ApiError):
                raise answer
            pod = read_pod(answer)
            if pod.ref.uid == consumer.uid and not pod.finished:
                pods.append(pod)
        if not pods:
            raise ClaimError(f"{claim.ref} is reserved for {', '.join(map(str, consumers))}, which is gone")
        return pods

    def neighbours(self, claim: AllocatedClaim, pods: Sequence[Pod]) -> list[AllocatedClaim]:
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
        namespace = claim.ref.namespace
        neighbours = []
        for name, other in zip(names, self._get([Wanted("claim", namespace, name) for name in names]), strict=True):
            if isinstance(other, ApiError):
                raise other
            if has_devices_of(other, self._driver):
                ref = ClaimRef(namespace, name, str(other["metadata"]["uid"]))
                neighbours.append(self._read(other, ref))
        return neighbours

    def _read(self, claim: Json, ref: ClaimRef) -> AllocatedClaim:
        return read_claim(claim, ref, driver=self._driver, node=self._node, rights=self._rights)

    def _get(self, wanted: Sequence[Wanted], *, beside: Sequence[Wanted] = ()) -> list[Json | ApiError]:
        """The answers, each asked for by one thread of the call; the others wait for it.

        Args:
            wanted: What is asked for until it comes.
            beside: Asked for at the same time, in case it is wanted later: nobody waits for it to come.
        """
        with self._lock:
            mine = [one for one in dict.fromkeys(wanted) if one not in self._answers]
            extra = [one for one in beside if mine and one not in self._answers]
            made: dict[Wanted, Future[Json | ApiError]] = {one: Future() for one in (*mine, *extra)}
            self._answers |= made
            futures = [self._answers[one] for one in wanted]
        try:
            for start in range(0, len(mine), _AT_ONCE):
                self._ask(mine[start : start + _AT_ONCE], extra if start == 0 else [])
        finally:
            for one, future in made.items():  # a fault of ours: nobody waits for ever
                if not future.done():
                    future.set_result(_unanswered(one))
        return [self._result(one, future) for one, future in zip(wanted, futures, strict=True)]

    def _result(self, one: Wanted, future: Future[Json | ApiError]) -> Json | ApiError:
        try:
            answer = future.result(timeout=max(self._deadline - time.monotonic(), 0) + 1)
        except TimeoutError:
            return _unanswered(one)
        if isinstance(answer, ApiError) and self._answers.get(one) is not future:
            (answer,) = self._get([one])  # it was asked for on somebody's guess, once
        return answer

    def _ask(self, wanted: Sequence[Wanted], beside: Sequence[Wanted]) -> None:
        """Ask until all is answered, or time is over."""
        pending, pause = list(wanted), _FIRST_PAUSE
        while True:
            found = self._api.ask([*pending, *beside], deadline=self._deadline)
            answers = dict(zip(pending, found, strict=False))
            for one, answer in zip(beside, found[len(pending) :], strict=True):
                self._put_aside(one, answer)
            beside = ()
            over = time.monotonic() + pause >= self._deadline or self._closing.is_set()
            for one, answer in answers.items():
                if over or not isinstance(answer, ApiUnavailable):
                    self._answers[one].set_result(answer)
            pending = [one for one in pending if not self._answers[one].done()]
            if not pending:
                return
            # Not all nodes of a cluster at once.
            self._closing.wait(pause * random.uniform(0.5, 1))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _put_aside(self, one: Wanted, answer: Json | ApiError) -> None:
        """What nobody has asked for yet; an error about it is forgotten, so that it is asked for anew if somebody does."""
        with self._lock:
            future = self._answers[one]
            if isinstance(answer, ApiError):
                del self._answers[one]
        future.set_result(answer)


def _is_bound(found: Json | ApiError, pod: PodRef) -> bool:
    """Whether the cache shows the pod as it is once it is bound; not yet in the cache is no error."""
    if isinstance(found, ApiNotFound):
        return False
    if isinstance(found, ApiError):
        raise found
    return found["metadata"]["uid"] == pod.uid and bool(found["spec"].get("nodeName"))


def _unanswered(one: Wanted) -> ApiUnavailable:
    return ApiUnavailable(f"the API server gave no answer about {one.namespace}/{one.name} in time; is it overloaded?")
