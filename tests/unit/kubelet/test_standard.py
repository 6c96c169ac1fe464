"""gRPC's own health service on the DRA socket, and what streams of others cost."""

import asyncio
import contextlib
import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.kubelet import FakeKubelet, connect
from hami_kubeletplugin.kubelet import server as kubelet_server
from hami_kubeletplugin.kubelet import standard
from hami_kubeletplugin.kubelet.standard import LIVENESS, READINESS, serving
from tests.unit.kubelet.fakes import Serve, ref
from tests.waiting import until


async def test_alive_but_not_ready(serve: Serve, settings: Settings) -> None:
    """Whoever asks for liveness, or nothing by name, hears SERVING all the while; readiness is what was told last."""
    async with serve(settings) as server:
        dra = settings.plugin_dir / "dra.sock"
        await until(dra.exists)
        assert not await serving(dra, READINESS)
        for ready in (True, False):
            server.standard.tell(ready)
            assert await serving(dra, READINESS) is ready
            assert await serving(dra, LIVENESS)
            assert await serving(dra, "")


async def test_readiness_is_kept_when_the_socket_is_made_anew(serve: Serve, settings: Settings) -> None:
    """A socket that somebody deleted comes back with what was told before."""
    async with serve(settings) as server:
        dra = settings.plugin_dir / "dra.sock"
        await until(dra.exists)
        server.standard.tell(True)
        dra.unlink()
        await until(dra.exists)
        assert await serving(dra, READINESS)


async def test_nobody_there(settings: Settings) -> None:
    """A socket at which nobody answers, or that isn't there, is not serving, and not an error."""
    settings.plugin_dir.mkdir()
    dra = settings.plugin_dir / "dra.sock"
    assert not await serving(dra, LIVENESS)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(dra))
    assert not await serving(dra, LIVENESS)


async def test_many_who_ask_cost_one_connection(
    serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks within a second gets the same answer, and one who goes away while he waits takes it from nobody."""
    asked: list[str] = []

    async def counted(path: Path, service: str) -> bool:
        asked.append(service)
        return await serving(path, service)

    monkeypatch.setattr(standard, "serving", counted)
    async with serve(settings) as server:
        await until((settings.plugin_dir / "dra.sock").exists)
        first = asyncio.create_task(server.serving(LIVENESS))
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*(server.serving(LIVENESS) for _ in range(100))) == [True] * 100
        assert asked == [LIVENESS]
        monkeypatch.setattr(kubelet_server, "_ASKED_FOR", 0.0)
        for ready in (False, True):
            server.standard.tell(ready)
            assert await server.serving(READINESS) is ready


async def test_a_watch_hears_of_it(serve: Serve, settings: Settings) -> None:
    """Who watches readiness is told at once when it changes, and only then."""
    async with serve(settings) as server:
        await until((settings.plugin_dir / "dra.sock").exists)
        async with connect(settings.plugin_dir / "dra.sock") as channel:
            stream = channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )(health_pb2.HealthCheckRequest(service=READINESS))
            assert await stream.read() == health_pb2.HealthCheckResponse(status="NOT_SERVING")
            for _ in range(3):
                server.standard.tell(True)
            assert await stream.read() == health_pb2.HealthCheckResponse(status="SERVING")
            server.standard.tell(False)
            assert await stream.read() == health_pb2.HealthCheckResponse(status="NOT_SERVING")


@pytest.mark.parametrize("kind", ["health", "reflection"])
async def test_streams_that_stay_open_keep_nobody_from_preparing(serve: Serve, settings: Settings, kind: str) -> None:
    """1,000 streams of gRPC's health service, or as many tries for reflection, leave prepares their threads and their number."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        async with connect(settings.plugin_dir / "dra.sock") as channel:
            watch = channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )
            reflect = channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )

            async def opened() -> grpc.aio.Call:
                if kind == "health":
                    watching = watch(health_pb2.HealthCheckRequest())
                    await watching.read()
                    return watching
                reflecting = reflect()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await reflecting.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                    await reflecting.read()
                return reflecting

            streams = await asyncio.gather(*(opened() for _ in range(1000)))
            assert list(await plugin.prepare([ref(1)])) == ["uid-1"]
            assert not all(stream.done() for stream in streams)
            for stream in streams:
                stream.cancel()
