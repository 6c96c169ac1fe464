"""kube.config: credentials from kubeconfigs and service accounts, and TLS with them."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_kubeletplugin.api.errors import ApiUnavailable, SettingsError
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.config import Access, from_kubeconfig, in_cluster, load
from hami_kubeletplugin.kube.resource_api import KubeClient

PKI = Path(__file__).parent / "pki"


def write(directory: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write a kubeconfig with one context, and another that must not be taken."""
    path = directory / "kubeconfig"
    config = {
        "current-context": "here",
        "contexts": [
            {"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "elsewhere"}},
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "elsewhere", "cluster": {"server": "https://wrong"}}, {"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def data(name: str) -> str:
    """A file of the test certificates as a kubeconfig's `-data` field has it."""
    return base64.b64encode((PKI / name).read_bytes()).decode()


def mutual_tls() -> ssl.SSLContext:
    """A server's TLS that wants a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(PKI / "ca.crt"))
    context.load_cert_chain(PKI / "server.crt", PKI / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


FILES = (
    {"certificate-authority": str(PKI / "ca.crt"), "tls-server-name": "api.test"},
    {"client-certificate": str(PKI / "client.crt"), "client-key": str(PKI / "client.key")},
)
DATA = (
    {"certificate-authority-data": data("ca.crt"), "tls-server-name": "api.test"},
    {"client-certificate-data": data("client.crt"), "client-key-data": data("client.key")},
)
INSECURE = ({"insecure-skip-tls-verify": True}, DATA[1])


@pytest.mark.parametrize(("cluster", "user"), [FILES, DATA, INSECURE], ids=["files", "data", "insecure"])
async def test_client_certificate_and_server_name(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    """A kubeconfig with certificates, as files or inline, reaches a server that asks for them."""
    async with ApiServer(tls=mutual_tls()) as server:
        access = from_kubeconfig(write(tmp_path, {**cluster, "server": server.url}, user))
        async with KubeClient(access) as client:
            assert await client.server_version() == (1, 37)


async def test_server_with_another_name_is_not_trusted(tmp_path: Path) -> None:
    """A certificate for another name than the URL's ends in an error that says so, not in a connection."""
    async with ApiServer(tls=mutual_tls()) as server:
        cluster = {"server": server.url, "certificate-authority-data": data("ca.crt")}
        async with KubeClient(from_kubeconfig(write(tmp_path, cluster, DATA[1]))) as client:
            with pytest.raises(ApiUnavailable, match="certificate verify failed"):
                await client.server_version()
    assert not server.requests


def test_token_and_relative_token_file(tmp_path: Path) -> None:
    """A token is taken as it is; a relative tokenFile starts at the kubeconfig's directory."""
    cluster = {"server": "http://api.test:8080/"}
    assert load(write(tmp_path, cluster, {"token": "t"})) == Access("http://api.test:8080", token="t")
    assert load(write(tmp_path, cluster, {"tokenFile": "sub/token"})).token_file == tmp_path / "sub/token"


@pytest.mark.parametrize(
    ("cluster", "user", "says"),
    [
        ({}, {"exec": {"command": "aws"}}, r"user\.exec: credential plugins are not supported"),
        ({}, {"auth-provider": {"name": "gcp"}}, r"user\.auth-provider: auth providers are not supported"),
        ({}, {"username": "u", "password": "p"}, r"user\.username: passwords are not supported"),
        ({}, {"as": "root"}, r"user\.as: impersonation"),
        ({}, {"token": "a\r\nb: c"}, r"user\.token: that is something else than a token"),
        ({}, {"token": 123}, r"user\.token: that is something else than a token"),
        ({"proxy-url": "http://p"}, {}, r"proxy-url: proxies are not supported"),
        ({"server": "https://u:p@api.test"}, {}, r"server: must hold no user or password"),
        ({"server": "api.test"}, {}, r"server: must be an http or https URL, got 'api.test'"),
        ({"certificate-authority": "/nowhere"}, {}, r"certificate-authority: can't be read"),
        ({"certificate-authority-data": "***"}, {}, r"certificate-authority-data: is not base64"),
        ({"certificate-authority-data": "aGVsbG8="}, {}, r"certificates or key can't be used"),
        ({}, {"client-certificate-data": data("client.crt")}, r"client-key belong together"),
        ({}, {"client-certificate-data": data("client.crt"), "client-key-data": data("server.key")}, r"can't be used"),
    ],
)
def test_wrong_entry_is_named(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], says: str) -> None:
    """What can't be used is refused at the start, with the file and the field."""
    path = write(tmp_path, {"server": "https://api.test", **cluster}, user)
    with pytest.raises(SettingsError, match=says) as caught:
        from_kubeconfig(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can't be read"),
        ("[]", r"current-context \(None\) is not among its contexts"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: gone}}]}",
            r"cluster \('gone'\) is not among its clusters",
        ),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    """A file that is no kubeconfig, or refers to what it does not have, is refused."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingsError, match=says):
        from_kubeconfig(path)


def test_a_damaged_file_is_not_quoted(tmp_path: Path) -> None:
    """There may be a token in the line that is wrong; its number is enough."""
    path = tmp_path / "config"
    path.write_text("users:\n- user: {token: secret-token, [\n")
    with pytest.raises(SettingsError, match="not YAML, see line") as raised:
        from_kubeconfig(path)
    assert "secret-token" not in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A kubeconfig that is not there is a settings error with its path."""
    with pytest.raises(SettingsError, match=str(tmp_path / "none")):
        load(tmp_path / "none")


def service_account(directory: Path) -> Path:
    """A service account's directory with a token."""
    (directory / "token").write_text("t1\n")
    (directory / "ca.crt").write_text((PKI / "ca.crt").read_text())
    return directory


def test_in_cluster_access(tmp_path: Path) -> None:
    """In a pod the variables give the server, IPv6 in brackets, and the token is read from its file."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = in_cluster(environ, service_account(tmp_path))
    assert (access.server, access.token_file) == ("https://10.0.0.1:6443", tmp_path / "token")
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_REQUIRED
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server == "https://[fd00::1]:443"


def test_not_in_a_cluster(tmp_path: Path) -> None:
    """Outside of a pod the error points at --kubeconfig; without a mounted token, at the pod's setting."""
    with pytest.raises(SettingsError, match="--kubeconfig"):
        in_cluster({}, tmp_path)
    with pytest.raises(SettingsError, match="automountServiceAccountToken"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_a_damaged_certificate_of_the_cluster_is_named(tmp_path: Path) -> None:
    """The file, and where it comes from."""
    (service_account(tmp_path) / "ca.crt").write_text("no certificate")
    with pytest.raises(SettingsError, match=r"ca\.crt can't be used.*kube-root-ca\.crt"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
