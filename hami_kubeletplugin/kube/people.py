"""The API server as a person at a terminal asks it, over the official `kubernetes` package: GETs, lists, dry runs. Blocking."""

import dataclasses
from collections.abc import Iterator
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

from hami_kubeletplugin.api.errors import ApiError, ApiExpired, ApiUnavailable
from hami_kubeletplugin.kube import people_config
from hami_kubeletplugin.kube.call import METHODS, USER_AGENT, Call, Object, error_of, object_of
from hami_kubeletplugin.kube.paged import pages
from hami_kubeletplugin.kube.people_config import Access

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 60.0
"""Until something comes: a page of a large list is put together first."""


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
        """See `Reader`."""
        return pages(call, self.get)

    def text(self, call: Call, most: int) -> str:
        """What is no JSON, such as a container's log: its first bytes, at most so many.

        Raises:
            ApiError: As for `get`.
        """
        return self._answer(call, accept="*/*")[:most].decode(errors="replace")

    def try_out(self, call: Call, body: Object) -> Object:
        """Have an object admitted as if it were created. Nothing is: it is a dry run, whatever the call says.

        Raises:
            ApiError: As for `get`, and what admission says.
        """
        dry = dataclasses.replace(call, verb="create", query={**(call.query or {}), "dryRun": "All"})
        return object_of(dry, self._answer(dry, body))

    @property
    def _where(self) -> str:
        return f"context {self.access.context}, {self.access.server}"

    def _answer(self, call: Call, body: Object | None = None, accept: str = "application/json") -> bytes:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        url = f"{self.access.server}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        headers = {
            "Accept": accept,
            "Accept-Encoding": "gzip",
            "User-Agent": USER_AGENT,
            **self.access.headers,
        }
        try:
            # Its models would cost more than all else.
            response = self._client.call_api(
                METHODS[call.verb],
                url,
                header_params=headers if body is None else {**headers, "Content-Type": call.content_type},
                body=body,
                _request_timeout=(CONNECT_SECONDS, READ_SECONDS),
            )
            text: bytes = response.read()
            status: int = response.status
        except (HTTPError, ApiException, OSError, ValueError) as error:  # the package makes its own of errors of TLS
            raise ApiUnavailable(f"{call} failed: {_reason(error)} ({self._where})") from error
        if status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return text
        refused = error_of(call, status, response.headers, text)
        again = "; try again" if isinstance(refused, ApiExpired) else ""
        raise type(refused)(f"{refused} ({self._where}){again}")


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return " ".join(str(reason).split())[:300] or type(error).__name__
