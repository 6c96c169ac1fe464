"""The API server as people reach it: their kubeconfigs, as kubectl takes them, and what they are told when something is wrong."""

import asyncio
import base64
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import ApiForbidden, ApiNotFound, ApiUnavailable, HamiError, SettingsError
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube import people_config
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.paged import PAGE
from hami_kubeletplugin.kube.people import PeoplesClient
from tests import CHECKOUT

NODES = Call("list", "nodes", "/api/v1/nodes")
Json = dict[str, Any]
PLUGIN = """\
#!/bin/sh
[ -n "$KUBERNETES_EXEC_INFO" ] && [ "$1" = "--for=$WHO" ] || exit 3
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "from-the-plug-in"}}'
"""


def config(url: str, user: Json | None = None, cluster: Json | None = None, *, name: str = "x") -> Json:
    """A kubeconfig with one context."""
    return {
        "clusters": [{"name": name, "cluster": {"server": url} | (cluster or {})}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def written(path: Path, made: Json) -> str:
    """The file."""
    path.write_text(json.dumps(made))
    return str(path)


def jwt(**claims: Any) -> str:
    """An ID token."""
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)
    )
    return ".".join([*parts, "c2ln"])


def oidc(token: str) -> Json:
    """A user with one."""
    about = {"client-id": "c", "id-token": token, "idp-issuer-url": "https://127.0.0.1:9", "refresh-token": "r"}
    return {"auth-provider": {"name": "oidc", "config": about}}


async def names(kubeconfig: str, context: str | None = None) -> list[str]:
    """The nodes that this person sees."""

    def ask() -> list[str]:
        with PeoplesClient.of(kubeconfig, context) as client:
            return [node["metadata"]["name"] for node in client.all(NODES)]

    return await asyncio.to_thread(ask)


async def test_credential_plug_ins(tmp_path: Path) -> None:
    """A plug-in, as EKS, GKE and AKS have them, is run with its arguments and environment, and its token is used."""
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "args": ["--for=me"],
        "env": [{"name": "WHO", "value": "me"}],
        "interactiveMode": "Never",
    }
    async with ApiServer(token="from-the-plug-in") as api:
        api.put("nodes", {"metadata": {"name": "n1"}})
        path = written(tmp_path / "config", config(api.url, {"exec": run}))
        assert await names(path) == ["n1"]
        failing = config(api.url, {"exec": run | {"args": [], "installHint": "get it from \x1b[31mX"}})
        with pytest.raises(
            SettingsError, match=r"context x: the credential plug-in .*exec: process returned 3.*get it from"
        ):
            await names(written(tmp_path / "failing", failing))
        absent = config(api.url, {"exec": run | {"command": "no-such-plug-in"}})
        with pytest.raises(
            SettingsError, match=r"credential plug-in 'no-such-plug-in' gave no credentials.*No such file"
        ):
            await names(written(tmp_path / "absent", absent))


async def test_id_tokens(tmp_path: Path) -> None:
    """An ID token of OIDC that is good is used; with one that has expired nobody is asked, and it is said how it is renewed."""
    token = jwt(exp=time.time() + 3600)
    async with ApiServer(token=token) as api:
        api.put("nodes", {"metadata": {"name": "n1"}})
        assert await names(written(tmp_path / "good", config(api.url, oidc(token)))) == ["n1"]
        with pytest.raises(SettingsError, match="the id-token has expired: any command of kubectl has it renewed"):
            await names(written(tmp_path / "old", config(api.url, oidc(jwt(exp=1)))))
        for none in ("", "a.b", "a.b.c", jwt(exp="soon")):
            with pytest.raises(SettingsError, match="the id-token of its user is none: log in again"):
                await names(written(tmp_path / "none", config(api.url, oidc(none))))


