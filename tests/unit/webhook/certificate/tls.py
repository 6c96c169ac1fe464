"""Real TLS connections for the tests of certificates."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A TLS server that says hello; gives its port."""

    async def hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def met(port: int, bundle: str, host: str) -> str:
    """SHA-256 of the certificate that a client meets that trusts the bundle, as a new connection.

    Raises:
        ssl.SSLCertVerificationError: It does not trust it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle)
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        try:
            assert await reader.read() == b"hello"
            return hashlib.sha256(writer.get_extra_info("ssl_object").getpeercert(binary_form=True)).hexdigest()
        finally:
            writer.close()
            await writer.wait_closed()
