"""The admission server: HTTPS for the API server, which is the only client it has beside the kubelet and Prometheus.

    server = AdmissionServer({"/mutate": admission.mutate, ...}, missing=..., metrics=...)
    await server.start("0.0.0.0", 9443, lambda: tls)
    server.drain()                            # /readyz says 503, connections are closed after their next answer
    await server.stop()                       # nothing listens any more; who is connected is answered, and closes by himself

An answer with a status other than 200 is a failed call to the API server: failurePolicy decides. All that we can judge is
answered with 200, denials too. Contract: kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers.
"""

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hami_kubeletplugin.api.errors import ReviewError
from hami_kubeletplugin.observe import exposition
from hami_kubeletplugin.observe.log import bound_contextvars, get_logger
from hami_kubeletplugin.port import connection
from hami_kubeletplugin.port.connection import Connection
from hami_kubeletplugin.port.listener import Listener
from hami_kubeletplugin.port.room import Bounds
from hami_kubeletplugin.webhook.admission.answer import Judge
from hami_kubeletplugin.webhook.admission.metrics import Metrics
from hami_kubeletplugin.webhook.admission.review import decode, encode

log = get_logger()

_KEEP_ALIVE: Final = 120.0
"""Seconds. Longer than the 90 of the API server's client, so that it is the one who closes an idle connection: it could
be about to send on one that we close, and that call would fail."""
_DEFAULT_TIMEOUT: Final = 10.0
"""Seconds that the API server waits for if it doesn't say; the default of timeoutSeconds."""
_UID_LOGGED: Final = 64
"""Characters of a review's uid in the log; that of an API server has 36."""
_DURATION: Final = re.compile(r"(?:(\d{1,3})m)?(\d{1,3}(?:\.\d{1,9})?)s")
"""Go's text for durations of 1 to 30 s, which timeoutSeconds can have, and some more: `10s`, `1m0s`, `2.5s`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken at a time. What is not whole yet, from whomever, never counts against a review that is.

    Attributes:
        body: Bytes of one request. The API server takes objects of up to 3 MiB and sends two of them, the new and the old
            one, as JSON with `<` and `&` escaped to six bytes: 8 MiB have room for all that etcd would keep, 1.5 MiB each.
        bodies: Bytes of all reviews that are being answered. Memory: decoded, a body takes several times its size.
        reviews: That are being answered. An API server has at most 200 writes in flight (--max-mutating-requests-inflight);
            more than that at once, from several, could hardly be answered in their time-outs, and come back to the replica
            beside us.
        reading: Seconds until a body is there. The API server has it in memory and sends it at once.
        parting: Seconds from the last connection that is taken until those that rest are closed. Longer than the 90 after which
            the API server's client closes them itself: a review that it sends on one that we close fails, since Go's HTTP client
            doesn't send a POST again that may have been received.
        port: Connections: one for each review, as HTTP/1.1 has it, and as many for those that come meanwhile or rest; each API
            server keeps up to 25 (client-go). 60 MiB at the worst, 100 KiB each. Bytes: what has come of bodies that aren't
            whole.
    """

    body: int = 8 * 1024 * 1024
    bodies: int = 24 * 1024 * 1024
    reviews: int = 256
    reading: float = 5.0
    parting: float = 95.0
    port: Bounds = field(default_factory=lambda: Bounds(connections=512, received=32 * 1024 * 1024))


class _Refused(Exception):
    """A request that is no review."""

    def __init__(self, status: HTTPStatus, result: str, text: str, **headers: str) -> None:
        self.status, self.result, self.text, self.headers = status, result, text, headers
        super().__init__(text)


