"""HAMi's metrics under HAMi's names, labels and units, so that its dashboards, and people's alerts, go on.

Contract: Project-HAMi/HAMi 2.10, cmd/vGPUmonitor/metrics.go and cmd/scheduler/metrics.go. What HAMi serves for the whole cluster
from its scheduler, each daemon serves for its own node. A "ratio" is a percentage there, 0 to 100, except for that of memory.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.metrics.view import GivenGpu, View
from hami_kubeletplugin.usage.model import OfContainer, OnGpu

ZONE: Final = "vGPU"
"""Value of the label `zone`, which all of HAMi's metrics have."""

_HOST: Final = ("node", "device_index", "device_uuid", "device_type")
_GPU: Final = ("node", "device_uuid", "device_index", "device_type")
_CORES: Final = ("node", "device_uuid", "device_index", "device_cores", "device_type")
_OVERVIEW: Final = ("node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type")
_VGPU: Final = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_SHARE: Final = ("namespace", "node", "pod", "container_index", "device_uuid")
_LEGACY_HOST: Final = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
_LEGACY_GPU: Final = ("nodeid", "deviceuuid", "deviceidx", "devicetype")
_LEGACY_CORES: Final = ("nodeid", "deviceuuid", "deviceidx", "devicecores", "devicetype")
_LEGACY_OVERVIEW: Final = ("nodeid", "deviceuuid", "deviceidx", "devicecores", "devicememorylimit", "devicetype")
_LEGACY_RATIO: Final = ("nodeid", "deviceuuid", "deviceidx")
_LEGACY_VGPU: Final = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_LEGACY_SHARE: Final = ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid")


class Metric(NamedTuple):
    """One of HAMi's, a gauge as all of them.

    Attributes:
        name: Its name.
        text: What it is.
        labels: Names of its labels, without `zone`.
        legacy: Its name before HAMi 2.9; empty if it is newer.
        legacy_labels: Names of the same labels then; the last ones may be missing.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    legacy: str = ""
    legacy_labels: tuple[str, ...] = ()


METRICS: Final = (
    Metric(
        "hami_host_gpu_memory_used_bytes",
        "Memory of the GPU that is in use, by whomever.",
        _HOST,
        "HostGPUMemoryUsage",
        _LEGACY_HOST,
    ),
    Metric(
        "hami_host_gpu_utilization_ratio",
        "Percent of time in which kernels ran on the GPU, 0 to 100.",
        _HOST,
        "HostCoreUtilization",
        _LEGACY_HOST,
    ),
    Metric(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Percent of time in which the GPU's memory was read or written, 0 to 100.",
        _HOST,
    ),
    Metric(
        "hami_gpu_memory_limit_bytes",
        "Memory of the GPU that there is to give out.",
        _GPU,
        "GPUDeviceMemoryLimit",
        _LEGACY_GPU,
    ),
    Metric(
        "hami_gpu_core_limit_ratio",
        "Percent of the GPU's compute that there is to give out.",
        _GPU,
        "GPUDeviceCoreLimit",
        _LEGACY_GPU,
    ),
    Metric(
        "hami_gpu_memory_allocated_bytes",
        "Memory of the GPU that prepared claims hold.",
        _CORES,
        "GPUDeviceMemoryAllocated",
        _LEGACY_CORES,
    ),
    Metric(
        "hami_gpu_shared_count",
        "Shares of the GPU that prepared claims hold.",
        _GPU,
        "GPUDeviceSharedNum",
        _LEGACY_GPU,
    ),
    Metric(
        "hami_gpu_core_allocated_ratio",
        "Percent of the GPU's compute that prepared claims hold.",
        _GPU,
        "GPUDeviceCoreAllocated",
        _LEGACY_GPU,
    ),
    Metric(
        "hami_node_gpu_memory_allocated_ratio",
        "Part of the GPU's memory that prepared claims hold, 0 to 1.",
        _GPU,
        "nodeGPUMemoryPercentage",
        _LEGACY_RATIO,
    ),
    Metric(
        "hami_node_gpu_overview",
        "Memory of the GPU that prepared claims hold, bytes; what there is of it stands in labels, memory in MiB.",
        _OVERVIEW,
        "nodeGPUOverview",
        _LEGACY_OVERVIEW,
    ),
    Metric(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of the GPU that the container was given; what several have together is said of one of them.",
        _SHARE,
        "vGPUMemoryAllocated",
        _LEGACY_SHARE,
    ),
    Metric(
        "hami_vgpu_core_allocated_ratio",
        "Percent of the GPU's compute that the container was given; 0: it has no limit.",
        _SHARE,
        "vGPUCoreAllocated",
        _LEGACY_SHARE,
    ),
    Metric(
        "hami_vgpu_memory_used_bytes",
        "Memory that the container uses.",
        _VGPU,
        "vGPU_device_memory_usage_in_bytes",
        _LEGACY_VGPU,
    ),
    Metric(
        "hami_vgpu_memory_limit_bytes",
        "Memory that the container may use; absent where nothing is limited.",
        _VGPU,
        "vGPU_device_memory_limit_in_bytes",
        _LEGACY_VGPU,
    ),
    # HAMi had its parts in labels of this one: a new series in Prometheus whenever one of them changed.
    Metric(
        "hami_container_device_memory_bytes",
        "Memory that the container uses, the same as hami_vgpu_memory_used_bytes.",
        _VGPU,
        "Device_memory_desc_of_container",
        _LEGACY_VGPU,
    ),
    Metric(
        "hami_container_device_utilization_ratio",
        "Percent of the GPU's compute that the container uses, 0 to 100.",
        _VGPU,
        "Device_utilization_desc_of_container",
        _LEGACY_VGPU,
    ),
    Metric(
        "hami_container_last_kernel_elapsed_seconds",
        "Seconds since the container's last kernel; absent before its first one.",
        _VGPU,
        "Device_last_kernel_of_container",
        _LEGACY_VGPU,
    ),
    Metric("hami_vgpu_memory_context_bytes", "Memory that the container uses: contexts.", _VGPU),
    Metric("hami_vgpu_memory_module_bytes", "Memory that the container uses: modules, that is code.", _VGPU),
    Metric("hami_vgpu_memory_buffer_bytes", "Memory that the container uses: what it has allocated.", _VGPU),
)
"""Those that there are without MIG and ResourceQuotas, in the order of the page."""

Samples = Mapping[str, Sequence[tuple[tuple[str, ...], float | None]]]
"""Values of labels without `zone`, and value, by name of metric; None: not known, so not shown."""


class Hami(Collector):
    """All of `METRICS`.

    Args:
        view: What is shown; asked each time.
        legacy: Whether the former names are served too.
    """

    def __init__(self, view: Callable[[], View], *, legacy: bool = False) -> None:
        self._view, self._legacy = view, legacy

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Each family, with samples or without."""
        found = samples(self._view())
        for metric in METRICS:
            yield _family(metric.name, metric.text, metric.labels, found)
        for metric in METRICS if self._legacy else ():
            if metric.legacy:
                yield _family(metric.legacy, f"Now {metric.name}.", metric.legacy_labels, found, metric.name)


