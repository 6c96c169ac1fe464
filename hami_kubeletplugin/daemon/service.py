"""Runs the node daemon: signals, the lock of its driver, one task group."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.daemon.endpoint import counts_for, endpoint
from hami_kubeletplugin.daemon.parts import Parts
from hami_kubeletplugin.hanging import OwnThreads
from hami_kubeletplugin.kube.claim_api import ClaimClient
from hami_kubeletplugin.kube.config import load as load_kube_config
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kubelet.handover import in_turn
from hami_kubeletplugin.kubelet.sockets import DriverLock
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        SettingsError: Something that was given can't be used.
        AlreadyServing, SocketPathTooLong, StorageError: This node can't be served; the message says why.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(OwnThreads())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Sent when a terminal goes, or by people who expect a reload. Its default would end us without clean-up.
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP ignored: all options are read at the start")
    served: asyncio.Future[Parts] = loop.create_future()
    serving = asyncio.create_task(_serve(settings, served))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            log.info("stopping: finishing what is being prepared")
            if served.done() and not serving.done():
                await served.result().hand_over()
    finally:
        for task in (stopping, serving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    log.info("stopped")


async def _serve(settings: Settings, served: "asyncio.Future[Parts]") -> None:
    """Everything that a signal ends, the wait for a predecessor included.

    Args:
        settings: The settings.
        served: Gets what serves when it does.
    """
    boot_id = _boot_id(settings)
    access = load_kube_config(settings.kubeconfig)
    lock = DriverLock(settings.plugin_dir)
    async with KubeClient(access) as api:
        parts = Parts(settings, api, ClaimClient(access), lock, boot_id, counts=counts_for(settings.metrics_address))
        async with endpoint(settings, parts), _locked(settings, parts, lock):
            try:
                await _work(settings, parts, served)
            finally:
                # Nobody waits for answers any more: what prepares still wait for ends now, and what they write is finished.
                parts.give_up()
                await asyncio.to_thread(parts.claims.close)


@contextlib.asynccontextmanager
async def _locked(settings: Settings, parts: Parts, lock: DriverLock) -> AsyncIterator[None]:
    """The driver's lock; while another daemon holds it, we stand by."""
    standby: list[asyncio.Task[None]] = []

    def stand_by() -> None:
        standby.append(asyncio.create_task(parts.standby.run(), name="standby"))

    async def end() -> None:
        for task in standby:
            task.cancel()
        await asyncio.gather(*standby, return_exceptions=True)
        standby.clear()

    try:
        async with in_turn(settings.plugin_dir, settings.lock_timeout, lock=lock, waits=stand_by):
            await end()
            yield
    finally:
        await end()
        await parts.leave()


async def _work(settings: Settings, parts: Parts, served: "asyncio.Future[Parts]") -> None:
    """Everything below the lock, until cancelled."""
    await parts.open()
    log.info("starting", version=__version__, node=settings.node_name, driver=settings.driver_name)
    served.set_result(parts)
    # What start-up made lives as long as the process: keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    try:
        async with asyncio.TaskGroup() as tasks:
            for name, work in parts.work().items():
                tasks.create_task(work, name=name)
    except ExceptionGroup as group:
        # The first failure ended all: its own words, or traceback, are what people need.
        raise group.exceptions[0] from None


def _boot_id(settings: Settings) -> str:
    try:
        return settings.boot_id_file.read_text().strip()
    except OSError as error:
        raise SettingsError(f"--boot-id-file {settings.boot_id_file}: {error.strerror}") from error
