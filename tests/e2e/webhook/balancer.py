"""What a Service is to an API server: each new connection goes to the next replica that is ready."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

from tests.e2e.webhook.process import ADDRESS


class Balancer:
    """Listens on a port of its own.

    Args:
        ports: Of the replicas that are ready; may be changed at any time. What is connected stays so, as with kube-proxy.
    """

    def __init__(self, *ports: int) -> None:
        self.ports = ports
        self.port = 0
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._there, self._stop = threading.Event(), asyncio.Event()

    def run(self) -> None:
        """Until stopped; connections end then."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def wait(self) -> None:
        """Until it listens."""
        assert self._there.wait(10), "the balancer does not listen"

    def stop(self) -> None:
        """Make `run` return."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, ADDRESS, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._there.set()
        await self._stop.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports[next(self._turns) % len(self.ports)]
        try:
            there, back = await asyncio.open_connection(ADDRESS, port)
        except OSError:  # as a node does on which nobody listens
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        finally:
            back.close()
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def balancer(*ports: int) -> Iterator[Balancer]:
    """One that listens until the block ends."""
    made = Balancer(*ports)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    made.wait()
    try:
        yield made
    finally:
        made.stop()
        thread.join(10)
    assert not thread.is_alive(), "the balancer does not end"
