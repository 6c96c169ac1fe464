"""Who reads the cluster as commands do, once and then no more: GETs, and lists in pages. Blocking."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.kube.blocking import BlockingClient
from hami_kubeletplugin.kube.call import Call, Object, items_of

PAGE: Final = 500
"""Objects of one answer, as kubectl has it."""
_SECONDS: Final = 30.0
"""For one answer."""


class Reader(Protocol):
    """Somebody who reads the cluster."""

    def get(self, call: Call) -> Object:
        """One object.

        Raises:
            ApiError: The server says no, or does not answer; the message has the context.
        """

    def all(self, call: Call) -> Iterator[Object]:
        """The objects of a list, which comes in pages.

        Raises:
            ApiError: As for `get`.
        """


def pages(call: Call, get: Callable[[Call], Object]) -> Iterator[Object]:
    """The objects of a list. One that took so long that the server forgot its beginning can't be had.

    Raises:
        ApiError: As from `get`.
    """
    following: Mapping[str, str] = {}
    while True:
        query = {**(call.query or {}), "limit": str(PAGE), **following}
        answer = get(dataclasses.replace(call, query=query))
        yield from items_of(call, answer, "name")
        token = answer["metadata"].get("continue")
        if not isinstance(token, str) or not token:
            return
        following = {"continue": token}


class OwnReader:
    """Reads with the credentials of this process: a service account, or a kubeconfig without plug-ins.

    Args:
        client: To be closed by who made it.
    """

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def get(self, call: Call) -> Object:
        """See `Reader`."""
        (answer,) = self._client.get([call], deadline=time.monotonic() + _SECONDS)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def all(self, call: Call) -> Iterator[Object]:
        """See `Reader`."""
        return pages(call, self.get)
