"""HTTP to the API server: one connection pool, bearer tokens, time-outs, and answers turned into objects or errors.

Thin on purpose: the `kubernetes` package costs 16 MiB and 0.2 s of start, and a claim is fetched on the way to each container.
Which paths exist is said in `resource_api`.
"""

import asyncio
import json
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Self

import aiohttp
from yarl import URL

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import (
    ApiConflict,
    ApiDenied,
    ApiError,
    ApiExpired,
    ApiForbidden,
    ApiInvalid,
    ApiNotFound,
    ApiNotServed,
    ApiUnavailable,
)
from hami_kubeletplugin.kube import nesting
from hami_kubeletplugin.kube.config import Access

Object = dict[str, Any]

USER_AGENT: Final = f"hami-kubeletplugin/{__version__}"
TOKEN_LIFETIME: Final = 60.0
"""Seconds until a token file is read again: bound tokens are replaced while the old one still works for minutes."""
_CONNECTIONS: Final = 24
"""16 claims at a time, and the watch and the publisher beside them."""
_KEEP_ALIVE: Final = 60.0
"""Seconds; kube-apiserver closes idle connections after 90."""
_WATCH_SILENCE: Final = 150.0
"""Seconds without a byte until a watch counts as dead; the API server sends a bookmark about once a minute."""
_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: ApiForbidden,
    HTTPStatus.FORBIDDEN: ApiForbidden,
    HTTPStatus.NOT_FOUND: ApiNotFound,
    HTTPStatus.CONFLICT: ApiConflict,
    HTTPStatus.GONE: ApiExpired,
}

