"""Every name that leaves the process, in one place, so that documents and manifests can be held against it.

Sources: resource.k8s.io/v1 types.go (limits and qualified names), KEP-6072 and k8s.io/dynamic-resource-allocation
deviceattribute (standard attributes).
"""

from typing import Final

DRIVER: Final = "gpu.hami.io"
"""Default driver name, also the CEL domain of our attributes. Clusters coming from HAMi-DRA set another one."""

CONFIG_API_VERSION: Final = "gpu.hami.io/v1alpha1"
CONFIG_KIND: Final = "GpuConfig"

TYPE_SHARED: Final = "hami-gpu"
"""Value of the `type` attribute of a GPU that can be shared."""

MEMORY: Final = "memory"
"""Capacity: bytes, whole MiB."""
CORES: Final = "cores"
"""Capacity: percent of the GPU's compute, 100 x deviceCoreScaling."""
SHARES: Final = "shares"
"""Capacity: sharing slots of 10000 / deviceSplitCount; asking for all 10000 makes the GPU exclusive."""
SHARES_TOTAL: Final = 10_000

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

MAX_GPUS_PER_CONTAINER: Final = 16
"""CUDA_DEVICE_MAX_COUNT of HAMi-core (multiprocess_memory_limit.h)."""

MIB: Final = 1024 * 1024


def cdi_kind(driver: str) -> str:
    """The CDI `vendor/class` of a driver's per-claim specs, e.g. `k8s.gpu.hami.io/claim`."""
    return f"k8s.{driver}/claim"


def device_name(minor: int) -> str:
    """The name of a GPU in its ResourceSlice. The minor survives a change of NVML's index; a DNS label."""
    return f"hami-gpu-{minor}"
