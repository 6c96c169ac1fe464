"""Who gets to see metrics: TLS and a token, if they are wanted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from hami_kubeletplugin.api.metrics_settings import MetricsSettings
from hami_kubeletplugin.observe.bearer import TokenFile
from hami_kubeletplugin.observe.endpoint import Door
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()


@contextlib.asynccontextmanager
async def door(settings: MetricsSettings) -> AsyncIterator[Door]:
    """The door, whose certificate and token follow their files while the context is open.

    Raises:
        CertificateError, SettingsError: A file can't be used; names it.
    """
    tls = allows = None
    async with contextlib.AsyncExitStack() as stack:
        if settings.tls_cert_file is not None and settings.tls_key_file is not None:
            from hami_kubeletplugin.webhook.certificate.files import CertificateFiles  # noqa: PLC0415 - 12 MB

            files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file)
            context = await files.start()
            await stack.enter_async_context(_meanwhile(files.run))

            def tls() -> Any:
                return context

        if settings.metrics_token_file is not None:
            token = TokenFile(settings.metrics_token_file)
            await token.start()
            await stack.enter_async_context(_meanwhile(token.run))
            allows = token.allows
        yield Door(tls, allows)


@contextlib.asynccontextmanager
async def _meanwhile(run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(_for_ever(run))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _for_ever(run: Callable[[], Awaitable[None]]) -> None:
    """What fails is begun again, else a renewed certificate would never be seen. It begins with a pause by itself."""
    while True:
        try:
            await run()
        except Exception as error:
            log.error("certificate or token can't be looked at for changes; it is tried again", exc_info=error)
