"""Every name in objects of the cluster and in environments, in one place, so that documents and manifests can be held against it.

Options are named in the settings, metrics where they are counted. Sources: resource.k8s.io/v1 types.go (limits and qualified
names), KEP-6072 and k8s.io/dynamic-resource-allocation deviceattribute (standard attributes), Project-HAMi/HAMi
pkg/util/types.go and pkg/device/nvidia/device.go (resources and annotations of pods), HAMi-core (variables of containers).
"""

from typing import Final

DRIVER: Final = "gpu.hami.io"
"""Default driver name, also the CEL domain of our attributes. Clusters coming from HAMi-DRA set another one."""

CONFIG_API_VERSION: Final = "gpu.hami.io/v1alpha1"
CONFIG_KIND: Final = "GpuConfig"

# Attributes of devices. Without a domain they belong to the driver's own.
TYPE: Final = "type"
"""What kind of device it is."""
TYPE_SHARED: Final = "hami-gpu"
"""Value of the `type` attribute of a GPU that can be shared."""
UUID: Final = "uuid"
"""Of the GPU, as nvidia-smi shows it."""
MINOR: Final = "minor"
"""Number of the GPU's device node, `/dev/nvidia<minor>`."""
PRODUCT_NAME: Final = "productName"
"""Model, as NVIDIA's driver names it."""
BRAND: Final = "brand"
"""As the driver names it."""
ARCHITECTURE: Final = "architecture"
"""Such as Ampere."""
CUDA_COMPUTE_CAPABILITY: Final = "cudaComputeCapability"
"""Such as 8.0.0."""
DRIVER_VERSION: Final = "driverVersion"
"""As strict semver, by which versions can be compared: 580.159.04 is 580.159.4."""
DRIVER_VERSION_TEXT: Final = "driverVersionText"
"""As NVIDIA writes it."""
CUDA_DRIVER_VERSION: Final = "cudaDriverVersion"
"""The newest CUDA that the driver serves."""
NVLINK_GROUP: Final = "nvlinkGroup"
"""One value for all GPUs that NVLink joins."""
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""PCIe root complex; the same for devices of other drivers below it."""
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
"""PCI address."""
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
"""NUMA node, where the machine says it."""

# What else containers are told of their devices: what the claim has of it.
SHARE_ID: Final = "shareID"
"""The name that it has in allocation results, too."""
MEMORY_LIMIT: Final = "memoryLimitMiB"
"""Memory of this share, MiB."""
CORES_PERCENT: Final = "coresPercent"
"""Compute of this share, percent; left out if none was asked for."""

# Capacities of devices.
MEMORY: Final = "memory"
"""Bytes, whole MiB."""
CORES: Final = "cores"
"""Percent of the GPU's compute, 100 x deviceCoreScaling."""
SHARES: Final = "shares"
"""Sharing slots of 10000 / deviceSplitCount; asking for all 10000 makes the GPU exclusive."""
SHARES_TOTAL: Final = 10_000
MAX_SHARERS: Final = 100
"""The largest deviceSplitCount: up to here 10000 // n slots of a share fit exactly n times into 10000."""

MAX_GPUS_PER_CONTAINER: Final = 16
"""CUDA_DEVICE_MAX_COUNT of HAMi-core (multiprocess_memory_limit.h)."""

MIB: Final = 1024 * 1024

# Resources of containers that the webhook takes for ours; all can be set.
GPU_COUNT: Final = "nvidia.com/gpu"
"""How many GPUs."""
GPU_MEMORY: Final = "nvidia.com/gpumem"
"""Memory of each GPU, MiB."""
GPU_MEMORY_ALIAS: Final = "nvidia.com/gpumemory"
"""The same."""
GPU_MEMORY_PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
"""Memory of each GPU, percent of what the GPU has."""
GPU_CORES: Final = "nvidia.com/gpucores"
"""Compute of each GPU, percent."""
GPU_PRIORITY: Final = "nvidia.com/priority"
"""0: high, 1: low."""

