"""The API server as a person at a terminal asks it: GETs and lists in pages, over the official `kubernetes` package. Blocking."""

import dataclasses
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import urlencode

from hami_kubeletplugin.api.errors import ApiError, ApiExpired, ApiUnavailable
from hami_kubeletplugin.kube import people_config
from hami_kubeletplugin.kube.call import USER_AGENT, Call, Object, error_of, items_of, object_of
from hami_kubeletplugin.kube.people_config import Access

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 60.0
"""Until something comes: a page of a large list is put together first."""
PAGE: Final = 500
"""Objects of one answer, as kubectl has it."""


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


class PeoplesClient:
    """Asks as the person whose kubeconfig it is. To be closed.

    Args:
        access: To what, and as whom.
    """

    def __init__(self, access: Access) -> None:
        from kubernetes.client import ApiClient  # noqa: PLC0415 - only commands for people have it
        from urllib3 import disable_warnings  # noqa: PLC0415
        from urllib3.exceptions import InsecureRequestWarning  # noqa: PLC0415

        # Who wrote insecure-skip-tls-verify knows it; kubectl says nothing either.
        disable_warnings(InsecureRequestWarning)
        self.access = access
        try:
            self._client: Any = ApiClient(configuration=access.configuration)
        except (OSError, ValueError) as error:
            raise ApiError(f"{self._where}: {error}") from error

    @classmethod
    def of(cls, kubeconfig: str | None, context: str | None = None) -> Self:
        """Of a kubeconfig; see `people_config.load`.

        Raises:
            SettingsError: It can't be used.
        """
        return cls(people_config.load(kubeconfig, context))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, call: Call) -> Object:
        """See `Reader`."""
        return object_of(call, self._answer(call))

    def all(self, call: Call) -> Iterator[Object]:
        """See `Reader`. A list that took so long that the server forgot its beginning can't be had."""
        following: Mapping[str, str] = {}
        while True:
            query = {**(call.query or {}), "limit": str(PAGE), **following}
            answer = object_of(call, self._answer(dataclasses.replace(call, query=query)))
            yield from items_of(call, answer, "name")
            token = answer["metadata"].get("continue")
            if not isinstance(token, str) or not token:
                return
            following = {"continue": token}

    @property
    def _where(self) -> str:
        return f"context {self.access.context}, {self.access.server}"

    def _answer(self, call: Call) -> bytes:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        url = f"{self.access.server}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "User-Agent": USER_AGENT,
            **self.access.headers,
        }
        try:
            # Its models would cost more than all else.
            response = self._client.call_api(
                "GET", url, header_params=headers, _request_timeout=(CONNECT_SECONDS, READ_SECONDS)
            )
            text: bytes = response.read()
            status: int = response.status
        except (HTTPError, ApiException, OSError, ValueError) as error:  # the package makes its own of errors of TLS
            raise ApiUnavailable(f"{call} failed: {_reason(error)} ({self._where})") from error
        if status == HTTPStatus.OK:
            return text
        refused = error_of(call, status, response.headers, text)
        again = "; try again" if isinstance(refused, ApiExpired) else ""
        raise type(refused)(f"{refused} ({self._where}){again}")


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return " ".join(str(reason).split())[:300] or type(error).__name__
