"""The pages that daemon and webhook give to Prometheus when there is something to say of everything.

Labels' values are what a stranger could have put there: names with all that the text format has to quote.
"""

import re
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.gpu.capacity import Capacity
from hami_kubeletplugin.gpu.conditions import Condition, Conditions, What
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.metrics.claims import ClaimUsage
from hami_kubeletplugin.metrics.driver import Done, Driver, Records
from hami_kubeletplugin.metrics.gpus import GpuStates
from hami_kubeletplugin.metrics.hami import Hami
from hami_kubeletplugin.metrics.node import Facts, Node
from hami_kubeletplugin.metrics.view import GivenGpu, View
from hami_kubeletplugin.observe.exposition import text
from hami_kubeletplugin.port.room import Bounds, Room
from hami_kubeletplugin.usage.model import Memory, OfContainer, OfGpu, OnGpu
from hami_kubeletplugin.webhook.admission.metrics import Metrics

HOSTILE = 'a"b\\c\nd{e="f"} 1 # é\u2028\u0085\r\t\U0001f600\x01'
MIB = 2**20


def daemon(*, legacy: bool = False) -> str:
    """All that a daemon can show."""
    registry = CollectorRegistry()
    conditions = Conditions()
    conditions.report("test", {HOSTILE: [Condition(What.XID, "", HOSTILE)]})
    done = Done()
    facts = Facts((HOSTILE, HOSTILE, HOSTILE), True, 1, 1, True, 1.0, True, 1.0, (HOSTILE,), 1)
    for collector in (
        Node(lambda: facts),
        GpuStates(lambda: {HOSTILE: HOSTILE}, conditions),
        Hami(_view, legacy=legacy),
        ClaimUsage(_view),
        Records(lambda: (1, 1)),
        Driver(lambda: {HOSTILE: {HOSTILE: 1}}, lambda: {HOSTILE: HOSTILE}, lambda: {HOSTILE: 1}),
        done,
    ):
        registry.register(collector)
    return text(registry).decode()


def webhook() -> str:
    """All that a webhook can show."""
    metrics = Metrics()
    metrics.review(HOSTILE, HOSTILE, 1.0)
    metrics.answer(HOSTILE, HOSTILE, warned=True)
    metrics.watch_sizes(lambda: 1)
    metrics.watch_templates(lambda: 1)
    metrics.watch_readiness(lambda: ())
    metrics.watch_certificate(lambda: datetime.now(UTC) + timedelta(days=1))
    metrics.watch_connections(Room(Bounds(connections=1, received=1)))
    return metrics.text().decode()


def families(page: str) -> dict[str, str]:
    """The type of each family of a page, by its name there."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))


def exported() -> set[str]:
    """The names of all families."""
    return {*families(daemon()), *families(webhook())}


def _view() -> View:
    gpu = Gpu(
        uuid=HOSTILE,
        minor=0,
        pci_bus_id="0000:00:00.0",
        name=HOSTILE,
        brand="",
        architecture="",
        compute_capability=None,
        memory_bytes=MIB,
        driver_version="",
        cuda_driver_version=None,
        pcie_root=None,
        numa_node=None,
    )
    used = OfGpu(0, HOSTILE, HOSTILE, MIB, MIB, 1, 1)
    given = GivenGpu(gpu, 0, Capacity(1, 100, 1000, 100), Usage(100, 1, 10), used)
    container = OfContainer(
        claim=ClaimRef(HOSTILE, HOSTILE, "uid"),
        use=0,
        namespace=HOSTILE,
        pod=HOSTILE,
        pod_uid="pod-uid",
        container=HOSTILE,
        container_index=0,
        gpus=(OnGpu(HOSTILE, HOSTILE, Limit(1, 10), Limit(1, 10), Memory(3, 1, 1, 1), 1),),
        whole=False,
        source="region",
        processes=1,
        last_kernel=1.0,
    )
    return View(HOSTILE, 2.0, (given,), (container,))
