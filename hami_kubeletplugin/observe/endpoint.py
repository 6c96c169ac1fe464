"""What Prometheus and probes get to see of the node daemon, over HTTP: nobody can change anything there.

Imported only where `--metrics-address` is given: prometheus_client and aiohttp's server cost memory on every node.
"""

import asyncio
import contextlib
import gzip
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.observe import exposition
from hami_kubeletplugin.observe.page import Page
from hami_kubeletplugin.port import connection
from hami_kubeletplugin.port.listener import Listener
from hami_kubeletplugin.port.room import Bounds

METRICS: Final = "/metrics"
ALIVE: Final = "/healthz"
READY: Final = "/readyz"
"""The paths of probes: whether somebody answers, and whether claims can be prepared."""
_BOUNDS: Final = Bounds(connections=64, received=256 * 1024)
"""Each connection is for one request. Whoever in the cluster can reach the port can neither exhaust the daemon nor keep
Prometheus away: see `port.room`."""

_NEVER: Final = re.compile(r"q=0(\.0*)?")
"""A weight by which something isn't taken."""

Probe = Callable[[], Awaitable[tuple[bool, str]]]
"""Whether it is well, and if not what isn't, in some words."""


@dataclass(frozen=True, slots=True)
class Door:
    """Who gets in.

    Attributes:
        tls: The context of each new connection; None: plain HTTP.
        allows: Whether this value of the header `Authorization` may see metrics; None: everybody may. Probes everybody may ask.
    """

    tls: Callable[[], ssl.SSLContext] | None = None
    allows: Callable[[str], bool] | None = None


async def _nothing() -> None:
    """There is nothing to look at before."""


def _both(registry: CollectorRegistry) -> tuple[bytes, bytes]:
    """The page, and the same compressed, as Prometheus takes it: a twentieth, for a millisecond with a hundred containers."""
    text = exposition.text(registry)
    return text, gzip.compress(text, compresslevel=1)


def _takes_gzip(accepted: str) -> bool:
    """Whether `Accept-Encoding` has gzip. Contract: RFC 9110, 12.5.3."""
    codings = (each.replace(" ", "").lower().partition(";") for each in accepted.split(","))
    return any(coding == "gzip" and not _NEVER.fullmatch(weight) for coding, _, weight in codings)


@contextlib.asynccontextmanager
async def served(
    address: str,
    collectors: Iterable[Collector],
    probes: Mapping[str, Probe] = MappingProxyType({}),
    *,
    look: Callable[[], Awaitable[None]] = _nothing,
    shows: Callable[[], bool] = lambda: True,
    door: Door = Door(),
) -> AsyncIterator[int]:
    """Serve `/metrics`, and what probes ask, for as long as the context is open; gives the port.

    Args:
        address: `HOST:PORT`; an empty host means all addresses, port 0 any free port.
        collectors: Asked for each page, in a thread.
        probes: By path; answered with 200, or 503 and what isn't well.
        look: Awaited before collectors are asked.
        shows: Whether there is anything on the page; else it is empty, and nobody is asked.
        door: Who gets in.

    Raises:
        SettingsError: The address can't be used.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)

    async def make() -> tuple[bytes, bytes]:
        if not shows():
            return b"", gzip.compress(b"")
        await look()
        # Some milliseconds with many containers, in which probes and others get their turn.
        return await asyncio.to_thread(_both, registry)

    page = Page(make)
    paths = (METRICS, *probes)

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path not in paths:
            response = web.Response(status=HTTPStatus.NOT_FOUND, text=f"there is {', '.join(paths)}\n")
        elif request.method not in {"GET", "HEAD"}:
            response = web.Response(
                status=HTTPStatus.METHOD_NOT_ALLOWED, text="GET it\n", headers={"Allow": "GET, HEAD"}
            )
        elif request.path in probes:
            well, words = await probes[request.path]()
            status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
            response = web.Response(status=status, text="ok\n" if well else f"not well: {words}\n")
        elif door.allows is not None and not door.allows(request.headers.get("Authorization", "")):
            response = web.Response(
                status=HTTPStatus.UNAUTHORIZED,
                text="metrics need the bearer token of --metrics-token-file\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        else:
            plain, zipped = await page.get()
            zips = _takes_gzip(request.headers.get("Accept-Encoding", ""))
            coding = {"Content-Encoding": "gzip"} if zips else {}
            response = web.Response(
                body=zipped if zips else plain, headers={"Content-Type": exposition.CONTENT_TYPE, **coding}
            )
        response.force_close()
        await connection.of(request).send(request, response)
        return response

    listener = Listener(answer, _BOUNDS, tls=door.tls)
    host, _, port = address.rpartition(":")
    try:
        await listener.open(host.strip("[]"), int(port))
    except (OSError, OverflowError) as error:
        raise SettingsError(f"--metrics-address {address} can't be listened on: {error}; choose another") from error
    try:
        yield listener.port
    finally:
        await listener.close()
        await listener.cut()
        await page.close()
