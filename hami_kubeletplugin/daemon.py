"""The node daemon: its parts, wired, in one task group.

hardware ──inventory──> beside ──what nobody else gives out──> publisher ──slices──> API server
    └──────────────────> claims <──prepare── kubelet server <── kubelet
                           └──> records, caches, CDI specs <── recovery
driver ──events, polls──> health ──conditions──> board
records ──what is in use──> publisher, with --gpu-order=spread
what prepares need ──> readiness ──> conditions of GPUs, probes
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
from hami_kubeletplugin.claims.enforcement import Enforcements, NoEnforcement
from hami_kubeletplugin.claims.ledger import Ledger
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.other_names import check_names
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.claims.recovery import Recovery
from hami_kubeletplugin.claims.service import Claims
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.claims.suspects import Suspects
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.gpu.source import driver_edits_for, sessions_for, source_for
from hami_kubeletplugin.gpu.watch import HardwareWatch
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.health.heard import heard_by_all
from hami_kubeletplugin.health.needs import node_readiness
from hami_kubeletplugin.health.readiness import Readiness
from hami_kubeletplugin.health.service import GpuHealth
from hami_kubeletplugin.inforce.events import PodEvents
from hami_kubeletplugin.inforce.monitor import InForce
from hami_kubeletplugin.inforce.runtime import host_root
from hami_kubeletplugin.kube.claim_api import ClaimClient
from hami_kubeletplugin.kube.config import load as load_kube_config
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kubelet.other_names import OtherNames, Parts
from hami_kubeletplugin.kubelet.server import KubeletServer
from hami_kubeletplugin.kubelet.sockets import DriverLock, driver_lock, own_name
from hami_kubeletplugin.kubelet.standard import LIVENESS, READINESS
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.publish.beside import Beside
from hami_kubeletplugin.publish.order import UsageWatch
from hami_kubeletplugin.publish.publisher import Publisher

log = get_logger()

FILES_WATCH = 5.0
"""Seconds between looks whether CDI specs are as they were made: a listing, and a `stat` for each."""


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        SettingsError: Something that was given can't be used.
        AlreadyServing, SocketPathTooLong, StorageError: This node can't be served; the message says why.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
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
        conditions = Conditions()
        publisher = Publisher(
            api,
            driver=settings.driver_name,
            node=settings.node_name,
            sharing=settings,
            conditions=conditions,
            effects=settings.effects,
        )
        beside = Beside(
            api,
            driver=settings.driver_name,
            node=settings.node_name,
            resources=settings.plugin_resources,
            withhold=settings.given_out_twice == "withheld",
            conditions=conditions,
            publish=publisher.offer,
        )

        def hardware_changed(inventory: Inventory | None) -> None:
            beside.offer(inventory)
            health.known(inventory)
            recovery.wake()
            readiness.wake()

        sessions = sessions_for(settings)
        hardware = HardwareWatch(
            source_for(settings, lambda: _devices(records), sessions=sessions),
            interval=settings.rescan_interval,
            on_change=hardware_changed,
            in_use=lambda: _devices(records).values(),
        )
        health = GpuHealth(
            settings, conditions, sessions, in_use=lambda: _devices(records).values(), hardware_changed=hardware.wake
        )
        suspects = Suspects()
        ledger = Ledger(records=records, specs=specs, sharing=settings, waited_for=suspects.add)
        in_use = UsageWatch(ledger.in_use, publisher.order_by) if settings.gpu_order == "spread" else None
        claim_api = ClaimClient(access)
        edits = driver_edits_for(settings)
        enforcements: Enforcements = {"hami-core": HamiCore(host, settings.hami_dir), "none": NoEnforcement()}
        claims = Claims(
            api=claim_api,
            inventory=hardware.inventory,
            edits=edits,
            files=NodeFiles(records=records, specs=specs, ledger=ledger, enforcements=enforcements),
            driver=settings.driver_name,
            node=settings.node_name,
            boot_id=boot_id,
            timeout=settings.prepare_timeout,
            rights=settings.claim_rights,
            changed=in_use.changed if in_use else None,
        )
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
        heard = heard_by_all(
            settings,
            api,
            conditions,
            run=(own_name(), boot_id),
            claims=records.usable,
            devices=lambda: publisher.devices,
            tell=publisher.conditions_changed,
        )
        server = KubeletServer(settings, claims, publisher.health, lock)
        readiness = node_readiness(
            settings,
            host,
            edits,
            gpus=lambda: hardware.uuids,
            registration=server.registration,
            conditions=conditions,
            told=server.standard.tell,
        )
        others = OtherNames(
            Parts(settings, boot_id, api, claim_api, hardware.inventory, edits, enforcements),
            conditions,
            beside.publishes,
        )
        await asyncio.gather(asyncio.to_thread(_open, records, specs, settings.driver_name), others.look())
        publisher.know(await asyncio.to_thread(_in_use, records))
        await readiness.look()  # before anything is published
        if in_use:
            await in_use.look()  # before anything is published: claims of an earlier run are there
        log.info("starting", version=__version__, node=settings.node_name, driver=settings.driver_name)
        _settle()
        try:
            metrics = _metrics(
                settings.metrics_address,
                host,
                publisher,
                in_force,
                conditions=conditions,
                readiness=readiness,
                server=server,
            )
            async with metrics, asyncio.TaskGroup() as tasks:
                work = {
                    "edits": _until_stop(edits.close),
                    "hardware": hardware.run(),
                    "health": health.run(),
                    "beside": beside.run(),
                    "publisher": publisher.run(),
                    "conditions": heard.run(),
                    **({"order": in_use.run()} if in_use else {}),
                    "kubelet": server.run(),
                    "other names": others.run(),
                    "recovery": recovery.run(settings.stale_interval),
                    "specs": recovery.watch(FILES_WATCH),
                    "suspects": suspects.run(recovery.look_at),
                    "readiness": readiness.run(),
                    "in force": in_force.run(settings.container_interval),
                }
                for name, each in work.items():
                    tasks.create_task(each, name=name)
        except ExceptionGroup as group:
            # The first failure ended all: its own words, or traceback, are what people need.
            raise group.exceptions[0] from None
        finally:
            # Nobody waits for answers any more: what prepares still wait for ends now, and what they write is finished.
            claim_api.close()
            await asyncio.to_thread(claims.close)


def _settle() -> None:
    """What start-up made lives as long as the process: keep the collector from walking it again and again."""
    gc.collect()
    gc.freeze()


async def _until_stop(close: Callable[[], None]) -> None:
    """Call `close` as soon as the daemon stops, before calls in flight have ended: they may be waiting for just that."""
    try:
        await asyncio.Event().wait()
    finally:
        close()


@contextlib.asynccontextmanager
async def _metrics(
    address: str,
    host: HostFiles,
    publisher: Publisher,
    in_force: InForce,
    *,
    conditions: Conditions,
    readiness: Readiness,
    server: KubeletServer,
) -> AsyncIterator[None]:
    """Serve metrics, and answers for probes, while the context is open, if they are wanted."""
    if not address:
        yield
        return
    from hami_kubeletplugin.health.facts import gpu_facts  # noqa: PLC0415 - 2.5 MB that not everybody needs
    from hami_kubeletplugin.observe import metrics  # noqa: PLC0415

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
            server.registration.registered.is_set(),
            server.registration.registered_at,
            readiness.lacking,
            gpu_facts(publisher.devices, conditions),
        )

    async def alive() -> tuple[bool, str]:
        return await server.serving(LIVENESS), "the kubelet's socket"

    async def ready() -> tuple[bool, str]:
        return await server.serving(READINESS), ", ".join(readiness.lacking) or "the kubelet's socket"

    async with metrics.served(address, facts, {metrics.ALIVE: alive, metrics.READY: ready}) as port:
        log.info("serving metrics", port=port)
        yield


def _devices(records: Records) -> Mapping[str, str]:
    """Which GPU (UUID) each device was when a claim was prepared for it."""
    return {share.device: share.uuid for claim in records.usable() for share in claim.shares}


def _in_use(records: Records) -> Mapping[str, str]:
    try:
        return _devices(records)
    except StorageError:  # recovery says so
        return {}


def _open(records: Records, specs: SpecFiles, driver: str) -> None:
    """Clear away what a killed process left half-written."""
    check_names(records, driver)
    for clear in (records.open, specs.open):
        try:
            clear()
        except StorageError as error:
            # Not fatal: claims that are prepared can still be unprepared. What prepares need is looked at by itself.
            log.error("what a former run left can't be cleared away", error=str(error))


def _boot_id(settings: Settings) -> str:
    try:
        return settings.boot_id_file.read_text().strip()
    except OSError as error:
        raise SettingsError(f"--boot-id-file {settings.boot_id_file}: {error.strerror}") from error
