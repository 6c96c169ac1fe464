"""`hami-webhook run` as a process, with the rights of webhook.yaml, called by the API server."""

import asyncio
import base64
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.manifests import installed, kubeconfig_of
from bench.process import PATIENCE, Places, Process, program, until
from bench.reviews import HOST, connected
from hami_kubeletplugin.api import names
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client

Json = dict[str, Any]

_CONFIGURATION: Final = Call(
    "get",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}",
)


@dataclass(frozen=True, slots=True)
class Webhook:
    """One that is ready.

    Attributes:
        process: Itself.
        port: Where it listens.
        tls: Trusts what the API server trusts.
        ready: Milliseconds from its start until then.
    """

    process: Process
    port: int
    tls: ssl.SSLContext
    ready: float


@dataclass(frozen=True, slots=True)
class Installation:
    """What a webhook needs, in the cluster. It has the certificate that the first one makes."""

    api: Client
    port: int
    kubeconfig: Path
    folder: Path
    mark: str

    @contextlib.asynccontextmanager
    async def running(self, *more: str) -> AsyncIterator[Webhook]:
        """Start the webhook, wait until it is ready, stop it at the end.

        Args:
            more: Options.

        Raises:
            RuntimeError: It did not come that far; the end of its log is in the message.
        """
        options: tuple[str | Path, ...] = (
            *("run", "--listen", HOST, "--port", str(self.port), "--tls-hosts", HOST, "--drain-delay", "0"),
            *("--kubeconfig", self.kubeconfig),
            *more,
        )
        # As it is set up in a cluster: each pod is a line of the log, and somebody takes that.
        file = self.folder / "webhook.log"
        with file.open("wb") as log:
            started = time.perf_counter()
            async with program("hami-webhook", *options, log=log, mark=self.mark) as process:
                try:
                    async with asyncio.timeout(PATIENCE):
                        await _until_ready(self.port)
                except TimeoutError:
                    raise RuntimeError(f"the webhook did not start: {file.read_text()[-2000:]}") from None
                ready = (time.perf_counter() - started) * 1000
                yield Webhook(process, self.port, await self._trusting(), ready)

    async def _trusting(self) -> ssl.SSLContext:
        bundle = (await self.api.ask(_CONFIGURATION))["webhooks"][0]["clientConfig"]["caBundle"]
        return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())


@contextlib.asynccontextmanager
async def installation(api: Client, admin: Path, places: Places) -> AsyncIterator[Installation]:
    """The manifests, and a free port that the API server is told, for as long as the block lasts."""
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        port: int = unused.getsockname()[1]
    async with installed(api, f"https://{HOST}:{port}"):
        kubeconfig = await kubeconfig_of(api, "hami-webhook", admin, places.memory / "webhook.kubeconfig")
        yield Installation(api, port, kubeconfig, places.disk, str(admin.parent.absolute()))


async def _until_ready(port: int) -> None:
    unknown = ssl.create_default_context()
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with connected(port, unknown) as connection:
                status, _ = await connection.get("/readyz")
                if status == 200:
                    return
        await asyncio.sleep(0.005)


async def until_called(api: Client, pods: str, pod: Json) -> None:
    """Wait until the API server calls the webhook for such a pod: it hears of configurations when its watch tells it.

    Raises:
        TimeoutError: It does not.
    """

    async def converted() -> bool:
        return "resourceClaims" in (await dry_run(api, pods, pod))["spec"]

    await until(converted, "the API server to call the webhook")


async def dry_run(api: Client, pods: str, pod: Json) -> Json:
    """What would be kept of a pod."""
    return await api.ask(Call("create", "pods", pods, query={"dryRun": "All"}), pod)
