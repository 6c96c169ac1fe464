"""`hami-webhook run` as a process, against a fake API server."""

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from tests import CHECKOUT
from tests.unit.webhook.admission.https import ApiServerSide, CertificateFiles, gpu_pod, pod, review
from tests.waiting import until

PROGRAM = Path(sys.executable).parent / "hami-webhook"
TOKEN = "a-token-that-nobody-may-see"
MOST_MEMORY = 80_000
"""kB of a process that serves with a certificate from files."""


class Process:
    """`hami-webhook run` with its files below one folder."""

    def __init__(self, root: Path, url: str, files: CertificateFiles) -> None:
        self.files, self.log, self.kubeconfig = files, root / "log", root / "kubeconfig"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(json.dumps(config))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *options: str, port: int = 0, own_certificate: bool = False) -> None:
        """Start it; does not wait for anything."""
        tls = () if own_certificate else ("--tls-cert-file", self.files.cert, "--tls-key-file", self.files.key)
        fixed = ("--listen", "127.0.0.1", "--port", str(port), "--drain-delay", "0.3", *tls, *options)
        env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(self.kubeconfig), **CHECKOUT}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(PROGRAM, "run", *fixed, env=env, stderr=log)

    def events(self) -> list[dict[str, Any]]:
        """The log's lines."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def port(self) -> int:
        """Where it listens; waits for it."""
        listening = await until(lambda: [event for event in self.events() if event["event"] == "listening"])
        port: int = listening[-1]["port"]
        return port

    def memory(self) -> int:
        """Proportional set size, kB."""
        assert self._process
        text = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        assert found
        return int(found[1])

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        assert self._process
        self._process.send_signal(number)

    async def ended(self, within: float = 15.0) -> int:
        """Wait for its end; the exit code."""
        assert self._process
        async with asyncio.timeout(within):
            return await self._process.wait()

    async def kill(self) -> None:
        """As the OOM killer would."""
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A cluster with a namespace."""
    async with ApiServer(token=TOKEN) as server:
        server.put("namespaces", {"metadata": {"name": "team"}})
        yield server


@pytest.fixture
async def process(api: ApiServer, files: CertificateFiles, tmp_path: Path) -> AsyncIterator[Process]:
    """A webhook that is killed at the end, if it still runs."""
    process = Process(tmp_path, api.url, files)
    yield process
    await process.kill()


@contextlib.asynccontextmanager
async def client_of(process: Process) -> AsyncIterator[ApiServerSide]:
    """A client of a process that is ready."""
    async with ApiServerSide(await process.port(), process.files) as api_server:
        await ready(api_server)
        yield api_server


async def ready(api_server: ApiServerSide, status: int = 200) -> None:
    """Wait until readiness is so."""
    async with asyncio.timeout(15):
        while (await api_server.ask("/readyz", method="GET")).status != status:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


