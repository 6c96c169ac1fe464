"""What Prometheus and probes get to see of the node daemon, over plain HTTP: nothing is secret, and nobody can change anything.

Imported only where `--metrics-address` is given: prometheus_client and aiohttp's server cost memory on every node.
"""

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

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
ALIVE: Final = "/healthz"
READY: Final = "/readyz"
"""The paths of probes: whether somebody answers, and whether claims can be prepared."""
_BOUNDS: Final = Bounds(connections=64, received=256 * 1024)
"""Each connection is for one request. Whoever in the cluster can reach the port can neither exhaust the daemon nor keep
Prometheus away: see `port.room`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """How one GPU is.

    Attributes:
        device: Its device's name, empty if unknown.
        uuid: Its UUID.
        health: One of `STATES`.
        conditions: Kind, value and count of each; at most one of each kind.
    """

    device: str
    uuid: str
    health: str
    conditions: tuple[tuple[str, str, int], ...]


STATES: Final = ("Healthy", "Unknown", "Unhealthy")
"""What the kubelet is told of a GPU."""


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
        registered: Whether the kubelet has the driver registered.
        registered_at: UNIX time at which the kubelet said so last; None: never yet.
        lacking: What keeps claims from being prepared on this node, in a word each.
        gpus: How each GPU is.
    """

    core: tuple[str, str, str] | None
    in_region: bool
    not_limited: int | None
    not_known: int | None
    open_to_all: bool | None
    published_at: float | None
    registered: bool = False
    registered_at: float | None = None
    lacking: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()


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
        yield GaugeMetricFamily(
            "hami_kubelet_registered",
            "1 while the kubelet has the driver registered, else 0: no pod with its claims can start on this node.",
            float(facts.registered),
        )
        yield GaugeMetricFamily(
            "hami_kubelet_registered_timestamp_seconds",
            "UNIX time at which the kubelet last said that it has registered the driver; 0: never since the start.",
            facts.registered_at or 0.0,
        )
        yield GaugeMetricFamily(
            "hami_node_ready", "1 if claims can be prepared on this node, else 0.", float(not facts.lacking)
        )
        lacking = GaugeMetricFamily(
            "hami_node_lacks", "1 for each thing that keeps claims from being prepared on this node.", labels=["what"]
        )
        for what in facts.lacking:
            lacking.add_metric([what], 1)
        yield lacking
        yield from _of_gpus(facts.gpus)


def _of_gpus(gpus: Iterable[Gpu]) -> Iterator[GaugeMetricFamily]:
    health = GaugeMetricFamily(
        "hami_gpu_health",
        "1 for the state that the kubelet is told of the GPU's device, 0 for the others.",
        labels=["device", "device_uuid", "state"],
    )
    condition = GaugeMetricFamily(
        "hami_gpu_condition",
        "What is to be said of the GPU, as often as it came up since it began; absent when it has ended.",
        labels=["device", "device_uuid", "what", "value"],
    )
    for gpu in gpus:
        for state in STATES:
            health.add_metric([gpu.device, gpu.uuid, state], float(state == gpu.health))
        for what, value, count in gpu.conditions:
            condition.add_metric([gpu.device, gpu.uuid, what, value], count)
    yield health
    yield condition


Probe = Callable[[], Awaitable[tuple[bool, str]]]
"""Whether it is well, and if not what isn't, in some words."""


@contextlib.asynccontextmanager
async def served(
    address: str, facts: Callable[[], Facts], probes: Mapping[str, Probe] = MappingProxyType({})
) -> AsyncIterator[int]:
    """Serve `/metrics`, and what probes ask, for as long as the context is open; gives the port.

    Args:
        address: `HOST:PORT`; an empty host means all addresses, port 0 any free port.
        facts: Asked for each answer.
        probes: By path; answered with 200, or 503 and what isn't well.

    Raises:
        SettingsError: The address can't be used.
    """
    registry = CollectorRegistry()
    registry.register(_Node(facts))

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
