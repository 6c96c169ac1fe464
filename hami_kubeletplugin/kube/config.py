"""How to reach the API server, and as whom: from a kubeconfig or from the pod's service account.

Contract: k8s.io/client-go tools/clientcmd/api/v1/types.go and rest.InClusterConfig. What would need other programs (exec,
auth-provider) or what no server takes any more (passwords) is refused with a message that names it.
"""

import base64
import binascii
import dataclasses
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from hami_kubeletplugin.api.errors import SettingsError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFUSED_USER: Final = {
    "exec": "credential plugins",
    "auth-provider": "auth providers",
    "username": "passwords",
    "as": "impersonation",
}


@dataclass(frozen=True, slots=True)
class Access:
    """One server and the credentials for it.

    Attributes:
        server: Base URL without a trailing slash.
        tls: None for plain http.
        tls_server_name: The name that the server's certificate must have, if it isn't the URL's.
        token: A bearer token that never changes.
        token_file: A file with one that does; it wins over `token`.
    """

    server: str
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    token_file: Path | None = None


def load(kubeconfig: Path | None) -> Access:
    """The access that the settings ask for: a kubeconfig, or the service account of the pod we are in.

    Raises:
        SettingsError: It can't be used; the message names the file and the field.
    """
    return in_cluster() if kubeconfig is None else from_kubeconfig(kubeconfig)


def in_cluster(environ: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Access:
    """The access of a pod's service account.

    Raises:
        SettingsError: We are not in a pod, or its token is not mounted.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError("KUBERNETES_SERVICE_HOST is not set, so this is not a pod: name a file with --kubeconfig")
    token_file, ca_file = account / "token", account / "ca.crt"
    for file in (token_file, ca_file):
        if not file.is_file():
            raise SettingsError(f"{file} is missing: set automountServiceAccountToken to true in the pod")
    url_host = f"[{host}]" if ":" in host else host
    try:
        tls = _tls(ca=ca_file.read_text())
    except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
        raise SettingsError(f"{ca_file} can't be used: {error}; look at the ConfigMap kube-root-ca.crt") from error
    return Access(f"https://{url_host}:{port}", tls, token_file=token_file)


def from_kubeconfig(path: Path) -> Access:
    """The access that the current context of a kubeconfig describes. Relative paths start at the file's directory.

    Raises:
        SettingsError: The file can't be read, something in it is missing or wrong, or it needs what is not supported.
    """
    import yaml  # noqa: PLC0415 - costs start-up time, and a pod does not need it

    try:
        config = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except OSError as error:
        raise SettingsError(f"kubeconfig {path} can't be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        # Not its own text, which quotes the line: there may be a token in it.
        mark = getattr(error, "problem_mark", None)
        raise SettingsError(
            f"kubeconfig {path} can't be read: it is not YAML" + (f", see line {mark.line + 1}" if mark else "")
        ) from None
    return _Kubeconfig(path, config if isinstance(config, dict) else {}).access()


def is_token(text: str) -> bool:
    """Whether a header can hold it."""
    return text.isascii() and text.isprintable()


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    path: Path
    config: Mapping[str, Any]

    def access(self) -> Access:
        context = self._named("contexts", "context", self.config.get("current-context"), "current-context")
        cluster = self._named("clusters", "cluster", context.get("cluster"), "the current context's cluster")
        user = self._named("users", "user", context.get("user"), "the current context's user")
        for field, what in _REFUSED_USER.items():
            if user.get(field):
                raise self._wrong(
                    f"users[].user.{field}: {what} are not supported; use a token or a client certificate"
                )
        if cluster.get("proxy-url"):
            raise self._wrong("clusters[].cluster.proxy-url: proxies are not supported")
        server = str(cluster.get("server", "")).rstrip("/")
        if not server.startswith(("http://", "https://")):
            raise self._wrong(f"clusters[].cluster.server: must be an http or https URL, got {server!r}")
        if "@" in urlsplit(server).netloc:
            raise self._wrong(
                "clusters[].cluster.server: must hold no user or password; use a token or a client certificate"
            )
        token, token_file = user.get("token"), user.get("tokenFile")
        if token is not None and not (isinstance(token, str) and is_token(token)):
            raise self._wrong("users[].user.token: that is something else than a token")
        return Access(
            server,
            self._tls(cluster, user) if server.startswith("https:") else None,
            cluster.get("tls-server-name"),
            token,
            self.path.parent / token_file if token_file else None,
        )

    def _tls(self, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
        ca = self._pem(cluster, "certificate-authority")
        certificate, key = self._pem(user, "client-certificate"), self._pem(user, "client-key")
        if (certificate is None) != (key is None):
            raise self._wrong("users[].user: client-certificate and client-key belong together, one is missing")
        insecure = cluster.get("insecure-skip-tls-verify") is True
        try:
            return _tls(ca=ca, client=(certificate, key) if certificate and key else None, insecure=insecure)
        except ssl.SSLError as error:
            raise self._wrong(f"its certificates or key can't be used: {error}") from error

    def _pem(self, entry: Mapping[str, Any], field: str) -> str | None:
        # As in client-go the data wins over the file.
        data, file = entry.get(f"{field}-data"), entry.get(field)
        try:
            if data:
                return base64.b64decode(data, validate=True).decode()
            return (self.path.parent / file).read_text() if file else None
        except (binascii.Error, UnicodeDecodeError) as error:
            raise self._wrong(f"{field}-data: is not base64 of PEM text: {error}") from error
        except OSError as error:
            raise self._wrong(f"{field}: can't be read: {error}") from error

    def _named(self, section: str, field: str, name: object, what: str) -> Mapping[str, Any]:
        for entry in self.config.get(section) or ():
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(field), dict):
                found: Mapping[str, Any] = entry[field]
                return found
        raise self._wrong(f"{what} ({name!r}) is not among its {section}")

    def _wrong(self, what: str) -> SettingsError:
        return SettingsError(f"kubeconfig {self.path}: {what}")


def _tls(*, ca: str | None = None, client: tuple[str, str] | None = None, insecure: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca)
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client is not None:
        # `load_cert_chain` reads files only. This one is in memory: no disk sees the key, and a read-only root is enough.
        with open(os.memfd_create("client"), "w", encoding="ascii") as file:
            file.write("\n".join(client))
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context
