"""What Prometheus gets to see of the node daemon, over plain HTTP: nothing in it is secret, and nobody can change anything.

Imported only where `--metrics-address` is given: prometheus_client and aiohttp's server cost memory on every node.
"""

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.port import connection
from hami_kubeletplugin.port.listener import Listener
from hami_kubeletplugin.port.room import Bounds

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS: Final = Bounds(connections=64, received=256 * 1024)
"""Each connection is for one request. Whoever in the cluster can reach the port can neither exhaust the daemon nor keep
Prometheus away: see `port.room`."""


class Condition(Protocol):
    """What is shown of a condition."""

    @property
    def what(self) -> str:
        """Its kind."""

    @property
    def value(self) -> str:
        """More about it; empty if the kind says it all."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is shown.

    Attributes:
        core: Version, layout and digest of HAMi-core as it is installed, each empty if unknown; None while it is not installed.
        in_region: Whether new containers get a region that we made, and don't depend on variables.
        not_limited: Running containers in which no process has loaded HAMi-core; None if that can't be told.
        not_known: Claims of which that can't be told, since their containers have too many mounts or mappings; None as before.
        open_to_all: Whether the NVIDIA runtime gives containers GPUs without a claim; None if that can't be told.
        published_at: UNIX time at which the ResourceSlices were last found, or made, right; None: never yet.
        conditions: Of GPUs, by UUID, or `*` for all of them.
    """

    core: tuple[str, str, str] | None
    in_region: bool
    not_limited: int | None
    not_known: int | None
    open_to_all: bool | None
    published_at: float | None
    conditions: Mapping[str, Iterable[Condition]] = field(default_factory=dict)


class _Node(Collector):
    def __init__(self, facts: Callable[[], Facts]) -> None:
        self._facts = facts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        facts = self._facts()
        build = GaugeMetricFamily("hami_kubeletplugin_build_info", "1, for its labels.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        core = GaugeMetricFamily(
            "hami_core_info",
            "1, for its labels: the library that new containers get; what is not known is empty.",
            labels=["version", "layout", "digest"],
        )
        if facts.core is not None:
            core.add_metric(facts.core, 1)
        yield core
        yield GaugeMetricFamily(
            "hami_limits_in_region",
            "1 if new containers get their limits in a region made by the driver, 0 if in variables only.",
            float(facts.in_region),
        )
        yield GaugeMetricFamily(
            "hami_containers_not_limited",
            "Running containers in which no process has loaded HAMi-core; NaN if processes can't be seen.",
            math.nan if facts.not_limited is None else facts.not_limited,
        )
        yield GaugeMetricFamily(
            "hami_claims_not_known",
            "Claims whose containers have more mounts or mappings than are read to tell it; NaN if processes can't be seen.",
            math.nan if facts.not_known is None else facts.not_known,
        )
        yield GaugeMetricFamily(
            "hami_gpus_without_claim",
            "1 if the NVIDIA runtime's configuration lets containers have GPUs without a claim, 0 if not; NaN if none is seen.",
            math.nan if facts.open_to_all is None else float(facts.open_to_all),
        )
        yield GaugeMetricFamily(
            "hami_slices_published_timestamp_seconds",
            "UNIX time at which the ResourceSlices were last found, or made, right; 0: never since the start.",
            facts.published_at or 0.0,
        )
        conditions = GaugeMetricFamily(
            "hami_gpu_condition",
            "1 for each condition that a GPU has now, of all GPUs of the node if its UUID is *.",
            labels=["uuid", "condition", "value"],
        )
        for uuid, condition in ((uuid, each) for uuid, several in facts.conditions.items() for each in several):
            conditions.add_metric([uuid, str(condition.what), condition.value], 1)
        yield conditions


@contextlib.asynccontextmanager
async def served(address: str, facts: Callable[[], Facts]) -> AsyncIterator[int]:
    """Serve `/metrics` for as long as the context is open; gives the port.

    Args:
        address: `HOST:PORT`; an empty host means all addresses, port 0 any free port.
        facts: Asked for each answer.

    Raises:
        SettingsError: The address can't be used.
    """
    registry = CollectorRegistry()
    registry.register(_Node(facts))

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path != "/metrics":
            response = web.Response(status=HTTPStatus.NOT_FOUND, text="there is /metrics\n")
        elif request.method not in {"GET", "HEAD"}:
            response = web.Response(
                status=HTTPStatus.METHOD_NOT_ALLOWED, text="GET it\n", headers={"Allow": "GET, HEAD"}
            )
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
