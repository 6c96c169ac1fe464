"""A certificate that others renew, as cert-manager does: two files, read again when they change."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, install, read_files, server_context

INTERVAL: Final = 10.0
"""Seconds between looks; the kubelet needs up to a minute or two to bring a changed Secret into the volume."""
_TRIES: Final = 3
"""Readings until certificate and key are from the same time; a volume is swapped as a whole, but two files are read."""

_Stamp = tuple[tuple[int, int, int], ...]


class CertificateFiles:
    """Serves the pair in two files.

    Args:
        cert: The certificate, and what has to be sent with it, PEM.
        key: Its key.
        sleep: Waits for so many seconds.
    """

    def __init__(self, cert: Path, key: Path, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._cert, self._key, self._sleep = cert, key, sleep
        self._serving: KeyPair | None = None
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp | None = None
        self._told = Once[Path]()
        self._log = get_logger()

    @property
    def serving(self) -> KeyPair | None:
        """The pair that new connections get."""
        return self._serving

    @property
    def expires_at(self) -> datetime | None:
        """When the certificate that is served ends."""
        return self._serving.certificate.not_after if self._serving is not None else None

    async def start(self) -> ssl.SSLContext:
        """Read the files, and make a context that serves them, now and after each change.

        Raises:
            CertificateError: They can't be used; names the file.
        """
        self._stamp, pair = await asyncio.to_thread(self._read)
        self._context, self._serving = server_context(pair), pair
        self._tell("certificate is served")
        return self._context

    async def run(self) -> None:
        """Look for changes for ever. Files that can't be used are logged, and the pair before stays in use."""
        while True:
            await self._sleep(INTERVAL)
            await self.check()

    async def check(self) -> None:
        """Look once."""
        if self._context is None:
            raise RuntimeError("CertificateFiles is used before `start`")
        try:
            if await asyncio.to_thread(self._stamps) == self._stamp:
                return
            stamp, pair = await asyncio.to_thread(self._read)
        except CertificateError as error:
            if self._told.is_new(self._cert, str(error)):
                self._log.error("changed certificate is not used", error=str(error), expires_at=str(self.expires_at))
            return
        self._stamp = stamp
        self._told.ended(self._cert)
        if pair != self._serving:
            install(pair, self._context)
            self._serving = pair
            self._tell("changed certificate is served")

    def _read(self) -> tuple[_Stamp, KeyPair]:
        for tries_left in reversed(range(_TRIES)):
            before = self._stamps()
            try:
                return before, read_files(self._cert, self._key)
            except CertificateError:
                if not tries_left or self._stamps() == before:
                    raise
        raise AssertionError("the last try returns or raises")

    def _stamps(self) -> _Stamp:
        try:
            # Of what a symlink leads to: the kubelet swaps links, and the files behind them never change.
            found = [os.stat(path) for path in (self._cert, self._key)]
        except OSError as error:
            raise CertificateError(
                f"{error.filename}: can't be read: {error.strerror}; look at --tls-cert-file, --tls-key-file and the volume"
            ) from error
        return tuple((each.st_dev, each.st_ino, each.st_mtime_ns) for each in found)

    def _tell(self, event: str) -> None:
        if self._serving is not None:
            certificate = self._serving.certificate
            self._log.info(
                event,
                file=str(self._cert),
                hosts=sorted(certificate.hosts),
                expires_at=certificate.not_after.isoformat(),
            )
