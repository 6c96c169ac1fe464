"""A server on real sockets in a temporary directory."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.device_health import Reported
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import driver_lock
from hami_kubeletplugin.observe.observable import Observable
from tests.unit.kubelet.fakes import PUBLISHED, Claims, Serve


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a path short enough for sockets; pytest's tmp_path may not be."""
    with tempfile.TemporaryDirectory(prefix="hk") as directory:
        yield Path(directory)


@pytest.fixture
def settings(short: Path) -> Settings:
    """Directories that do not exist yet, and short intervals."""
    return Settings(
        node_name="node-1",
        registry_dir=short / "registry",
        plugin_dir=short / "plugin",
        lock_timeout=0,
        health_interval=0.1,
    )


@pytest.fixture
def claims() -> Claims:
    """What `serve` serves."""
    return Claims()


@pytest.fixture
def published() -> Reported:
    """Whose health `serve` reports."""
    return Observable(PUBLISHED)


@pytest.fixture
def serve(claims: Claims, published: Reported) -> Serve:
    """Runs a server for the time of an `async with` block, and stops it as SIGTERM would."""

    @contextlib.asynccontextmanager
    async def serving(settings: Settings, stop_grace: float = 5) -> AsyncIterator[KubeletServer]:
        async with driver_lock(settings.plugin_dir, settings.lock_timeout) as lock:
            server = KubeletServer(settings, claims, published, lock, watch_interval=0.05, stop_grace=stop_grace)
            running = asyncio.create_task(server.run())
            try:
                yield server
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    return serving
