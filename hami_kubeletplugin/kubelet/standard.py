"""grpc.health.v1 on the DRA socket, as gRPC's own tools and the daemon's probes ask it.

`liveness` and the whole (an empty name) are SERVING as long as somebody answers; `readiness` only while claims can be prepared.
They differ, so that nobody restarts a daemon that waits for what people have to mend: it serves unprepares meanwhile.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
SERVICE: Final[str] = grpc_health.SERVICE_NAME
WITHIN: Final = 3.0
"""Seconds for an answer; the probes in daemonset.yaml wait longer."""
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class StandardHealth:
    """The service, for each server that serves it in turn.

    Args:
        services: Full names of services that are served as long as this one is.
    """

    def __init__(self, services: Iterable[str]) -> None:
        # Its watches wait without a thread.
        self._servicer = grpc_health.HealthServicer(experimental_non_blocking=True)
        for service in (grpc_health.OVERALL_HEALTH, LIVENESS, *services):
            self._servicer.set(service, _SERVING)
        self._servicer.set(READINESS, _NOT_SERVING)
        self._ready = False

    def add_to(self, server: grpc.Server) -> None:
        """Have a server serve it."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def tell(self, ready: bool) -> None:
        """Say from now on whether claims can be prepared."""
        if ready != self._ready:  # who watches would hear it each time
            self._ready = ready
            self._servicer.set(READINESS, _SERVING if ready else _NOT_SERVING)


async def serving(socket: Path, service: str) -> bool:
    """Whether the service of that name at a socket says that it is serving, within seconds. Keeps no thread."""
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    channel = grpc.insecure_channel(f"unix:{quote(str(socket))}", options=(("grpc.enable_http_proxy", 0),))
    try:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = check.future(health_pb2.HealthCheckRequest(service=service), timeout=WITHIN)
        answer.add_done_callback(lambda _: loop.call_soon_threadsafe(answered.set))
        await answered.wait()
        return answer.exception() is None and bool(answer.result().status == _SERVING)
    finally:
        channel.close()
