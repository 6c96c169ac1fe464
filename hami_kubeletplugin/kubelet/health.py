"""NodeWatchResources, v1 and v1alpha1: a stream that tells the kubelet how every published device is.

Contract: k8s.io/kubelet pkg/apis/dra-health. The kubelet forgets a device that isn't reported again within its time-out, so
everything is said again each interval, and at once when the set of published devices changes.
"""

import asyncio
import enum
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc

from hami_kubeletplugin.kubelet.wire import dra_health_v1_pb2 as wire
from hami_kubeletplugin.kubelet.wire import dra_health_v1alpha1_pb2

# Here, other than in DRA, supported_versions has the full names of the services.
V1: Final = wire.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name
V1ALPHA1: Final = dra_health_v1alpha1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name

TIMEOUT_SECONDS: Final = 30
"""How long a report holds; the kubelet's default too. `Settings.health_interval` stays below it."""

MESSAGE_MAX: Final = 1024


class HealthStatus(enum.IntEnum):
    """The numbers of the wire."""

    UNKNOWN = wire.UNKNOWN
    HEALTHY = wire.HEALTHY
    UNHEALTHY = wire.UNHEALTHY


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How one published device is; `message` is for people."""

    pool: str
    device: str
    status: HealthStatus
    message: str = ""


class HealthSource(Protocol):
    """Knows what is published."""

    def published(self) -> Sequence[tuple[str, str]]:
        """(pool, device) of everything that is in our ResourceSlices now."""

    async def changed(self, since: Sequence[tuple[str, str]]) -> None:
        """Return as soon as `published()` differs from `since`, at once if it does already."""


class HealthService:
    """The two health services of one gRPC server. Both speak with the messages of v1: those of v1alpha1 are the same."""

    def __init__(self, source: HealthSource, interval: float) -> None:
        self._source = source
        self._interval = interval
        self._closing = asyncio.Event()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """What a gRPC server needs to serve both versions."""
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch, wire.NodeWatchResourcesRequest.FromString, wire.NodeWatchResourcesResponse.SerializeToString
        )
        return tuple(
            grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch}) for service in (V1, V1ALPHA1)
        )

    def close(self) -> None:
        """End all streams, in order; the kubelet comes back a few seconds later."""
        self._closing.set()

    async def _watch(
        self,
        _request: wire.NodeWatchResourcesRequest,
        _: grpc.aio.ServicerContext[wire.NodeWatchResourcesRequest, wire.NodeWatchResourcesResponse],
    ) -> AsyncIterator[wire.NodeWatchResourcesResponse]:
        closing = asyncio.create_task(self._closing.wait())
        try:
            while not closing.done():
                devices = tuple(self._source.published())
                yield report(
                    (DeviceHealth(pool, device, HealthStatus.HEALTHY) for pool, device in devices), time.time()
                )
                changed = asyncio.create_task(self._source.changed(devices))
                try:
                    await asyncio.wait((closing, changed), timeout=self._interval, return_when=asyncio.FIRST_COMPLETED)
                    if changed.done():
                        changed.result()  # an error of the source ends the stream; without it, reports would never pause
                finally:
                    changed.cancel()
        finally:
            closing.cancel()


def report(devices: Iterable[DeviceHealth], now: float) -> wire.NodeWatchResourcesResponse:
    """One message of the stream. `now` is Unix time in seconds."""
    response = wire.NodeWatchResourcesResponse()
    for health in devices:
        response.devices.add(
            device=wire.DeviceIdentifier(pool_name=health.pool, device_name=health.device),
            health=wire.HealthStatus.ValueType(health.status),
            last_updated_time=int(now),
            health_check_timeout_seconds=TIMEOUT_SECONDS,
            message=health.message[:MESSAGE_MAX],
        )
    return response