class AdmissionServer:
    """The server.

    Args:
        judges: Who answers the reviews that come to a path.
        missing: What it is that we still wait for before we are ready; empty: nothing.
        metrics: Counts what is answered.
        refusal: Why a client with this certificate (`getpeercert()`; None: it has none) may not ask for reviews; None: it
            may.
        limits: How much is taken at a time.
    """

    def __init__(
        self,
        judges: Mapping[str, Judge],
        *,
        missing: Callable[[], Sequence[str]],
        metrics: Metrics,
        refusal: Callable[[Mapping[str, Any] | None], str | None] = lambda _: None,
        limits: Limits | None = None,
    ) -> None:
        self._judges, self._missing, self._metrics, self._refusal = judges, missing, metrics, refusal
        metrics.expect(judges)
        self._limits = limits or Limits()
        self._asked = self._reviews = self._bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._tls: Callable[[], ssl.SSLContext] | None = None
        self._listener: Listener | None = None
        self._pages: Mapping[str, Callable[[], web.Response]] = {
            "/healthz": lambda: _text(HTTPStatus.OK, "ok"),
            "/readyz": self._ready,
            "/metrics": lambda: web.Response(body=metrics.text(), headers={"Content-Type": exposition.CONTENT_TYPE}),
        }

    @property
    def port(self) -> int:
        """The port that it listens on."""
        if self._listener is None:
            raise RuntimeError("the server is not started")
        return self._listener.port

    async def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext]) -> None:
        """Listen.

        Args:
            host: An address.
            port: 0: any free one.
            tls: The context of new connections.

        Raises:
            OSError: The address can't be used.
        """
        self._tls = tls
        self._listener = Listener(self._handle, self._limits.port, tls=tls, keep_alive=_KEEP_ALIVE)
        self._metrics.watch_connections(self._listener.room)
        await self._listener.open(host, port, shared=True)

    def drain(self) -> None:
        """Not ready any more, and each connection ends with its next answer; all is still answered."""
        self._draining = True

    async def stop(self, within: float = 15.0, *, patient: bool = True) -> None:
        """Take no more connections, answer what comes over those that there are until their clients close them, then close.

        Args:
            within: Seconds for what is still being answered after that; cut off then.
            patient: Whether clients are given the time to close their connections; a program that fails has to start anew soon.
        """
        self._draining = True
        if self._listener is None:
            return
        await self._listener.close(self._limits.port.header)
        with contextlib.suppress(TimeoutError):
            # In it is also who was let in last and has had no time to ask.
            async with asyncio.timeout(self._limits.parting if patient else 0):
                await self._listener.room.empty.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                # Not `Server.pre_shutdown`: it would no longer read the bodies of requests that have come in part.
                await self._idle.wait()
        await self._listener.cut()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked_over = connection.of(request)
        judge = self._judges.get(request.path)
        self._asked += 1
        self._idle.clear()
        try:
            response = self._page(request) if judge is None else await self._counted(request, judge, asked_over)
            if not self._stays(request, response):
                response.force_close()
            await asked_over.send(request, response)
        finally:
            self._asked -= 1
            if not self._asked:
                self._idle.set()
        return response

    def _stays(self, request: web.BaseRequest, response: web.Response) -> bool:
        """Whether the connection is kept for another request: only that of who was answered a review."""
        if self._draining or response.status != HTTPStatus.OK or request.path not in self._judges:
            return False
        # With another CA of clients there is another context: who was taken by the one before shows his certificate again.
        return self._tls is None or request.get_extra_info("sslcontext") is self._tls()

    def _page(self, request: web.BaseRequest) -> web.Response:
        page = self._pages.get(request.path)
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, f"there are {', '.join((*self._judges, *self._pages))}")
        if request.method not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET it", Allow="GET, HEAD")
        return page()

    def _ready(self) -> web.Response:
        if self._draining:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "stopping")
        missing = self._missing()
        if missing:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"waiting for {', '.join(missing)}")
        return _text(HTTPStatus.OK, "ok")

    async def _counted(self, request: web.BaseRequest, judge: Judge, asked_over: Connection) -> web.Response:
        started = time.perf_counter()
        result = "error"
        try:
            result, response = await self._reviewed(request, judge, asked_over)
        except _Refused as refused:
            result, response = refused.result, _text(refused.status, refused.text, **refused.headers)
        except RecursionError:
            # What the decoder just took can be too deep for who looks at it. No API server sends that.
            result, response = "malformed", _text(HTTPStatus.BAD_REQUEST, "the object is nested too deeply")
        except Exception:
            # Ours to mend. The API server does what failurePolicy says.
            log.exception("a review could not be answered", endpoint=request.path)
            response = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the log of hami-webhook")
        finally:
            self._metrics.review(request.path, result, time.perf_counter() - started)
        return response

    async def _reviewed(
        self, request: web.BaseRequest, judge: Judge, asked_over: Connection
    ) -> tuple[str, web.Response]:
        deadline = asyncio.get_running_loop().time() + _time_for(request.query.get("timeout", ""))
        refusal = self._refusal(request.get_extra_info("peercert"))
        if refusal is not None:
            raise _Refused(HTTPStatus.FORBIDDEN, "stranger", refusal)
        self._check_header(request)
        self._check_room(0)  # before the body is read for nothing
        body = await self._read(request, asked_over)
        length = len(body)
        self._check_room(length)
        self._reviews, self._bytes = self._reviews + 1, self._bytes + length
        asked_over.working()
        try:
            try:
                review = decode(body)
            except ReviewError as error:
                raise _Refused(HTTPStatus.BAD_REQUEST, "malformed", f"no AdmissionReview: {error}") from None
            del body
            with bound_contextvars(review=review.uid[:_UID_LOGGED]):
                answer = await judge(review, deadline)
            self._metrics.answer(request.path, answer.reason, warned=bool(answer.warnings))
            return answer.result, _json(encode(review.uid, answer))
        finally:
            self._reviews, self._bytes = self._reviews - 1, self._bytes - length

    def _check_header(self, request: web.BaseRequest) -> None:
        if request.method != "POST":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "malformed", "POST an AdmissionReview", Allow="POST")
        if request.content_type != "application/json" or "Content-Encoding" in request.headers:
            raise _Refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "malformed", "Content-Type must be application/json, uncompressed"
            )
        if (request.content_length or 0) > self._limits.body:
            raise self._too_large()

    def _check_room(self, length: int) -> None:
        """Only what is being answered counts: what others announced, or sent in part, they may never end."""
        if self._reviews >= self._limits.reviews or self._bytes + length > self._limits.bodies:
            raise _busy()

    async def _read(self, request: web.BaseRequest, asked_over: Connection) -> bytes:
        loop, body = asyncio.get_running_loop(), bytearray()
        try:
            async with asyncio.timeout(self._limits.reading) as time:
                asked_over.reading(lambda: time.reschedule(loop.time()))
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > self._limits.body:
                        raise self._too_large()
        except TimeoutError:
            if asked_over.refused:
                raise _busy() from None
            raise _Refused(
                HTTPStatus.REQUEST_TIMEOUT, "malformed", f"no whole body in {self._limits.reading:g} s"
            ) from None
        except (web.RequestPayloadError, HttpProcessingError, ConnectionError):
            raise _Refused(HTTPStatus.BAD_REQUEST, "malformed", "the body ended before its end") from None
        return bytes(body)

    def _too_large(self) -> _Refused:
        text = f"more than the {self._limits.body} bytes that are taken"
        return _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "malformed", text)


def _busy() -> _Refused:
    # With Retry-After the API server's client tries again by itself, for as long as its time-out lets it.
    return _Refused(HTTPStatus.TOO_MANY_REQUESTS, "busy", "too many reviews at a time", **{"Retry-After": "1"})


def _time_for(asked: str) -> float:
    """Seconds until our answer must be there, from the API server's `timeout` parameter.

    It rounds the parameter up to seconds, and our answer has to get back, too: a second less, of short ones half.
    """
    found = _DURATION.fullmatch(asked)
    seconds = 60 * int(found[1] or 0) + float(found[2]) if found else _DEFAULT_TIMEOUT
    return max(seconds - 1, seconds / 2)


def _text(status: HTTPStatus, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
