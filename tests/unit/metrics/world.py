"""A node's containers and GPUs, as metrics are told of them, and the page as Prometheus reads it."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.observe import exposition
from hami_kubeletplugin.usage.model import Memory, OfContainer, OfGpu, OnGpu
from tests.unit.publish.fakes import gpu

GIB = 2**30
NODE = "node-1"
Series = dict[tuple[tuple[str, str], ...], float]
"""Value by labels."""


def on_gpu(
    minor: int = 0,
    memory_mib: int = 4096,
    cores: int = 30,
    *,
    region: Limit | None = None,
    used: Memory | None = None,
    utilization: int | None = None,
    index: int = 0,
) -> OnGpu:
    """What a container has of GPU `minor`."""
    return OnGpu(gpu(minor).uuid, f"hami-gpu-{minor}", Limit(memory_mib, cores), region, used, utilization, index)


def container(
    *on: OnGpu,
    claim: str = "c",
    use: int = 0,
    pod: str = "p",
    pod_uid: str | None = None,
    name: str = "x",
    place: int | None = 0,
    processes: int | None = 1,
    last_kernel: float | None = None,
) -> OfContainer:
    """One with a claim, in the namespace `team`."""
    ref = ClaimRef("team", claim, f"uid-{claim}")
    uid = f"uid-{pod}" if pod_uid is None else pod_uid
    return OfContainer(ref, use, "team", pod, uid, name, place, on, False, "region", processes, last_kernel)


def of_gpu(minor: int, *, index: int, used: int | None = None, utilization: int | None = None) -> OfGpu:
    """What NVML tells of one."""
    memory_utilization = None if utilization is None else utilization // 2
    return OfGpu(
        index, gpu(minor).uuid, gpu(minor).name, gpu(minor).memory_bytes, used, utilization, memory_utilization
    )


def text(*collectors: Collector) -> str:
    """The page."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return exposition.text(registry).decode()


def series(page: str) -> dict[str, Series]:
    """What Prometheus takes from it, by name; nothing is twice, for it would refuse that."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name}{labels} is there twice"
            found[sample.name][labels] = sample.value
    return found


def total(found: Series, **labels: str) -> float:
    """The sum of all series that have these labels, as PromQL's `sum`."""
    return sum(value for of, value in found.items() if labels.items() <= dict(of).items())


def one(found: Series) -> tuple[dict[str, str], float]:
    """The only one."""
    ((labels, value),) = found.items()
    return dict(labels), value


def label_names(collector: Collector) -> dict[str, list[str]]:
    """Names of labels in the order in which they are given, by name of family with samples."""
    families: Iterable[object] = collector.collect()
    return {family.name: [*family.samples[0].labels] for family in families if family.samples}  # type: ignore[attr-defined]
