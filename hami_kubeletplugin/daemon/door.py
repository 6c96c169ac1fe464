"""Who gets to see metrics: TLS and a token, if they are wanted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from hami_kubeletplugin.api.metrics_settings import MetricsSettings
from hami_kubeletplugin.observe.bearer import TokenFile
from hami_kubeletplugin.observe.endpoint import Door


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
            await stack.enter_async_context(_meanwhile(files.run()))

            def tls() -> Any:
                return context

        if settings.metrics_token_file is not None:
            token = TokenFile(settings.metrics_token_file)
            await token.start()
            await stack.enter_async_context(_meanwhile(token.run()))
            allows = token.allows
        yield Door(tls, allows)


@contextlib.asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
