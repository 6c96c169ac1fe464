"""The webhook as the API server reaches it, from where we are: name, connection, certificate. Blocking, within seconds."""

import base64
import binascii
import socket
import ssl
from collections.abc import Iterator, Mapping
from functools import partial
from http.client import HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.configuration import called

_SECONDS: Final = 5.0
_reach = partial(Finding, check="reachable")


def reach(entry: Mapping[str, Any]) -> Iterator[Finding]:
    """Call it with the trust of its `caBundle`, and ask whether it is ready.

    Args:
        entry: Of the webhook configuration.
    """
    host, port = called(entry).host, _port(entry)
    where = f"{host}:{port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As Go does: each certificate of the bundle is a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    connection = HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        bundle = base64.b64decode(str(fields.at(entry, "clientConfig", "caBundle") or ""))
        context.load_verify_locations(cadata=bundle.decode("ascii", "replace"))
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(1000).decode(errors="replace").strip()
    except ssl.SSLCertVerificationError as error:
        yield _failed(f"{where} is not trusted by caBundle: {error.verify_message}", "hami-webhook certs")
    except socket.gaierror as error:
        yield _unresolved(entry, f"{host} can't be resolved here: {error.strerror}")
    except (OSError, HTTPException, ValueError, binascii.Error) as error:
        yield _failed(
            f"{where} can't be reached from here: {str(error) or type(error).__name__}",
            "kubectl -n hami-system get endpointslices,networkpolicies",
        )
    else:
        if answer.status == 200:
            yield _reach(level=Level.ok, what=f"{where} answers, with a certificate that caBundle trusts")
        else:
            yield _failed(
                f"{where} is not ready: {text or answer.status}", "kubectl -n hami-system logs deploy/hami-webhook"
            )
    finally:
        connection.close()


def _unresolved(entry: Mapping[str, Any], what: str) -> Finding:
    if not fields.at(entry, "clientConfig", "service"):
        return _failed(what, "kubectl get mutatingwebhookconfigurations -o yaml")
    return _reach(
        level=Level.unknown,
        what=what,
        why="the API server needs no DNS to call a Service, so whether it reaches the webhook is not known here",
        mend="kubectl hami doctor",
    )


def _failed(what: str, mend: str) -> Finding:
    return _reach(
        level=Level.error,
        what=what,
        why="the API server, which calls it so, too, refuses pods that name nvidia.com/gpu",
        mend=mend,
    )


def _port(entry: Mapping[str, Any]) -> int:
    port = fields.at(entry, "clientConfig", "service", "port")
    url = str(fields.at(entry, "clientConfig", "url") or "")
    return port if isinstance(port, int) else (urlsplit(url).port or 443 if url else 443)
