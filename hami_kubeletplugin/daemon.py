"""The node daemon: its parts, wired, in one task group.

hardware ──inventory──> publisher ──slices──> API server
    └──────────────────> claims <──prepare── kubelet server <── kubelet
                           └──> records, caches, CDI specs <── recovery
records ──what is in use──> publisher, with --gpu-order=spread
processes of containers ──> in force ──events──> API server
"""

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import SettingsError, StorageError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.enforcement import NoEnforcement
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.recovery import Recovery
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.claims.usage import usage
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.gpu.source import driver_edits_for, source_for
from hami_kubeletplugin.gpu.watch import HardwareWatch
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.hanging import OwnThreads
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.inforce.monitor import InForce
from hami_kubeletplugin.inforce.runtime import host_root
from hami_kubeletplugin.kube.claim_api import ClaimClient
from hami_kubeletplugin.kube.config import load as load_kube_config
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import DriverLock, driver_lock
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.publish.order import UsageWatch
from hami_kubeletplugin.publish.publisher import Publisher

log = get_logger()

FILES_WATCH = 5.0
"""Seconds between looks whether CDI specs and HAMi-core's files are as they were made: a listing, and a `stat` for each."""
API_GRACE = 4.0
"""Seconds from SIGTERM until prepares wait for the API server no longer: those that are answered in time come to their end."""


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
    serving = asyncio.create_task(_locked(settings))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            log.info("stopping: finishing what is being prepared")
    finally:
        for task in (stopping, serving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    log.info("stopped")


async def _locked(settings: Settings) -> None:
    """Everything that a signal ends, the wait for a predecessor included."""
    async with driver_lock(settings.plugin_dir, settings.lock_timeout) as lock:
        await _serve(settings, lock)


async def _serve(settings: Settings, lock: DriverLock) -> None:
    """Everything below the lock, until cancelled."""
    boot_id = _boot_id(settings)
    records = Records(settings.plugin_dir / "claims")
    specs = SpecFiles(settings.cdi_dir, settings.driver_name)
    shipped = Shipped(
        settings.hami_core, settings.hami_core_version, settings.glibc_floor, region_hook=settings.region_hook
    )
    host = HostFiles(shipped, settings.hami_dir, settings.claim_files)
    access = load_kube_config(settings.kubeconfig)
    async with KubeClient(access) as api:
        publisher = Publisher(api, driver=settings.driver_name, node=settings.node_name, sharing=settings)

        def hardware_changed(inventory: Inventory | None) -> None:
            publisher.offer(inventory)
            recovery.wake()

        hardware = HardwareWatch(
            source_for(settings, lambda: _devices(records)),
            interval=settings.rescan_interval,
            on_change=hardware_changed,
        )
        spread = settings.gpu_order == "spread"
        in_use = UsageWatch(lambda: usage(records.usable()), publisher.order_by) if spread else None
        claim_api = ClaimClient(access)
        edits = driver_edits_for(settings)
        claims = Claims(
            api=claim_api,
            inventory=hardware.inventory,
            edits=edits,
            files=NodeFiles(
                records=records,
                specs=specs,
                enforcements={"hami-core": HamiCore(host, settings.hami_dir), "none": NoEnforcement()},
            ),
            driver=settings.driver_name,
            node=settings.node_name,
            boot_id=boot_id,
            timeout=settings.prepare_timeout,
            rights=settings.claim_rights,
            changed=in_use.changed if in_use else None,
        )

        def give_up() -> None:
            claims.hurry()
            claim_api.close()

        recovery = Recovery(
            claims=claims,
            api=api,
            records=records,
            specs=specs,
            driver=settings.driver_name,
            node=settings.node_name,
            grace=settings.stale_grace,
            clock=time.monotonic,
            stamp=edits.stamp,
        )
        in_force = InForce(
            records=records,
            events=PodEvents(api, driver=settings.driver_name, node=settings.node_name),
            hami_dir=settings.hami_dir,
            host_root=host_root(settings.driver_root, settings.host_driver_root),
        )
        server = KubeletServer(settings, claims, publisher.published, lock)
        await asyncio.to_thread(_open, records, specs, host)
        if in_use:
            await in_use.look()  # before anything is published: claims of an earlier run are there
        log.info("starting", version=__version__, node=settings.node_name, driver=settings.driver_name)
        # What start-up made lives as long as the process: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        try:
            metrics = _metrics(settings.metrics_address, host, publisher, in_force)
            async with metrics, asyncio.TaskGroup() as tasks:
                tasks.create_task(_until_stop(edits.close), name="edits")
                tasks.create_task(_until_stop(give_up, after=API_GRACE), name="API server")
                tasks.create_task(hardware.run(), name="hardware")
                tasks.create_task(publisher.run(), name="publisher")
                if in_use:
                    tasks.create_task(in_use.run(), name="order")
                tasks.create_task(server.run(), name="kubelet")
                tasks.create_task(recovery.run(settings.stale_interval), name="recovery")
                tasks.create_task(recovery.watch(FILES_WATCH), name="specs")
                tasks.create_task(_keep(host), name="HAMi-core")
                tasks.create_task(in_force.run(settings.container_interval), name="in force")
        except ExceptionGroup as group:
            # The first failure ended all: its own words, or traceback, are what people need.
            raise group.exceptions[0] from None
        finally:
            # Nobody waits for answers any more: what prepares still wait for ends now, and what they write is finished.
            give_up()
            await asyncio.to_thread(claims.close)


async def _keep(host: HostFiles) -> None:
    """Have HAMi-core's files on the host as they were installed: a container that is started again would run without limits."""
    said = Once[str]()
    while True:
        await asyncio.sleep(FILES_WATCH)
        try:
            await asyncio.to_thread(host.check)
            said.ended("host")
        except StorageError as error:
            if said.is_new("host", str(error)):
                log.error("HAMi-core's files on this node are not right; trying again", error=str(error))


async def _until_stop(close: Callable[[], None], *, after: float = 0.0) -> None:
    """Call `close` some seconds after the daemon began to stop, before calls in flight have ended: they may wait for it."""
    try:
        await asyncio.Event().wait()
    finally:
        asyncio.get_running_loop().call_later(after, close)


@contextlib.asynccontextmanager
async def _metrics(address: str, host: HostFiles, publisher: Publisher, in_force: InForce) -> AsyncIterator[None]:
    """Serve metrics while the context is open, if they are wanted."""
    if not address:
        yield
        return
    from hami_kubeletplugin.observe import metrics  # noqa: PLC0415 - 2.5 MB that not everybody needs

    def facts() -> metrics.Facts:
        installed = host.installed
        renewal = installed.renewal if installed else None
        core = (
            (installed.version or "", renewal.layout.name if renewal else "", installed.digest) if installed else None
        )
        return metrics.Facts(
            core,
            renewal is not None,
            in_force.not_limited,
            in_force.not_known,
            in_force.open_to_all,
            publisher.published_at,
        )

    async with metrics.served(address, facts) as port:
        log.info("serving metrics", port=port)
        yield


def _devices(records: Records) -> Mapping[str, str]:
    """Which GPU (UUID) each device was when a claim was prepared for it."""
    return {share.device: share.uuid for claim in records.usable() for share in claim.shares}


def _open(records: Records, specs: SpecFiles, host: HostFiles) -> None:
    for prepare in (records.open, specs.open, host.install):
        try:
            prepare()
        except StorageError as error:
            # Not fatal: claims that are prepared can still be unprepared. Each prepare tries again and says the same.
            log.error("this node is not ready; claims may be refused", error=str(error))


def _boot_id(settings: Settings) -> str:
    try:
        return settings.boot_id_file.read_text().strip()
    except OSError as error:
        raise SettingsError(f"--boot-id-file {settings.boot_id_file}: {error.strerror}") from error