# Annotations of pods: HAMi's.
USE_UUID: Final = "nvidia.com/use-gpuuuid"
"""Only GPUs with these UUIDs, with commas between."""
NOUSE_UUID: Final = "nvidia.com/nouse-gpuuuid"
"""No GPU with these UUIDs."""
USE_TYPE: Final = "nvidia.com/use-gputype"
"""Only models whose name contains one of these words, with commas between."""
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
"""No such model."""
NUMA_BIND: Final = "nvidia.com/numa-bind"
"""`true`: all GPUs of a container on one NUMA node."""
VGPU_MODE: Final = "nvidia.com/vgpu-mode"
"""`hami-core`, as all GPUs here are shared; other modes are refused."""
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
"""HAMi's choice among the GPUs of a node; a warning says what there is instead."""
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
"""HAMi's choice among nodes, which is kube-scheduler's here; a warning says so."""
SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"
"""HAMi's weights for that choice; a warning says so."""
# And ours.
SAME_PCIE_ROOT: Final = "gpu.hami.io/same-pcie-root"
"""`true`: all GPUs of a container below one PCIe root."""
SAME_NVLINK: Final = "gpu.hami.io/same-nvlink"
"""`true`: all GPUs of a container joined by NVLink."""
EXCLUSIVE: Final = "gpu.hami.io/exclusive"
"""`true`: nobody else on these GPUs."""

DEVICE_CORDON: Final = "hami.io/device-cordon"
"""HAMi's: UUIDs of GPUs of the node on which nothing new is put, with commas between."""
IGNORE_LABEL: Final = "hami.io/webhook"
"""With the value `ignore`: they stay as they are."""

# Variables of containers: what HAMi's users set, and the driver's own.
CUDA_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
GPU_CORE_UTILIZATION_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
CUDA_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
CUDA_DEVICE_ORDER: Final = "CUDA_DEVICE_ORDER"
CUDA_DEVICE_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""Without a number it is for all GPUs; `_0` and so on are for one."""
CUDA_DEVICE_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
"""As above."""
CUDA_DEVICE_MEMORY_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
CUDA_REDIRECT: Final = "CUDA_REDIRECT"
CUDA_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
LIBCUDA_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
NVIDIA_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
LD_PRELOAD: Final = "LD_PRELOAD"
# And ours.
CLAIM: Final = "HAMI_DRA_CLAIM"
"""Names the claim (`namespace/name`) in the container, and lets a lost record be made anew from the spec."""

LIMIT_NOT_IN_FORCE: Final = "GpuLimitNotInForce"
"""Reason of an Event: a container of the pod has not loaded HAMi-core, or has another limit than its claim."""

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim made from a template: its name in its pod (kubernetes pkg/controller/resourceclaim/controller.go)."""

TAINT: Final = "gpu.hami.io/"
"""Before the kind of a condition: the key of its taint, whatever the driver is called."""
GPU_CONDITION: Final = "GpuCondition"
"""Reason of an Event: a condition of the GPU has begun."""
GPU_CONDITION_ENDED: Final = "GpuConditionEnded"
"""Reason of an Event: it has ended."""

# Variables of our own processes that others name, too.
NODE_NAME: Final = "NODE_NAME"
DRIVER_NAME: Final = "HAMI_DRIVER_NAME"
KUBECONFIG: Final = "KUBECONFIG"

# The webhook's objects.
WEBHOOK: Final = "hami-webhook"
"""Its Service, by default; who it says it is in all that it writes."""
WEBHOOK_CONFIGURATION: Final = "zz-webhook.gpu.hami.io"
"""Both its configurations, by default. HAMi's chart has a `hami-webhook`; and API servers call mutating webhooks in the order of
these names, so that ours sees what others have put into a pod."""
WEBHOOKS: Final = ("names.hami.io", "pods.hami.io", "claims.hami.io")
"""The entries of these configurations that are ours. Others' in the same object are never touched."""
WEBHOOK_NAMESPACE: Final = "hami-system"
"""By default."""
WEBHOOK_SECRET: Final = "hami-webhook-tls"  # noqa: S105 - where it is, not what
"""By default."""
TRUSTED_SINCE: Final = "gpu.hami.io/trusted-since"
"""Since when both webhook configurations have listed all certificates that are in there; RFC 3339."""
COLLECTOR_LEASE: Final = "hami-webhook-collector"
TEMPLATE_PREFIX: Final = "hami-gpu-"
"""Of the names of our templates; what else begins so is not touched unless it also has our label."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Whose they are; those of `hami-webhook` it may remove."""
LAST_USED: Final = "gpu.hami.io/last-used"
"""When a pod or workload last needed them; RFC 3339, UTC, to the hour."""


def cdi_kind(driver: str) -> str:
    """The CDI `vendor/class` of a driver's per-claim specs, e.g. `k8s.gpu.hami.io/claim`."""
    return f"k8s.{driver}/claim"


def device_name(minor: int) -> str:
    """The name by which a GPU is published when it is first seen, a DNS label; `gpu.device_names` has it kept."""
    return f"hami-gpu-{minor}"


def qualified(driver: str, attribute: str) -> str:
    """An attribute of a driver's own as constraints name it, e.g. `gpu.hami.io/uuid`."""
    return f"{driver}/{attribute}"
