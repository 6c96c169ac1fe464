"""HTTP to the API server: one connection pool, bearer tokens, time-outs, and answers turned into objects or errors.

Thin on purpose: the `kubernetes` package costs 16 MiB and 0.2 s of start, and a claim is fetched on the way to each container.
Which paths exist is said in `resource_api`.
"""

import asyncio
import json
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Self

from yarl import URL

from hami_kubeletplugin.api.errors import ApiError, ApiUnavailable
from hami_kubeletplugin.kube.call import (
    KEEP_ALIVE,
    METHODS,
    USER_AGENT,
    Call,
    Object,
    error_of,
    object_of,
    whole,
)
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.lean_aiohttp import aiohttp
from hami_kubeletplugin.kube.patience import Patience
from hami_kubeletplugin.kube.token import BearerToken

_CONNECTIONS: Final = 24
"""16 claims at a time, and the watch and the publisher beside them."""
_WATCH_SILENCE: Final = 150.0
"""Seconds without a byte until a watch counts as dead; the API server sends a bookmark about once a minute."""
# Each TLS connection reads through a buffer of this size. The default of 256 KiB makes 6 MB for all of ours; an answer has a
# few KiB. Neither asyncio nor aiohttp has an option for it; in a Python that names it otherwise this does nothing.
SSLProtocol.max_size = 32 * 1024


Asked = Callable[[str, ApiError | None], None]
"""Told a verb, and what went wrong."""


class Event(NamedTuple):
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    object: Object


class Client:
    """A connection pool to one server, used as an async context manager.

    Args:
        access: Where and as whom.
        timeout: Seconds for a whole request, so that a server that is gone is found out; watches have their own rules.
        longest: What that grows to for a server that is slow.
        asked: Told of each request that has its answer, or none; of a watch as soon as it has begun.

    Attributes:
        date: The server's clock, as its last answer says in HTTP's words; empty if it said nothing.
    """

    def __init__(
        self, access: Access, timeout: float = 10.0, longest: float = 60.0, asked: Asked = lambda _, __: None
    ) -> None:
        self._access = access
        self._patience = Patience(timeout, longest)
        self._token, self._asked = BearerToken(access), asked
        self._session: aiohttp.ClientSession | None = None
        self.date = ""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._access.tls or True, limit=_CONNECTIONS, keepalive_timeout=KEEP_ALIVE)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
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
        try:
            status, headers, text = await self._exchange(call, body)
            if status == HTTPStatus.UNAUTHORIZED and self._token.refused():
                status, headers, text = await self._exchange(call, body)
            if status >= HTTPStatus.BAD_REQUEST:
                raise error_of(call, status, headers, text)
            answer = object_of(call, text)
        except ApiError as error:
            self._asked(call.verb, error)
            raise
        self._asked(call.verb, None)
        return answer

    async def watch(self, call: Call, seconds: int) -> AsyncGenerator[Event]:
        """Stream events until the server ends the watch, which it does after about `seconds`, or goes silent.

        Raises:
            ApiExpired: The resource version is too old.
            ApiError: As for `ask`. A connection that is cut ends the stream without an error.
        """
        patience = self._patience.seconds
        limits = aiohttp.ClientTimeout(total=seconds + _WATCH_SILENCE, sock_connect=patience, sock_read=_WATCH_SILENCE)
        started = False
        try:
            async with await self._send(call, None, limits) as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise self._failed(call, error_of(call, response.status, response.headers, await response.read()))
                started = True
                self._asked(call.verb, None)
                async for line in _lines(response.content):
                    yield _event(call, line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not started:
                raise self._failed(call, self._unavailable(call, error, patience)) from error

    async def _exchange(self, call: Call, body: Mapping[str, Any] | None) -> tuple[int, Mapping[str, str], bytes]:
        began, patience = time.monotonic(), self._patience.seconds
        try:
            async with await self._send(call, body, aiohttp.ClientTimeout(total=patience)) as response:
                answer = response.status, response.headers, await response.read()
                self.date = response.headers.get("Date", "")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._patience.too_short(patience)
            raise self._unavailable(call, error, patience) from error
        self._patience.enough(time.monotonic() - began)
        return answer

    async def _send(
        self, call: Call, body: Mapping[str, Any] | None, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("Client is used outside of `async with`")
        headers = {} if body is None else {"Content-Type": call.content_type}
        if self._token.is_due:
            await asyncio.to_thread(self._token.read, call)
        if self._token.value:
            headers["Authorization"] = f"Bearer {self._token.value}"
        return await self._session.request(
            METHODS[call.verb],
            URL(f"{self._access.server}{call.path}", encoded=True),
            params=call.query,
            data=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            headers=headers,
            timeout=limits,
            server_hostname=self._access.tls_server_name,
            allow_redirects=False,
        )

    def _failed(self, call: Call, error: ApiError) -> ApiError:
        self._asked(call.verb, error)
        return error

    def _unavailable(self, call: Call, error: Exception, patience: float) -> ApiUnavailable:
        reason = (
            f"no answer in {patience:g} s" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
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
    event = object_of(call, line, mark="object")
    kind, obj = event.get("type", ""), event["object"]
    if kind == "ERROR":
        code = whole(call, obj).get("code")
        status = code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR
        raise error_of(call, status, {}, json.dumps(obj).encode())
    return Event(kind, whole(call, obj, "resourceVersion"))
