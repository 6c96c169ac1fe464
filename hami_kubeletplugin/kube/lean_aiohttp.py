"""aiohttp, without the certificates of all authorities that the host trusts.

aiohttp reads them when it is imported, for a TLS context that nobody here uses: ours are made for one API server. That costs each
start 60 ms and 1.8 MB, and there is no switch (aiohttp/connector.py, `_SSL_CONTEXT_VERIFIED`). Who imports aiohttp first decides:
in daemon and webhook that is `kube.client`, by way of this.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["aiohttp"]


@contextmanager
def _trusting_nobody() -> Iterator[None]:
    made = ssl.create_default_context

    def bare(*_: Any, **__: Any) -> ssl.SSLContext:
        return ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # verifies, and against nothing: whoever used it would be refused

    ssl.create_default_context = bare
    try:
        yield
    finally:
        ssl.create_default_context = made


with _trusting_nobody():
    import aiohttp
