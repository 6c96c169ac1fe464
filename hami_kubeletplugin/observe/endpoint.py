"""What Prometheus and probes get to see of the node daemon, over plain HTTP: nobody can change anything there.

Imported only where `--metrics-address` is given: prometheus_client and aiohttp's server cost memory on every node.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.port import connection
from hami_kubeletplugin.port.listener import Listener
from hami_kubeletplugin.port.room import Bounds

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
ALIVE: Final = "/healthz"
READY: Final = "/readyz"
"""The paths of probes: whether somebody answers, and whether claims can be prepared."""
_BOUNDS: Final = Bounds(connections=64, received=256 * 1024)
"""Each connection is for one request. Whoever in the cluster can reach the port can neither exhaust the daemon nor keep
Prometheus away: see `port.room`."""

Probe = Callable[[], Awaitable[tuple[bool, str]]]
"""Whether it is well, and if not what isn't, in some words."""


@contextlib.asynccontextmanager
async def served(
    address: str, collectors: Iterable[Collector], probes: Mapping[str, Probe] = MappingProxyType({})
) -> AsyncIterator[int]:
    """Serve `/metrics`, and what probes ask, for as long as the context is open; gives the port.

    Args:
        address: `HOST:PORT`; an empty host means all addresses, port 0 any free port.
        collectors: Asked for each answer.
        probes: By path; answered with 200, or 503 and what isn't well.

    Raises:
        SettingsError: The address can't be used.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)

    paths = ("/metrics", *probes)

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
        else:
            response = web.Response(body=generate_latest(registry), headers={"Content-Type": _CONTENT_TYPE})
        response.force_close()
        await connection.of(request).send(request, response)
        return response

    listener = Listener(answer, _BOUNDS)
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
