"""A fake of the kubelet: the plugin watcher and the DRA calls, over real sockets, for the demo and the unit tests.

What it does as the real one does: it makes and watches the registry directory, asks each socket that appears GetInfo, takes the
first DRA version of the plugin's list that it knows, reports the outcome, and closes its connection as soon as the registration
socket goes. What it leaves out: claims and pods (a caller names the claims), and asking again at a socket that it refused.

Contract: k8s.io/kubernetes pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.errors import ServingError
from hami_kubeletplugin.kubelet import dra, health, registration
from hami_kubeletplugin.kubelet.wire import dra_health_v1_pb2, dra_v1_pb2
from hami_kubeletplugin.kubelet.wire import pluginregistration_v1_pb2 as registration_v1
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

DRA_SERVICES: Final = {dra.V1: dra.V1_SERVICE, dra.V1BETA1: dra.V1BETA1_SERVICE}
CALL_TIMEOUT: Final = 45.0
"""The kubelet's own, in seconds."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Socket = tuple[str, int, int]
"""Name, inode and time of creation: what tells a socket from its successor of the same name."""


def connect(path: Path | str) -> grpc.aio.Channel:
    """A channel to a UNIX socket."""
    return grpc.aio.insecure_channel(f"unix:{quote(os.fsencode(path))}", options=(("grpc.enable_http_proxy", 0),))


async def call(
    channel: grpc.aio.Channel,
    method: str,
    request: Request,
    parse: Callable[[bytes], Response],
    within: float = CALL_TIMEOUT,
) -> Response:
    """One unary call.

    Raises:
        grpc.aio.AioRpcError: The call failed.
    """
    stub = channel.unary_unary(method, type(request).SerializeToString, parse)
    return await stub(request, timeout=within)


class Plugin:
    """A registered driver, as the kubelet sees it.

    Attributes:
        driver: Its name.
        version: The DRA version that was picked, e.g. `v1.DRAPlugin`.
        supported_versions: What it offers.
    """

    def __init__(self, info: registration_v1.PluginInfo, version: str) -> None:
        self.driver = info.name
        self.version = version
        self.supported_versions = tuple(info.supported_versions)
        self._channel = connect(info.endpoint)

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """NodePrepareResources. By claim UID: its devices, or the driver's error.

        Raises:
            ServingError: The call failed, or did not answer for exactly the claims that were named.
        """
        response = await self._call(
            "NodePrepareResources",
            dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(refs)),
            dra_v1_pb2.NodePrepareResourcesResponse.FromString,
        )
        self._check(refs, response.claims)
        return {uid: answer.error or tuple(map(_device, answer.devices)) for uid, answer in response.claims.items()}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str | None]:
        """NodeUnprepareResources. By claim UID: None, or the driver's error.

        Raises:
            ServingError: As for `prepare`.
        """
        response = await self._call(
            "NodeUnprepareResources",
            dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(refs)),
            dra_v1_pb2.NodeUnprepareResourcesResponse.FromString,
        )
        self._check(refs, response.claims)
        return {uid: answer.error or None for uid, answer in response.claims.items()}

    async def watch_health(
        self, service: str = health.V1
    ) -> AsyncGenerator[dra_health_v1_pb2.NodeWatchResourcesResponse]:
        """Each report of the driver, until it ends the stream."""
        stream = self._channel.unary_stream(
            f"/{service}/NodeWatchResources",
            dra_health_v1_pb2.NodeWatchResourcesRequest.SerializeToString,
            dra_health_v1_pb2.NodeWatchResourcesResponse.FromString,
        )(dra_health_v1_pb2.NodeWatchResourcesRequest())
        try:
            async for report in stream:
                yield report
        finally:
            stream.cancel()

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        await self._channel.close()

    async def _call(self, method: str, request: Request, parse: Callable[[bytes], Response]) -> Response:
        try:
            return await call(self._channel, f"/{DRA_SERVICES[self.version]}/{method}", request, parse)
        except grpc.aio.AioRpcError as error:
            raise ServingError(f"{method} of {self.driver} failed: {error.code().name}: {error.details()}") from error

    def _check(self, refs: Sequence[ClaimRef], answers: Mapping[str, object]) -> None:
        if (asked := {ref.uid for ref in refs}) != set(answers):
            raise ServingError(f"{self.driver} was asked for claims {sorted(asked)} and answered for {sorted(answers)}")


