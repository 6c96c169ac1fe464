"""`hami-webhook doctor`: what the webhook's own rights let it see, and how it is reached."""

import base64
import copy
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from typer.testing import CliRunner

from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.fake.api_kinds import RESOURCES
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.webhook.certificate.api_objects import write_secret
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, make, server_context
from hami_kubeletplugin.webhook.certificate.rotation import hosts
from hami_kubeletplugin.webhook.certificate.rotation_step import Content
from hami_kubeletplugin.webhook.cli import app
from hami_kubeletplugin.webhook.doctor.reach import reach
from tests import REPOSITORY
from tests.unit.kube.test_people import config, written
from tests.unit.webhook.certificate.test_report import serving
from tests.unit.webhook.doctor.sound import Json, world


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """As the webhook does."""
        ready = getattr(self.server, "ready", True)
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"ok\n" if ready else b"starting\n")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def webhook(pair: KeyPair, *, ready: bool = True) -> Iterator[int]:
    """Serves a certificate on that port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.ready = ready  # type: ignore[attr-defined]
    server.socket = server_context(pair).wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def entry(port: int, pair: KeyPair) -> Json:
    """By which it is called and trusted."""
    bundle = base64.b64encode(pair.chain.encode()).decode()
    return {"name": "pods.hami.io", "clientConfig": {"url": f"https://127.0.0.1:{port}/mutate", "caBundle": bundle}}


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    """A certificate."""
    return make(hosts(Certificates(tls_hosts="127.0.0.1")), datetime.now(UTC))


def test_reached(pair: KeyPair) -> None:
    """Connection, certificate and readiness are looked at as the API server would."""
    with webhook(pair) as port:
        (good,) = reach(entry(port, pair))
        (strange,) = reach(entry(port, make(["127.0.0.1"], datetime.now(UTC))))
        (other,) = reach(
            entry(port, pair)
            | {"clientConfig": entry(port, pair)["clientConfig"] | {"url": f"https://localhost:{port}"}}
        )
    (gone,) = reach(entry(port, pair))
    (untrusted,) = reach({"clientConfig": {"url": f"https://127.0.0.1:{port}"}})
    with webhook(pair, ready=False) as port:
        (starting,) = reach(entry(port, pair))
    assert (good.level, good.what.endswith("answers, with a certificate that caBundle trusts")) == (Level.ok, True)
    assert {each.level for each in (strange, other, gone, untrusted, starting)} == {Level.error}
    assert "is not trusted by caBundle: self-signed certificate" in strange.what
    assert "Hostname mismatch" in other.what
    assert "can't be reached from here: [Errno 111] Connection refused" in gone.what
    assert "can't be reached" in untrusted.what
    assert starting.what.endswith("is not ready: starting")


def test_a_name_that_does_not_resolve(pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without DNS a Service's webhook is not called broken: the API server takes the Service's address. One by URL is."""

    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    trust = {"caBundle": base64.b64encode(pair.chain.encode()).decode()}
    named = {"namespace": "hami-system", "name": "hami-webhook", "port": 443}
    (service,) = reach({"clientConfig": {**trust, "service": named}})
    (url,) = reach({"clientConfig": {**trust, "url": "https://hooks.example.com/mutate"}})
    said = "can't be resolved here: Temporary failure in name resolution"
    assert (service.level, service.what) == (Level.unknown, f"hami-webhook.hami-system.svc {said}")
    assert (url.level, url.what) == (Level.error, f"hooks.example.com {said}")


def allowed() -> set[tuple[str, str]]:
    """(verb, resource) that webhook.yaml gives the webhook."""
    roles = [
        each for each in yaml.safe_load_all((REPOSITORY / "webhook.yaml").read_text()) if each["kind"].endswith("Role")
    ]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


@pytest.fixture
def server(pair: KeyPair) -> Iterator[tuple[ApiServer, int]]:
    """A sound installation, whose webhook is called by a URL."""
    with serving() as api, webhook(pair) as port:
        there = world()
        there.objects["secrets"] = [write_secret(None, Content(current=pair), "hami-system", "hami-webhook-tls")]
        for name in ("names.hami.io", "pods.hami.io", "claims.hami.io"):
            there.hook(name)["clientConfig"] = copy.deepcopy(entry(port, pair)["clientConfig"])
        for resource, objects in there.objects.items():
            for each in objects if resource in RESOURCES else ():
                api.put(resource, each)
        yield api, port


def doctor(server: ApiServer, tmp_path: Path, *words: str) -> tuple[int, list[Json]]:
    """Its exit code and what it found."""
    path = written(tmp_path / "kubeconfig", config(server.url))
    options = ["--kubeconfig", path, "--tls-hosts", "127.0.0.1", "-o", "json", *words]
    shown = CliRunner().invoke(app, ["doctor", *options])
    assert shown.stdout, shown
    return shown.exit_code, json.loads(shown.stdout)


def test_in_the_pod(server: tuple[ApiServer, int], tmp_path: Path) -> None:
    """It needs no right that the webhook hasn't; what it can't see it says, and who sees it. Exit 0 if all is well."""
    api, _ = server
    code, found = doctor(api, tmp_path)
    assert {each["check"]: each["level"] for each in found if each["level"] != "ok"} == {
        "webhook": "hint",
        "rest": "hint",
    }
    assert code == 0
    asked = {(verb, resource) for verb, resource in api.requests if resource not in ("version", "apis/resource.k8s.io")}
    assert asked - allowed() == set()
    assert {each["check"] for each in found} >= {
        "kubernetes",
        "daemon",
        "slices",
        "webhook",
        "certificate",
        "reachable",
    }
    api.remove("secrets", "hami-webhook-tls", "hami-system")
    code, found = doctor(api, tmp_path)
    (told,) = (each for each in found if each["level"] == "error")
    assert (code, told["check"]) == (1, "certificate")
    assert told["what"].startswith("Secret hami-system/hami-webhook-tls does not exist; apply webhook.yaml")