async def test_several_files_and_contexts(tmp_path: Path) -> None:
    """Files are merged as kubectl does: the first that names a current context counts; --context chooses another one."""
    async with ApiServer(token="one") as first, ApiServer(token="two") as second:
        first.put("nodes", {"metadata": {"name": "of-the-first"}})
        second.put("nodes", {"metadata": {"name": "of-the-second"}})
        (tmp_path / "token").write_text("two\n")
        paths = [
            str(tmp_path / "there-is-none"),
            written(tmp_path / "a", config(first.url, {"token": "one"}, name="a")),
            written(tmp_path / "b", config(second.url, {"tokenFile": "token"}, name="b")),
        ]
        assert await names(":".join(paths)) == ["of-the-first"]
        assert await names(":".join(paths), "b") == ["of-the-second"]
        with pytest.raises(SettingsError, match="context 'c' is not among its contexts: there are a, b"):
            await names(":".join(paths), "c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.pop("current-context"), "no context is chosen: name one with --context; there are x"),
        (lambda made: made["contexts"][0]["context"].update(cluster="y"), "cluster 'y' is not among its clusters"),
        (
            lambda made: made["clusters"][0]["cluster"].update(server="ftp://x"),
            "must be an http or https URL, got 'ftp://x'",
        ),
        (lambda made: made["users"][0].update(user={"as": "admin"}), r"impersonation \(as\) is not supported here"),
        (
            lambda made: made["users"][0].update(user={"auth-provider": {"name": "gcp"}}),
            "'gcp' is gone from kubectl, too",
        ),
        (lambda made: made["users"][0].update(user={"tokenFile": "/none"}), "/none can't be read: No such file"),
        (lambda made: made["users"][0].update(user={"token": "s3cret\nx"}), "what its user has for a token is none"),
        (lambda made: made["users"].insert(0, {"user": {"token": "s3cret"}}), "Expected key name"),
        (
            lambda made: made["users"][0].update(user={"token": "s3cret", "exec": 1, "auth-provider": []}),
            "auth-provider None",
        ),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(tmp_path: Path, change: Callable[[Json], object], message: str) -> None:
    """The message names the file and what to mend, and never shows a token."""
    made = config("http://127.0.0.1:9")
    change(made)
    path = written(tmp_path / "x", made)
    with pytest.raises(SettingsError, match=message) as caught:
        people_config.load(path, None)
    assert path in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "it is not YAML, see line 1"), ("", "is empty"), ("- a", "another form")]
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    """What is no kubeconfig at all is said to be none; so is a file that isn't there."""
    (tmp_path / "x").write_text(text)
    with pytest.raises(SettingsError, match=message):
        people_config.load(str(tmp_path / "x"), None)
    with pytest.raises(SettingsError, match="there is no such file; name one with --kubeconfig or KUBECONFIG"):
        people_config.load(str(tmp_path / "y"), None)


async def test_refusals_and_silence(tmp_path: Path) -> None:
    """A refusal names the right that is missing, and which context and server were asked; so does a server that is not there."""
    async with ApiServer() as api:
        path = written(tmp_path / "x", config(api.url))
        api.fail(403, resource="nodes", message='nodes is forbidden: User "me" cannot list')
        with pytest.raises(
            ApiForbidden, match=r"allow verb list on nodes in the ClusterRole \(context x, http://127"
        ) as caught:
            await names(path)
        assert "forbidden" in str(caught.value)
        api.mend()
        with pytest.raises(ApiNotFound), PeoplesClient.of(path) as client:
            await asyncio.to_thread(client.get, Call("get", "nodes", "/api/v1/nodes/n9", "n9"))
    with pytest.raises(ApiUnavailable, match=r"list nodes failed: .*refused.*\(context x, http://127"):
        await names(path)


async def test_certificates(tmp_path: Path) -> None:
    """A server's certificate is checked, and a client is turned away by one that it doesn't know."""
    pki = Path(__file__).parent / "pki"
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "server.crt", pki / "server.key")
    async with ApiServer(tls=tls) as api:
        api.put("nodes", {"metadata": {"name": "n1"}})
        authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
        known = {"certificate-authority-data": authority, "tls-server-name": "api.test"}
        assert await names(written(tmp_path / "x", config(api.url, None, known))) == ["n1"]
        assert await names(written(tmp_path / "x", config(api.url, None, {"insecure-skip-tls-verify": True}))) == ["n1"]
        with pytest.raises(ApiUnavailable, match=r"(?i)certificate verify failed"):
            await names(written(tmp_path / "x", config(api.url)))
        for none in ("", "bm9uZQ=="):
            with pytest.raises(HamiError):
                await names(written(tmp_path / "x", config(api.url, None, {"certificate-authority-data": none})))
        cut = {"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="}
        with pytest.raises(HamiError):
            await names(written(tmp_path / "x", config(api.url, cut, known)))


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    """A large list is asked for in pages."""
    async with ApiServer() as api:
        for number in range(3):
            api.put("nodes", {"metadata": {"name": f"n{number}"}})
        path = written(tmp_path / "x", config(api.url))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hami_kubeletplugin.kube.paged.PAGE", 2)
            assert await names(path) == ["n0", "n1", "n2"]
        assert api.requests["list", "nodes"] == 2
    assert PAGE == 500


def test_daemon_and_webhook_do_without(tmp_path: Path) -> None:
    """Neither the daemon nor the webhook imports the official package, which is not even in their image."""
    code = (
        "import sys; sys.modules['kubernetes'] = None; "
        "import hami_kubeletplugin.cli, hami_kubeletplugin.daemon.service, hami_kubeletplugin.webhook.service, "
        "hami_kubeletplugin.webhook.cli, hami_kubeletplugin.kubectl.cli; "
        "from hami_kubeletplugin.kube.people_config import load; load('x', None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=CHECKOUT, check=False
    )
    assert done.stderr.splitlines()[-1].endswith(
        "SettingsError: the Python package kubernetes is not installed, which reads kubeconfigs: "
        "pip install 'hami-kubeletplugin[kubectl]'"
    )