def samples(view: View) -> Samples:
    """What is known, by metric."""
    found = defaultdict[str, list[tuple[tuple[str, ...], float | None]]](list)
    for given in view.gpus:
        for name, labels, value in (*_of_host(view.node, given), *_of_gpu(view.node, given)):
            found[name].append((labels, value))
    for labels, (memory, cores) in _allocated(view).items():
        found["hami_vgpu_memory_allocated_bytes"].append((labels, memory))
        found["hami_vgpu_core_allocated_ratio"].append((labels, cores))
    for of, on in view.by_container():
        labels = (of.namespace, of.pod, of.container, str(on.index), on.uuid)
        for name, value in _of_vgpu(view.at, of, on):
            found[name].append((labels, value))
    return found


def _family(
    name: str, text: str, labels: tuple[str, ...], found: Samples, metric: str | None = None
) -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, text, labels=(*labels, "zone"))
    for values, value in found.get(metric or name, ()):
        if value is not None:
            made.add_metric((*values[: len(labels)], ZONE), value)
    return made


def _of_host(node: str, given: GivenGpu) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    # HAMi's monitor puts its prefix before any model, its scheduler only where the word is missing.
    labels = (node, str(given.index), given.gpu.uuid, f"NVIDIA-{given.gpu.name}")
    if given.used is not None:
        yield "hami_host_gpu_memory_used_bytes", labels, given.used.memory_used
        yield "hami_host_gpu_utilization_ratio", labels, given.used.utilization
        yield "hami_host_gpu_memory_controller_utilization_ratio", labels, given.used.memory_utilization


def _of_gpu(node: str, given: GivenGpu) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    there, held, name = given.there, given.held, given.gpu.name
    model = name if name.startswith("NVIDIA") else f"NVIDIA-{name}"
    first, cores = (node, given.gpu.uuid, str(given.index)), str(there.cores)
    yield "hami_gpu_memory_limit_bytes", (*first, model), there.memory_mib * MIB
    yield "hami_gpu_core_limit_ratio", (*first, model), there.cores
    if held is not None:
        memory = held.memory_mib * MIB
        yield "hami_gpu_memory_allocated_bytes", (*first, cores, model), memory
        yield "hami_gpu_shared_count", (*first, model), held.shares
        yield "hami_gpu_core_allocated_ratio", (*first, model), held.cores
        ratio = held.memory_mib / there.memory_mib if there.memory_mib else None
        yield "hami_node_gpu_memory_allocated_ratio", (*first, model), ratio
        yield "hami_node_gpu_overview", (*first, cores, str(there.memory_mib), model), memory


def _allocated(view: View) -> Mapping[tuple[str, ...], tuple[float, float]]:
    """Bytes and percent that each container was given of each GPU."""
    found = defaultdict[tuple[str, ...], tuple[float, float]](lambda: (0.0, 0.0))
    for of, on in view.shares():
        if on.limit.memory_mib:  # else adminAccess, which takes nothing
            # Where a container's place isn't known, those of its pod are one.
            place = "" if of.container_index is None else str(of.container_index)
            labels = (of.namespace, view.node, of.pod, place, on.uuid)
            memory, cores = found[labels]
            found[labels] = memory + on.limit.memory_mib * MIB, cores + on.limit.cores
    return found


def _of_vgpu(at: float, of: OfContainer, on: OnGpu) -> Iterator[tuple[str, float | None]]:
    limit = on.region or on.limit
    yield "hami_vgpu_memory_limit_bytes", limit.memory_mib * MIB or None
    yield "hami_container_device_utilization_ratio", on.utilization
    elapsed = None if of.last_kernel is None else max(at - of.last_kernel, 0.0)
    yield "hami_container_last_kernel_elapsed_seconds", elapsed
    if on.used is not None:
        yield "hami_vgpu_memory_used_bytes", on.used.total
        yield "hami_container_device_memory_bytes", on.used.total
        yield "hami_vgpu_memory_context_bytes", on.used.context
        yield "hami_vgpu_memory_module_bytes", on.used.module
        yield "hami_vgpu_memory_buffer_bytes", on.used.buffer