# Each TLS connection reads through a buffer of this size. The default of 256 KiB makes 6 MB for all of ours; an answer has a
# few KiB. Neither asyncio nor aiohttp has an option for it; in a Python that names it otherwise this does nothing.
SSLProtocol.max_size = 32 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One request, in the words of RBAC, so that errors can say what was tried.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
        resource: With its group, e.g. `resourceclaims.resource.k8s.io`.
        path: On the server, already escaped.
        name: `namespace/name`, a name, or empty.
        query: Parameters.
        content_type: Of the body; a patch says by it what kind it is.
    """

    verb: str
    resource: str
    path: str
    name: str = ""
    query: Mapping[str, str] | None = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()


class Event(NamedTuple):
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    object: Object


class Client:
    """A connection pool to one server, used as an async context manager.

    Args:
        access: Where and as whom.
        timeout: Seconds for a whole request; watches have their own rules.
    """

    def __init__(self, access: Access, timeout: float = 10.0) -> None:
        self._access = access
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._token, self._token_read = access.token, float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            ssl=self._access.tls or True, limit=_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, call: Call, body: Mapping[str, Any] | None = None) -> Object:
        """Send a request and decode the answer.

        Raises:
            ApiError: Of the kind that fits; the message has the verb, the resource, the name and the server's reason.
        """
        status, headers, text = await self._exchange(call, body)
        if status == HTTPStatus.UNAUTHORIZED and self._access.token_file is not None:
            # The token may have been replaced since we read it.
            self._token_read = float("-inf")
            status, headers, text = await self._exchange(call, body)
        if status >= HTTPStatus.BAD_REQUEST:
            raise _error(call, status, headers, text)
        return _object(call, text)

    async def watch(self, call: Call, seconds: int) -> AsyncGenerator[Event]:
        """Stream events until the server ends the watch, which it does after about `seconds`, or goes silent.

        Raises:
            ApiExpired: The resource version is too old.
            ApiError: As for `ask`. A connection that is cut ends the stream without an error.
        """
        limits = aiohttp.ClientTimeout(
            total=seconds + _WATCH_SILENCE, sock_connect=self._timeout.total, sock_read=_WATCH_SILENCE
        )
        started = False
        try:
            async with await self._send(call, None, limits) as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise _error(call, response.status, response.headers, await response.read())
                started = True
                async for line in _lines(response.content):
                    yield _event(call, line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not started:
                raise self._unavailable(call, error) from error

    async def _exchange(self, call: Call, body: Mapping[str, Any] | None) -> tuple[int, Mapping[str, str], bytes]:
        try:
            async with await self._send(call, body, self._timeout) as response:
                return response.status, response.headers, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(call, error) from error

    async def _send(
        self, call: Call, body: Mapping[str, Any] | None, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("Client is used outside of `async with`")
        headers = {} if body is None else {"Content-Type": call.content_type}
        token = await self._bearer(call)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return await self._session.request(
            _METHODS[call.verb],
            URL(f"{self._access.server}{call.path}", encoded=True),
            params=call.query,
            data=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            headers=headers,
            timeout=limits,
            server_hostname=self._access.tls_server_name,
            allow_redirects=False,
        )

    async def _bearer(self, call: Call) -> str | None:
        file = self._access.token_file
        if file is not None and time.monotonic() - self._token_read >= TOKEN_LIFETIME:
            try:
                self._token = (await asyncio.to_thread(file.read_text)).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ApiUnavailable(f"{call} failed: the token file {file} can't be read: {error}") from error
            self._token_read = time.monotonic()
        return self._token

    def _unavailable(self, call: Call, error: Exception) -> ApiUnavailable:
        reason = (
            f"no answer in {self._timeout.total:g} s"
            if isinstance(error, TimeoutError)
            else str(error) or type(error).__name__
        )
        return ApiUnavailable(f"{call} failed: API server {self._access.server} can't be reached: {reason}")


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    # Not `readline`: it has a limit, and a slice with 128 devices is longer.
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        *complete, last = chunk.split(b"\n")
        for line in complete:
            yield b"".join([*rest, line])
            rest = []
        rest.append(last)


def _event(call: Call, line: bytes) -> Event:
    event = _object(call, line)
    kind, obj = event.get("type", ""), event.get("object", {})
    if kind == "ERROR":
        raise _error(call, obj.get("code", HTTPStatus.INTERNAL_SERVER_ERROR), {}, json.dumps(obj).encode())
    return Event(kind, obj)


def _object(call: Call, text: bytes) -> Object:
    try:
        decoded = _decoded(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ApiUnavailable(
            f"{call} failed: the answer is not JSON, so something else than the API server sent it"
        ) from error
    except (ValueError, RecursionError) as error:  # JSON, but with numbers beyond what Python takes
        raise ApiError(
            f"{call} failed: the object can't be read, look at what somebody wrote into it: {error}"
        ) from error
    if not isinstance(decoded, dict):
        raise ApiUnavailable(f"{call} failed: the answer is a {type(decoded).__name__}, not an object")
    return decoded


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(nesting.cut(text))


def _error(call: Call, status: int, headers: Mapping[str, str], text: bytes) -> ApiError:
    try:
        answer = json.loads(text)
        reason, details = str(answer["message"]), answer.get("details") or {}
    except (ValueError, TypeError, KeyError):
        reason, details = text.decode(errors="replace").strip()[:200] or "no reason given", {}
    message = f"{call} failed: {reason} ({status})"
    if status == HTTPStatus.NOT_FOUND and not details.get("name"):
        return ApiNotServed(message)
    if status in _ERRORS:
        hint = ""
        if status == HTTPStatus.FORBIDDEN:
            if _no_matter_of_rights(reason, details):
                return ApiDenied(message)
            hint = f"; allow verb {call.verb} on {call.resource} in the ClusterRole"
        elif status == HTTPStatus.UNAUTHORIZED:
            hint = "; the token or client certificate is not, or no longer, valid"
        return _ERRORS[status](message + hint)
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        after = headers.get("Retry-After", "")
        return ApiUnavailable(message, float(after) if after.isdecimal() else None)
    return ApiInvalid(message)


def _no_matter_of_rights(reason: str, details: Mapping[str, Any]) -> bool:
    """Admission says 403 too: a namespace that is being deleted (it has a cause then, which RBAC never has), a quota."""
    return bool(details.get("causes")) or "exceeded quota" in reason
