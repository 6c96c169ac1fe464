"""One gRPC server on one socket file, with reflection."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hami_kubeletplugin.api.errors import ServingError
from hami_kubeletplugin.kubelet.health import MAX_STREAMS
from hami_kubeletplugin.kubelet.sockets import SocketFile

MAX_CALLS: Final = 1000
"""At the same time; more than a node has pods. The kubelet tries again what is refused."""
THREADS: Final = 512 + MAX_STREAMS
"""Calls that are answered at the same time, each waiting in a thread for its claims: two calls for each pod of the fullest node.
More have to wait. Streams of health never take those of calls, and a thread is only made when all others are busy."""
_CANCELLING: Final = 2.0
"""Seconds until calls that were cancelled have ended."""

# gRPC's default, SO_REUSEPORT, is for TCP ports that several processes share.
_OPTIONS: Final = (("grpc.so_reuseport", 0),)


class Listener:
    """Made by `start`. What it serves, how long it grants calls at its end, and its socket file are fixed."""

    def __init__(self, path: Path) -> None:
        self._file = SocketFile(path)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=path.name)
        self._server = grpc.server(self._threads, options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)

    @classmethod
    async def start(
        cls, path: Path, handlers: Sequence[grpc.GenericRpcHandler], services: Sequence[str], *, standard_health: bool
    ) -> Self:
        """Serve `handlers` at `path`; when this returns, the socket file is there and can be connected to.

        Args:
            path: Of the socket; a stale one is replaced.
            handlers: Of the services.
            services: Full names of the services, for reflection and health.
            standard_health: Whether to serve grpc.health.v1 too, with all services SERVING.

        Raises:
            ServingError: The socket can't be bound.
        """
        listener = cls(path)
        try:
            await listener._start(handlers, services, standard_health)
        except BaseException:
            await listener.stop(0)
            raise
        return listener

    async def _start(
        self, handlers: Sequence[grpc.GenericRpcHandler], services: Sequence[str], standard_health: bool
    ) -> None:
        names = [*services, reflection.SERVICE_NAME]
        self._server.add_generic_rpc_handlers(handlers)
        if standard_health:
            # Its watches wait without a thread.
            servicer = grpc_health.HealthServicer(experimental_non_blocking=True)
            for service in (grpc_health.OVERALL_HEALTH, *services):
                servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
            names.append(grpc_health.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        await asyncio.to_thread(self._file.prepare)
        try:
            self._server.add_insecure_port(self._file.bind_address)
        except RuntimeError as error:
            raise ServingError(f"can't bind {self._file.path}: {error}") from error
        self._server.start()
        # One rename; not in a thread, where a cancelled caller would leave a socket that nobody removes.
        self._file.show()

    async def intact(self) -> bool:
        """Whether the socket file is still there and ours."""
        return await asyncio.to_thread(self._file.intact)

    async def stop(self, grace: float) -> None:
        """Take no new calls, let those in flight end within `grace` seconds, cancel the rest, remove the socket file."""
        stopped = self._server.stop(grace)
        try:
            await asyncio.to_thread(stopped.wait, grace + _CANCELLING)
        except asyncio.CancelledError:
            self._server.stop(0)
            raise
        finally:
            self._file.remove()
            self._threads.shutdown(wait=False, cancel_futures=True)
