"""NodeWatchResources, v1 and v1alpha1: a stream that tells the kubelet how every published device is.

Contract: k8s.io/kubelet pkg/apis/dra-health. The kubelet forgets a device that isn't reported again within its time-out, so
everything is said again each interval, and at once when something changes.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

import grpc

from hami_kubeletplugin.gpu.conditions import Health
from hami_kubeletplugin.gpu.device_health import DeviceHealth, Reported
from hami_kubeletplugin.kubelet.wire import dra_health_v1_pb2 as wire
from hami_kubeletplugin.kubelet.wire import dra_health_v1alpha1_pb2

# Here, other than in DRA, supported_versions has the full names of the services.
V1: Final = wire.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name
V1ALPHA1: Final = dra_health_v1alpha1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name

TIMEOUT_SECONDS: Final = 30
"""How long a report holds; the kubelet's default too. `Settings.health_interval` stays below it."""

MESSAGE_MAX: Final = 1024

MAX_STREAMS: Final = 8
"""The kubelet has one, and for a moment two."""


_STATUS: Final = {
    Health.UNKNOWN: wire.UNKNOWN,
    Health.HEALTHY: wire.HEALTHY,
    Health.UNHEALTHY: wire.UNHEALTHY,
}


class HealthService:
    """The two health services of one gRPC server. Both speak with the messages of v1: those of v1alpha1 are the same.

    Each stream keeps a thread of the server's for as long as it is open.
    """

    def __init__(self, devices: Reported, interval: float) -> None:
        self._devices = devices
        self._interval = interval
        self._closing = False
        self._free = threading.BoundedSemaphore(MAX_STREAMS)

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
        self._closing = True
        self._devices.wake()

    def _watch(
        self, _request: wire.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[wire.NodeWatchResourcesResponse]:
        if not self._free.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} are watching already")
        try:
            # A stream that its client left gives its thread back now, not after the interval.
            if not context.add_callback(self._devices.wake):
                return
            while context.is_active() and not self._closing:
                devices = self._devices.get()
                yield report(devices, time.time())
                woken = self._devices.woken
                if context.is_active() and not self._closing:
                    self._devices.wait(devices, self._interval, woken=woken)
        finally:
            self._free.release()


def report(devices: Iterable[DeviceHealth], now: float) -> wire.NodeWatchResourcesResponse:
    """One message of the stream. `now` is Unix time in seconds."""
    response = wire.NodeWatchResourcesResponse()
    for each in devices:
        response.devices.add(
            device=wire.DeviceIdentifier(pool_name=each.pool, device_name=each.device),
            health=_STATUS[each.health],
            last_updated_time=int(now),
            health_check_timeout_seconds=TIMEOUT_SECONDS,
            message=each.message[:MESSAGE_MAX],
        )
    return response
