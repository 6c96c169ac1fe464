"""What `libvgpu.so` expects of a container: paths and variables.

Source: Project-HAMi/HAMi-core, src/multiprocess/multiprocess_memory_limit.{c,h}, src/libvgpu.c, src/utils.c,
src/include/log_utils.h; read and tried at commit 8f3a89c.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from hami_kubeletplugin.api.gpuconfig import Policy, Priority
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import (
    CUDA_DEVICE_MEMORY_LIMIT,
    CUDA_DEVICE_MEMORY_SHARED_CACHE,
    CUDA_DEVICE_SM_LIMIT,
    CUDA_REDIRECT,
    CUDA_TASK_PRIORITY,
    GPU_CORE_UTILIZATION_POLICY,
    LIBCUDA_LOG_LEVEL,
    MAX_GPUS_PER_CONTAINER,
)
from hami_kubeletplugin.claims.numbering import numbering_variables

CONTAINER_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
"""The library opens itself by this very path (libvgpu.c:99), whatever path it was preloaded from."""
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"
"""Read by glibc's loader for every dynamic program. It must name the container's path of the library."""
CONTAINER_LOCK_DIR: Final = "/tmp/vgpulock"  # noqa: S108 - the library's path, not ours
"""Directory of the node-wide lock: releases up to 2.8.0 hang for ever without it (utils.c:15)."""
CONTAINER_CACHE_DIR: Final = "/usr/local/vgpu/cache"
"""Our choice: where the claim's cache directory appears. Beside the library, since images keep `/tmp` for themselves."""
CACHE_FILE: Final = "vgpu.cache"
"""Our choice: the shared region below the cache directory; HAMi's monitor looks for `*.cache`. The library makes it."""

CONTAINER_REGION: Final = "/tmp/cudevshr.cache"  # noqa: S108 - the library's default
"""Where the library looks for its region without any variable (multiprocess_memory_limit.h:28): a region that we made is
mounted here, so that a process with an empty environment finds it."""
CONTAINER_OVERRIDES: Final = "/overrideEnv"
"""Variables in this file win over those of the environment, from a process's first NVML call on (nvml/hook.c:307)."""
TASK_PRIORITY: Final[dict[Priority, str]] = {"high": "0", "low": "1"}
"""Values of CUDA_TASK_PRIORITY, in the region too."""


LOG_LEVEL: Final = 1
"""Errors only. At the library's own level, 2, every program gets lines on stderr that it did not ask for (log_utils.c:8)."""
DEFAULT_POLICY: Final = Policy()


def checked(limits: Iterable[Limit]) -> None:
    """Refuse limits that the library would not keep: with 0 MiB it knows none and says that the GPU has 0 bytes (device.c:93).

    Raises:
        ValueError: Not 1 to 16 GPUs, the library's CUDA_DEVICE_MAX_COUNT, or one of them without memory.
    """
    given = list(limits)
    if not 1 <= len(given) <= MAX_GPUS_PER_CONTAINER:
        raise ValueError(f"HAMi-core serves 1 to {MAX_GPUS_PER_CONTAINER} GPUs in a container, not {len(given)}")
    if any(limit.memory_mib < 1 for limit in given):
        raise ValueError(f"HAMi-core keeps limits of at least 1 MiB: {given}")


def variables(
    limits: Sequence[Limit],
    *,
    region: str,
    policy: Policy = DEFAULT_POLICY,
) -> dict[str, str]:
    """The environment that makes the library keep `limits`.

    Args:
        limits: One for each GPU that the container sees, in PCI bus order. Index i of a limit is both a CUDA ordinal (when
            memory is allocated) and an NVML index (in nvidia-smi); the two agree in this order only.
        region: Path of the region file in the container.
        policy: GPU_CORE_UTILIZATION_POLICY is written even when nobody said it, or a pod's own `disable` would lift the core
            limit; CUDA_TASK_PRIORITY for the same reason, default low as in the library.

    Raises:
        ValueError: As `checked`.
    """
    checked(limits)
    environment = {
        **numbering_variables(len(limits)),
        CUDA_DEVICE_MEMORY_SHARED_CACHE: region,
        # As it is without the variable; with another value the library would look its functions up there (libvgpu.c:95).
        CUDA_REDIRECT: CONTAINER_LIBRARY,
        GPU_CORE_UTILIZATION_POLICY: policy.core_policy or "default",
        CUDA_TASK_PRIORITY: TASK_PRIORITY[policy.priority or "low"],
        LIBCUDA_LOG_LEVEL: str(LOG_LEVEL if policy.log_level is None else policy.log_level),
    }
    for index, limit in enumerate(limits):
        # Decimal, without a leading zero (octal), one suffix: `4000Mi` would be 4000 bytes (multiprocess_memory_limit.c:95).
        environment[f"{CUDA_DEVICE_MEMORY_LIMIT}_{index}"] = f"{limit.memory_mib}m"
        if limit.cores:
            environment[f"{CUDA_DEVICE_SM_LIMIT}_{index}"] = str(min(limit.cores, 100))
    return environment
