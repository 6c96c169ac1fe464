"""The daemon as a process, against fakes of kubelet and API server."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ServingError
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.scheduler import FakeScheduler
from tests import CHECKOUT
from tests.unit.gpu.fake_node import FakeNode

NODE = "node-1"
T = TypeVar("T")
PROGRAM = Path(sys.executable).parent / "hami-kubeletplugin"


class Process:
    """`hami-kubeletplugin run` with everything below one folder."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.registry, self.plugin_dir, self.cdi = root, root / "registry", root / "plugin", root / "cdi"
        self.log = root / "log"
        self.kubeconfig = root / "kubeconfig"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(json.dumps(config))
        self.library = root / "libvgpu.so"
        modules = Path(os.__file__).parent / "lib-dynload"
        self.library.write_bytes(min(modules.glob("*.so"), key=lambda p: p.stat().st_size).read_bytes())
        self._process: asyncio.subprocess.Process | None = None

    async def start(
        self,
        *options: str,
        program: Sequence[Path | str] = (PROGRAM,),
        on: FakeNode | None = None,
        **environment: str,
    ) -> asyncio.subprocess.Process:
        """Start it, or another program with its command line; does not wait for anything.

        On a node with NVML, or else on simulated GPUs.
        """
        arguments = {
            "--registry-dir": self.registry,
            "--plugin-dir": self.plugin_dir,
            "--cdi-dir": self.cdi,
            "--hami-dir": self.root / "vgpu",
            "--hami-core": self.library,
            "--driver-edits": "none",
        }
        hardware = on.options if on else ("--simulate", "a100x8")
        env = {
            "PATH": os.environ["PATH"],
            "NODE_NAME": NODE,
            "KUBECONFIG": str(self.kubeconfig),
            **CHECKOUT,
            **(on.environment if on else {}),
            **environment,
        }
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *program,
                "run",
                *(str(a) for pair in arguments.items() for a in pair),
                *hardware,
                *options,
                env=env,
                stderr=log,
            )
        return self._process

    async def stop(self, number: int = signal.SIGTERM, within: float = 10.0) -> int:
        """Send a signal and return the exit code."""
        assert self._process
        self._process.send_signal(number)
        async with asyncio.timeout(within):
            return await self._process.wait()

    async def kill(self) -> None:
        """As the OOM killer would."""
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def events(self) -> list[dict[str, Any]]:
        """The log's lines."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]


async def asked_again(call: Callable[[], Awaitable[T]]) -> T:
    """What a call of the kubelet comes to: it asks again when one fails.

    One that reaches a gRPC server that has begun to stop, before the client hears of that, is cancelled by gRPC itself.
    """
    async with asyncio.timeout(20):
        while True:
            try:
                return await call()
            except ServingError:
                await asyncio.sleep(0.05)


def allocated(api: ApiServer, name: str, **capacity: str) -> ClaimRef:
    """A pod with one claim that the scheduler has allocated."""
    spec = {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
    }
    pod = api.put("pods", {"metadata": {"namespace": "default", "name": name}, "spec": spec})
    request = {"name": "gpu", "exactly": {"capacity": {"requests": capacity}}}
    claim = {"metadata": {"namespace": "default", "name": name}, "spec": {"devices": {"requests": [request]}}}
    stored = api.put("resourceclaims", dict(FakeScheduler(api.all("resourceslices")).allocate(claim, pod)))
    return ClaimRef("default", name, stored["metadata"]["uid"])
