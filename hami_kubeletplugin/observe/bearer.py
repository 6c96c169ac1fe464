"""A bearer token in a file that others write anew: who sends it may ask."""

import asyncio
import hmac
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

INTERVAL: Final = 10.0
"""Seconds between looks; the kubelet needs up to a minute or two to bring a changed Secret into the volume."""
_SHORTEST: Final = 16
_LONGEST: Final = 4000
"""Bytes of a token: one that is shorter can be guessed, one that is longer has no room in a header."""


class TokenFile:
    """The token that a file holds.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, b""
        self._told = Once[str]()

    async def start(self) -> None:
        """Read it.

        Raises:
            SettingsError: It can't be used; says why.
        """
        self._token = await asyncio.to_thread(self._read)

    async def run(self) -> None:
        """Look for changes for ever. What can't be used is logged, and the token before stays."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.check()

    async def check(self) -> None:
        """Look once."""
        try:
            token = await asyncio.to_thread(self._read)
        except SettingsError as error:
            if self._told.is_new("failure", str(error)):
                log.error("changed token is not used, the one before is", error=str(error))
            return
        self._told.ended("failure")
        if token != self._token:
            self._token = token
            log.info("changed token is used", file=str(self._path))

    def allows(self, authorization: str) -> bool:
        """Whether a header `Authorization` holds it. How long that takes tells nothing of it."""
        scheme, _, given = authorization.partition(" ")
        sent = given.strip().encode(errors="surrogateescape")
        return hmac.compare_digest(sent, self._token) and scheme.lower() == "bearer" and bool(self._token)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                token = file.read(_LONGEST + 2).strip()
        except OSError as error:
            raise SettingsError(f"--metrics-token-file {self._path}: can't be read: {error.strerror}") from error
        if not _SHORTEST <= len(token) <= _LONGEST or any(not 0x21 <= byte <= 0x7E for byte in token):
            raise SettingsError(
                f"--metrics-token-file {self._path}: must hold one token of {_SHORTEST} to {_LONGEST} letters, digits and signs"
            )
        return token
