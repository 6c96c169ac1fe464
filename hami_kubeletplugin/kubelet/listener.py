"""One gRPC server on one socket file, with reflection."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from hami_kubeletplugin.api.errors import ServingError
from hami_kubeletplugin.kubelet import standard
from hami_kubeletplugin.kubelet.health import MAX_STREAMS
from hami_kubeletplugin.kubelet.sockets import SocketFile

MAX_CALLS: Final = 1000
"""At the same time; more than a node has pods. The kubelet tries again what is refused."""
_REFLECTIONS: Final = 8
"""Streams of reflection at the same time; each keeps a thread while it is open."""
THREADS: Final = 512 + MAX_STREAMS + _REFLECTIONS
"""Calls that are answered at the same time, each waiting in a thread for its claims: two calls for each pod of the fullest node.
More have to wait. Streams never take those of calls, and a thread is only made when all others are busy."""
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
        cls,
        path: Path,
        handlers: Sequence[grpc.GenericRpcHandler],
        services: Sequence[str],
        health: standard.StandardHealth | None = None,
    ) -> Self:
        """Serve `handlers` at `path`; when this returns, the socket file is there and can be connected to.

        Args:
            path: Of the socket; a stale one is replaced.
            handlers: Of the services.
            services: Full names of the services, for reflection.
            health: Served too, if given.

        Raises:
            ServingError: The socket can't be bound.
        """
        listener = cls(path)
        try:
            await listener._start(handlers, services, health)
        except BaseException:
            await listener.stop(0)
            raise
        return listener

    async def _start(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        services: Sequence[str],
        health: standard.StandardHealth | None,
    ) -> None:
        names = [*services, reflection.SERVICE_NAME]
        if health is not None:
            health.add_to(self._server)
            names.append(standard.SERVICE)
        self._server.add_generic_rpc_handlers((*handlers, _reflection(names)))
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


def _reflection(names: Sequence[str]) -> grpc.GenericRpcHandler:
    """What a gRPC server needs to serve reflection of these services, to some clients at a time."""
    servicer = reflection.ReflectionServicer(names)
    free = threading.BoundedSemaphore(_REFLECTIONS)

    def answers(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        if not free.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_REFLECTIONS} clients are asking already")
        try:
            yield from servicer.ServerReflectionInfo(requests, context)
        finally:
            free.release()

    method = grpc.stream_stream_rpc_method_handler(
        answers,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": method})