async def test_from_start_to_sigterm(process: Process, api: ApiServer) -> None:
    """It starts, gets ready, makes one template for equal pods, none on a dry run, and ends with 0.

    It stays small all the while, and its log has neither our token nor what is in a pod's environment.
    """
    await process.start()
    async with client_of(process) as api_server:
        secret = gpu_pod(gpumem="4000")
        secret["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
        assert (await api_server.ask("/mutate", review(secret, dryRun=True))).response["allowed"]
        assert api.all("resourceclaimtemplates") == []
        response = (await api_server.ask("/mutate", review(secret))).response
        (made,) = api.all("resourceclaimtemplates")
        assert made["metadata"]["name"] in base64.b64decode(response["patch"]).decode()
        asked = api.writes
        for _ in range(200):
            assert (await api_server.ask("/mutate", review(secret))).response == response
        assert api.writes == asked
        assert not (await api_server.ask("/mutate", review(gpu_pod(gpucores="x")))).response["allowed"]
        metrics = (await api_server.ask("/metrics", method="GET")).text.splitlines()
        assert 'hami_webhook_templates_total{action="created"} 1.0' in metrics
        assert "hami_webhook_gpu_sizes 0.0" in metrics
        assert "hami_webhook_templates_kept 1.0" in metrics
        assert "hami_webhook_ready 1.0" in metrics
        assert 'hami_webhook_refusals_total{endpoint="/mutate",reason="invalid"} 1.0' in metrics
        assert 'hami_webhook_api_requests_total{result="ok",verb="create"} 1.0' in metrics
        assert 'hami_webhook_api_requests_total{result="unavailable",verb="watch"} 0.0' in metrics
        assert 'hami_webhook_collections_total{outcome="failed"} 0.0' in metrics
        (left,) = [line.split()[1] for line in metrics if line.startswith("hami_webhook_certificate_expiry_seconds ")]
        assert 80_000 < float(left) <= 86_400
        assert process.memory() < MOST_MEMORY
    process.signal()
    assert await process.ended() == 0
    assert process.events()[-1]["event"] == "stopped"
    given = next(each["options"] for each in process.events() if each["event"] == "options that are not the default")
    assert given["--port"] == {"value": 0, "from": "command line"}
    said = {each["event"]: each.get("review") for each in process.events() if each["event"] in {"converted", "denied"}}
    assert said == dict.fromkeys(("converted", "denied"), review(pod())["request"]["uid"])
    log = process.log.read_text()
    assert "Traceback" not in log
    for word in (TOKEN, "hunter2", "PRIVATE KEY"):
        assert word not in log


async def test_the_signal_comes_while_a_pod_waits(process: Process, api: ApiServer) -> None:
    """What is in flight when SIGTERM comes is answered, late connections are still taken in, and only then it ends."""
    await process.start("--drain-delay", "1")
    async with client_of(process) as api_server:
        api.latency = 2.0
        waiting = asyncio.create_task(api_server.ask("/mutate?timeout=10s", review(gpu_pod())))
        await until(lambda: api.requests["create", "resourceclaimtemplates"])
        process.signal()
        await ready(api_server, 503)
        late = await api_server.ask("/mutate", review(pod()))
        assert (late.response["allowed"], late.headers["Connection"]) == (True, "close")
        assert (await waiting).response["allowed"]
    assert await process.ended() == 0


async def test_the_api_server_is_away(process: Process, api: ApiServer) -> None:
    """Alive but not ready until the cluster is known, and ready from then on.

    While the API server is away a pod like others is converted, and a new kind of pod is told to try again.
    """
    await api.down()
    await process.start()
    async with ApiServerSide(await process.port(), process.files) as api_server:
        assert (await api_server.ask("/healthz", method="GET")).status == 200
        reply = await api_server.ask("/readyz", method="GET")
        assert (reply.status, "ResourceSlices" in reply.text, "ResourceClaimTemplates" in reply.text) == (
            503,
            True,
            True,
        )
        await api.up()
        await ready(api_server)
        assert (await api_server.ask("/mutate", review(gpu_pod()))).response["allowed"]
        await api.down()
        assert (await api_server.ask("/mutate", review(gpu_pod()))).response["allowed"]
        status = (await api_server.ask("/mutate?timeout=2s", review(gpu_pod(gpumem="1")))).response["status"]
        assert status["code"] == 503
        assert "try again" in status["message"]
        assert (await api_server.ask("/readyz", method="GET")).status == 200
        await api.up()
        assert (await api_server.ask("/mutate", review(gpu_pod(gpumem="1")))).response["allowed"]


async def test_a_replacement_on_the_same_port(process: Process, api: ApiServer, tmp_path: Path) -> None:
    """While one process replaces another on one port, each review is answered, on a connection that is kept or a new one."""
    await process.start()
    port = await process.port()
    (tmp_path / "second").mkdir()
    second = Process(tmp_path / "second", api.url, process.files)
    going, answered = True, 0

    async def ask_on(*, times: int) -> None:
        nonlocal answered
        while going:
            async with ApiServerSide(port, process.files) as api_server:
                for _ in range(times):
                    assert (await api_server.ask("/mutate", review(gpu_pod()))).response["allowed"]
                    answered += 1

    try:
        async with client_of(process):
            pass
        async with asyncio.TaskGroup() as tasks:
            for times in (1, 1, 1, 100, 100):
                tasks.create_task(ask_on(times=times))
            await second.start(port=port)
            await second.port()
            process.signal()
            assert await process.ended() == 0
            before = answered
            await until(lambda: answered > before + 20)
            going = False
    finally:
        await second.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_signal_comes_before_there_is_a_certificate(process: Process, api: ApiServer, number: int) -> None:
    """While it waits for an API server that is away, for its own certificate, a signal ends it with 0."""
    await api.down()
    await process.start(own_certificate=True)
    await until(lambda: [event for event in process.events() if event["event"] == "starting"])
    process.signal(number)
    assert await process.ended() == 0


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--tls-cert-file", "/nowhere/tls.crt"), "/nowhere/tls.crt"),
        (
            ("--client-ca", "/nowhere/ca.crt"),
            "--client-ca /nowhere/ca.crt: can't be read: No such file or directory; name a PEM file",
        ),
        (("--client-name", "kube-apiserver"), "--client-name needs --client-ca"),
        (("--resource-count-name", "nvidia.com/gpumem"), "two resources have the same name"),
        (("--listen", "192.0.2.1"), "--listen 192.0.2.1"),
        (("--kubeconfig", "/nowhere/config"), "/nowhere/config"),
        (("--default-cores", "101"), "--default-cores"),
    ],
)
async def test_what_can_not_be_used(process: Process, options: tuple[str, ...], names: str) -> None:
    """A wrong option or file ends it with exit code 1 and one line that names it, without a traceback."""
    await process.start(*options)
    assert await process.ended() == 1
    log = process.log.read_text()
    assert "Traceback" not in log
    assert log.splitlines()[-1].startswith("hami-webhook: ")
    assert names in log.splitlines()[-1]
