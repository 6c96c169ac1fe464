"""What a prepare asks the API server: claims and pods by name, several at once. Blocking: for threads."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from hami_kubeletplugin.api.errors import ApiError, ApiNotServed
from hami_kubeletplugin.kube.blocking import BlockingClient
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.resource_api import VERSIONS, claim_call, pod_call


class Wanted(NamedTuple):
    """An object.

    A `cached pod` comes from the API server's watch cache: costs half, since etcd isn't asked, but is some moments old; one that
    isn't found may only be too new.
    """

    kind: Literal["claim", "pod", "cached pod"]
    namespace: str
    name: str


class ClaimClient(BlockingClient):
    """Claims and pods by name."""

    _version = VERSIONS[0]

    def ask(self, wanted: Sequence[Wanted], *, deadline: float) -> list[Object | ApiError]:
        """All of them at the same time.

        Args:
            wanted: A few; each takes a connection.
            deadline: By the monotonic clock.

        Returns:
            For each the object, or why there is none. A claim's `status.allocation` is alike in all versions of its API.
        """
        version = self._version
        answers = self.get([_call(one, version) for one in wanted], deadline=deadline)
        return [
            self._in_another_version(one, version, answer, deadline)
            if one.kind == "claim" and isinstance(answer, ApiNotServed)
            else answer
            for one, answer in zip(wanted, answers, strict=True)
        ]

    def _in_another_version(
        self, wanted: Wanted, tried: str, answer: Object | ApiError, deadline: float
    ) -> Object | ApiError:
        """As an older server has it, or after an upgrade a newer one."""
        for version in VERSIONS:
            if version != tried:
                (found,) = self.get([_call(wanted, version)], deadline=deadline)
                if not isinstance(found, ApiNotServed):
                    self._version = version
                    return found
        return answer


def _call(wanted: Wanted, version: str) -> Call:
    if wanted.kind == "claim":
        return claim_call(wanted.namespace, wanted.name, version)
    return pod_call(wanted.namespace, wanted.name, cached=wanted.kind == "cached pod")
