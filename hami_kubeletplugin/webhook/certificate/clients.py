"""Who may ask for reviews: clients with a certificate of a CA in a file, which is read again when it changes.

A client without a certificate is let in all the same, for health and metrics; what it may ask for is decided when it asks. One
with a certificate that the CA hasn't signed, or not for clients, fails in TLS already.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, server_context

INTERVAL: Final = 10.0
"""Seconds between looks, as for the server's own files."""
_MOST: Final = 1024 * 1024
"""Bytes of the file."""


class Clients:
    """The CA in a file.

    Args:
        path: PEM.
        name: The common name that a client's certificate must have; empty: any.
        serving: The server's own pair, as it is now.
        sleep: Waits for so many seconds.

    Raises:
        CertificateError: The file can't be used.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        serving: Callable[[], KeyPair],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path, self._name, self._serving, self._sleep = path, name, serving, sleep
        self._authorities = _read(path)
        self._made: tuple[ssl.SSLContext, KeyPair, str] | None = None
        self._told = Once[Path]()
        self._log = get_logger()

    def context(self) -> ssl.SSLContext:
        """For a new connection. Another one when the CA or the server's pair is: a context forgets no CA that it has trusted."""
        pair = self._serving()
        if self._made is None or self._made[1] is not pair or self._made[2] is not self._authorities:
            self._made = (_context(pair, self._authorities), pair, self._authorities)
        return self._made[0]

    def refusal(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Why this client may not ask for reviews; None: it may.

        Args:
            certificate: `SSLSocket.getpeercert()`; None: it has none.
        """
        if not certificate:
            return (
                "reviews are for clients with a certificate of --client-ca: give the API server one, with the kubeConfigFile "
                "of its AdmissionConfiguration"
            )
        names = [value for part in certificate["subject"] for kind, value in part if kind == "commonName"]
        if self._name and names != [self._name]:
            asked = ", ".join(map(repr, names)) or "one without a common name"
            return f"reviews are for the client {self._name!r} (--client-name), not for {asked}"
        return None

    async def run(self) -> None:
        """Look for changes for ever. A file that can't be used is logged, and the CA before stays in use."""
        while True:
            await self._sleep(INTERVAL)
            await self.check()

    async def check(self) -> None:
        """Look once."""
        try:
            found = await asyncio.to_thread(_read, self._path)
        except CertificateError as error:
            if self._told.is_new(self._path, str(error)):
                self._log.error("changed CA of clients is not used", error=str(error))
            return
        self._told.ended(self._path)
        if found != self._authorities:
            self._authorities = found
            self._log.info("changed CA of clients is used", file=str(self._path))


def _context(pair: KeyPair, authorities: str) -> ssl.SSLContext:
    context = server_context(pair)
    context.load_verify_locations(cadata=authorities)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _read(path: Path) -> str:
    """The PEM text.

    Raises:
        CertificateError: It can't be read, or has no CA.
    """
    mend = "name a PEM file with the certificate of the CA that signs the API server's client certificate"
    try:
        with path.open("rb") as file:
            text = file.read(_MOST + 1).decode("ascii", "ignore")
    except OSError as error:
        raise CertificateError(f"--client-ca {path}: can't be read: {error.strerror}; {mend}") from error
    if len(text) > _MOST:
        raise CertificateError(f"--client-ca {path}: is larger than {_MOST} bytes; {mend}")
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        trial.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise CertificateError(f"--client-ca {path}: has no certificate that can be read; {mend}") from None
    if not trial.cert_store_stats()["x509_ca"]:
        raise CertificateError(f"--client-ca {path}: the certificate in it is no CA's; {mend}")
    return text
