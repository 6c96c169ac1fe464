"""What people and probes can ask the daemon over HTTP."""

import contextlib
from collections.abc import AsyncIterator, Mapping

from hami_kubeletplugin.api.metrics_settings import MetricsSettings
from hami_kubeletplugin.daemon.parts import Parts
from hami_kubeletplugin.kubelet.standard import LIVENESS, READINESS
from hami_kubeletplugin.observe.counts import UNCOUNTED, Counts
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()


def counts_for(address: str) -> Counts:
    """Who counts what the daemon does, if anybody wants to see that."""
    if not address:
        return UNCOUNTED
    from hami_kubeletplugin.metrics.driver import Done  # noqa: PLC0415 - as below

    return Done()


@contextlib.asynccontextmanager
async def endpoint(settings: MetricsSettings, parts: Parts) -> AsyncIterator[None]:
    """Serve metrics, and answers for probes, while the context is open, if they are wanted.

    Args:
        settings: Where, what and for whom; without an address they are not.
        parts: What is asked.

    Raises:
        CertificateError, SettingsError: The address, or a file, can't be used.
    """
    if not settings.metrics_address:
        yield
        return
    from hami_kubeletplugin.daemon.door import door  # noqa: PLC0415
    from hami_kubeletplugin.metrics.claims import ClaimUsage  # noqa: PLC0415
    from hami_kubeletplugin.metrics.driver import Done, Driver, Records  # noqa: PLC0415
    from hami_kubeletplugin.metrics.gpus import GpuStates  # noqa: PLC0415 - 2.5 MB that not everybody needs
    from hami_kubeletplugin.metrics.hami import Hami  # noqa: PLC0415
    from hami_kubeletplugin.metrics.node import Facts, Node  # noqa: PLC0415
    from hami_kubeletplugin.observe.endpoint import ALIVE, READY, served  # noqa: PLC0415

    def facts() -> Facts:
        installed = parts.node.host.installed
        renewal = installed.renewal if installed else None
        layout = renewal.layout.name if renewal else ""
        return Facts(
            core=(installed.version or "", layout, installed.digest) if installed else None,
            in_region=renewal is not None,
            not_limited=parts.in_force.not_limited,
            not_known=parts.in_force.not_known,
            limit_differs=parts.limits_differ.count,
            open_to_all=parts.in_force.open_to_all,
            published_at=parts.publisher.published_at,
            registered=parts.server.registration.registered.is_set(),
            registered_at=parts.server.registration.registered_at,
            lacking=parts.readiness.lacking,
        )

    async def alive() -> tuple[bool, str]:
        return not parts.is_serving or await parts.server.serving(LIVENESS), "the kubelet's socket"

    async def ready() -> tuple[bool, str]:
        if not parts.is_serving:
            return not parts.standby.lacking, ", ".join(parts.standby.lacking)
        return await parts.server.serving(READINESS), ", ".join(parts.readiness.lacking) or "the kubelet's socket"

    def timeouts() -> Mapping[str, int]:
        return parts.node.sessions.timeouts if parts.node.sessions else {}

    def devices() -> Mapping[str, str]:
        return parts.publisher.devices

    seen = parts.seen()
    collectors = [
        Node(facts),
        GpuStates(devices, parts.conditions),
        Hami(lambda: seen.view, legacy=settings.legacy_metrics),
        ClaimUsage(lambda: seen.view),
        Records(lambda: parts.recovery.recorded),
        Driver(lambda: parts.node.health.xids, devices, timeouts),
        *([parts.counts] if isinstance(parts.counts, Done) else []),
    ]
    async with (
        door(settings) as way,
        served(
            settings.metrics_address,
            collectors,
            {ALIVE: alive, READY: ready},
            look=seen.look,
            # Until we have the lock another daemon tells of this node.
            shows=lambda: parts.is_serving,
            door=way,
        ) as port,
    ):
        log.info("serving metrics", port=port)
        yield