class FakeKubelet:
    """`async with FakeKubelet(registry_dir) as kubelet: plugin = await kubelet.plugin("gpu.hami.io")`.

    Attributes:
        refusing: With what words it refuses whoever it asks meanwhile; empty: it doesn't.
        deaf: It never asks at sockets that appear meanwhile, as one whose inotify lost them.
    """

    def __init__(
        self, registry_dir: Path, *, versions: Sequence[str] = (dra.V1, dra.V1BETA1), poll: float = 0.02
    ) -> None:
        """`versions` are the DRA versions that it knows; `poll` the seconds between looks at the directory."""
        self._registry_dir = registry_dir
        self._versions = versions
        self._poll = poll
        self._plugins: dict[Socket, Plugin] = {}
        self._done_with: set[Socket] = set()
        self.refusing, self.deaf = "", False
        self._changed = asyncio.Condition()
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._registry_dir.mkdir(parents=True, exist_ok=True)
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        for plugin in self._plugins.values():
            await plugin.close()

    async def plugin(self, driver: str, within: float = 30.0) -> Plugin:
        """The driver, once it is registered.

        Raises:
            TimeoutError: It did not register within that many seconds; a daemon takes two to start, and a busy machine long.
        """
        async with asyncio.timeout(within), self._changed:
            while (found := self._find(driver)) is None:
                await self._changed.wait()
            return found

    async def gone(self, driver: str, within: float = 30.0) -> None:
        """Return once the driver is no longer registered.

        Raises:
            TimeoutError: It still is.
        """
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: self._find(driver) is None)

    def _find(self, driver: str) -> Plugin | None:
        # Of several the newest, as the kubelet does.
        return next((plugin for plugin in reversed(self._plugins.values()) if plugin.driver == driver), None)

    async def _watch(self) -> None:
        while True:
            sockets = _sockets(self._registry_dir)
            for gone in self._plugins.keys() - sockets:
                plugin = self._plugins.pop(gone)
                async with self._changed:
                    self._changed.notify_all()
                await plugin.close()
            self._done_with &= sockets
            if self.deaf:
                self._done_with |= sockets - self._plugins.keys()
            for new in sorted(sockets - self._plugins.keys() - self._done_with):
                try:
                    await self._register(new)
                except grpc.aio.AioRpcError as error:  # tried again at the next look
                    log.debug("a plugin could not be asked", socket=new[0], error=error.details())
            await asyncio.sleep(self._poll)

    async def _register(self, found: Socket) -> None:
        async with connect(self._registry_dir / found[0]) as channel:
            info = await call(
                channel,
                f"/{registration.SERVICE}/GetInfo",
                registration_v1.InfoRequest(),
                registration_v1.PluginInfo.FromString,
                within=1,
            )
            version = next((v for v in info.supported_versions if v in self._versions), None)
            if info.type != registration.PLUGIN_TYPE:
                refusal = f"no handler registered for plugin type: {info.type} at socket {found[0]}"
            elif version is None:
                refusal = f"none of {[*info.supported_versions]} is supported by the kubelet ({[*self._versions]})"
            else:
                refusal = self.refusing
            if refusal:
                self._done_with.add(found)
            elif version:
                self._plugins[found] = Plugin(info, version)
            await call(
                channel,
                f"/{registration.SERVICE}/NotifyRegistrationStatus",
                registration_v1.RegistrationStatus(plugin_registered=not refusal, error=refusal),
                registration_v1.RegistrationStatusResponse.FromString,
                within=5,
            )
        async with self._changed:
            self._changed.notify_all()


def _sockets(directory: Path) -> set[Socket]:
    """Sockets that the plugin watcher would see."""
    found: set[Socket] = set()
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
                    found.add((path.name, status.st_ino, status.st_mtime_ns))
    return found


def _claims(refs: Sequence[ClaimRef]) -> list[dra_v1_pb2.Claim]:
    return [dra_v1_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]


def _device(device: dra_v1_pb2.Device) -> PreparedDevice:
    return PreparedDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if device.HasField("share_id") else None,
    )
