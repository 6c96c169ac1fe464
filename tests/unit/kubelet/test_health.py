"""The health stream, gRPC's own health service and reflection."""

import asyncio
import time
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.kubelet import FakeKubelet, call, connect
from hami_kubeletplugin.gpu.conditions import Health
from hami_kubeletplugin.gpu.device_health import DeviceHealth, Reported
from hami_kubeletplugin.kubelet.health import (
    MAX_STREAMS,
    HealthService,
    report,
)
from hami_kubeletplugin.kubelet.wire import dra_health_v1_pb2
from hami_kubeletplugin.observe.observable import Observable
from tests.unit.kubelet.fakes import Serve, ref


def names(reported: dra_health_v1_pb2.NodeWatchResourcesResponse) -> list[str]:
    """`pool/device` of each device of a report."""
    return [f"{d.device.pool_name}/{d.device.device_name}" for d in reported.devices]


@pytest.mark.parametrize("service", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_reports_every_device_and_says_it_again(serve: Serve, settings: Settings, service: str) -> None:
    """On connect all published devices are reported healthy with time and time-out, and again each interval."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        begin = time.time()
        async with asyncio.timeout(5):
            stream = plugin.watch_health(service)
            reports = [await anext(stream) for _ in range(3)]
            await stream.aclose()
        assert 0.2 <= time.time() - begin < 2
        for reported in reports:
            assert names(reported) == ["node-1/hami-gpu-0", "node-1/hami-gpu-1"]
            for device in reported.devices:
                assert device.health == dra_health_v1_pb2.HEALTHY
                assert device.health_check_timeout_seconds == 30
                assert int(begin) <= device.last_updated_time <= time.time()


async def test_a_change_is_reported_at_once_on_all_streams(
    serve: Serve, settings: Settings, published: Reported
) -> None:
    """A new set of devices does not wait for the interval, whichever stream of many it is."""
    slow = settings.model_copy(update={"health_interval": 20.0})
    async with FakeKubelet(slow.registry_dir) as kubelet, serve(slow):
        plugin = await kubelet.plugin(DRIVER)
        streams = [plugin.watch_health() for _ in range(5)]
        async with asyncio.timeout(5):
            for stream in streams:
                await anext(stream)
            published.set((DeviceHealth("node-1", "hami-gpu-7"),))
            assert [names(await anext(stream)) for stream in streams] == [["node-1/hami-gpu-7"]] * 5
        for stream in streams:
            await stream.aclose()


async def test_an_unhealthy_device_is_told_at_once(serve: Serve, settings: Settings, published: Reported) -> None:
    """Its state and the reason do not wait for the interval."""
    slow = settings.model_copy(update={"health_interval": 20.0})
    async with FakeKubelet(slow.registry_dir) as kubelet, serve(slow):
        plugin = await kubelet.plugin(DRIVER)
        stream = plugin.watch_health()
        async with asyncio.timeout(5):
            await anext(stream)
            lost = DeviceHealth("node-1", "hami-gpu-0", Health.UNHEALTHY, "it is lost")
            published.set((lost, DeviceHealth("node-1", "hami-gpu-1", Health.UNKNOWN, "who knows")))
            told = (await anext(stream)).devices
        assert [(each.device.device_name, each.health, each.message) for each in told] == [
            ("hami-gpu-0", dra_health_v1_pb2.UNHEALTHY, "it is lost"),
            ("hami-gpu-1", dra_health_v1_pb2.UNKNOWN, "who knows"),
        ]
        await stream.aclose()


async def test_streams_end_cleanly_when_the_daemon_stops(serve: Serve, settings: Settings) -> None:
    """At a stop the kubelet sees the end of the stream, not an error, and the stop does not wait for the interval."""
    slow = settings.model_copy(update={"health_interval": 20.0})
    async with FakeKubelet(slow.registry_dir) as kubelet:
        async with serve(slow):
            plugin = await kubelet.plugin(DRIVER)
            streams = [plugin.watch_health() for _ in range(3)]
            for stream in streams:
                await anext(stream)
            begin = time.monotonic()
        assert time.monotonic() - begin < 2
        for stream in streams:
            assert [reported async for reported in stream] == []


async def test_streams_that_the_kubelet_left_make_room(serve: Serve, settings: Settings) -> None:
    """When the kubelet goes, the thread of its stream is free at once, not after the interval: many can follow each other."""
    slow = settings.model_copy(update={"health_interval": 20.0})
    async with FakeKubelet(slow.registry_dir) as kubelet, serve(slow):
        plugin = await kubelet.plugin(DRIVER)
        for _ in range(3 * MAX_STREAMS):
            stream = plugin.watch_health()
            assert names(await anext(stream))
            await stream.aclose()


async def test_streams_have_a_bound_of_their_own(serve: Serve, settings: Settings) -> None:
    """One stream too many is refused; those that are open go on, and claims are prepared beside them."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        streams = [plugin.watch_health() for _ in range(MAX_STREAMS)]
        for stream in streams:
            await anext(stream)
        extra = [plugin.watch_health() for _ in range(30)]
        for stream in extra:
            with pytest.raises(grpc.aio.AioRpcError, match="are watching already"):
                await anext(stream)
        assert list(await plugin.prepare([ref(1)])) == ["uid-1"]
        for stream in streams:
            await anext(stream)
            await stream.aclose()


def test_a_report_carries_status_and_a_message_that_the_kubelet_accepts() -> None:
    """An unhealthy device keeps its text, cut to the kubelet's 1024 characters."""
    (device,) = report([DeviceHealth("p", "d", Health.UNHEALTHY, "x" * 2000)], 1234.9).devices
    assert device.health == dra_health_v1_pb2.UNHEALTHY
    assert device.last_updated_time == 1234
    assert device.message == "x" * 1024


@pytest.mark.parametrize(
    ("socket", "expected"),
    [
        (
            "plugin/dra.sock",
            {
                "grpc.health.v1.Health",
                "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
                "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
                "v1.DRAResourceHealth",
                "v1alpha1.DRAResourceHealth",
            },
        ),
        ("registry/gpu.hami.io-reg.sock", {"pluginregistration.Registration"}),
    ],
)
async def test_reflection_describes_every_service(
    serve: Serve, settings: Settings, socket: str, expected: set[str]
) -> None:
    """Both sockets list their services and give the definition of each, as grpcurl needs it."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        await kubelet.plugin(DRIVER)

        def ask() -> set[str]:
            with grpc.insecure_channel(f"unix:{settings.plugin_dir.parent / socket}") as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                services = set(database.get_services()) - {"grpc.reflection.v1alpha.ServerReflection"}
                for service in services:
                    assert database.FindFileContainingSymbol(service).service
                return services

        assert await asyncio.to_thread(ask) == expected


@pytest.mark.parametrize("service", ["", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1.DRAResourceHealth"])
async def test_the_standard_health_service_says_serving(serve: Serve, settings: Settings, service: str) -> None:
    """grpc.health.v1 on the DRA socket answers for the whole and for each service."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        await kubelet.plugin(DRIVER)
        async with connect(settings.plugin_dir / "dra.sock") as channel:
            answer = await call(
                channel,
                "/grpc.health.v1.Health/Check",
                health_pb2.HealthCheckRequest(service=service),
                health_pb2.HealthCheckResponse.FromString,
                within=5,
            )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_stop_between_a_look_and_the_wait_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose thread is switched away at the wrong moment must not hold up the end of the daemon."""
    published: Reported = Observable(())
    service = HealthService(published, interval=20.0)
    wait = published.wait

    def late(*args: Any, **named: Any) -> None:
        service.close()
        wait(*args, **named)

    monkeypatch.setattr(published, "wait", late)
    context = Mock(is_active=lambda: True, add_callback=lambda _: True)
    begin = time.monotonic()
    assert len([*service._watch(dra_health_v1_pb2.NodeWatchResourcesRequest(), context)]) == 1
    assert time.monotonic() - begin < 5
