"""Why a GPU is left out, in people's words: kinds of GPUs that NVML knows, and that can't be given to containers by us. Pure."""

from typing import Final

from hami_kubeletplugin.api.errors import NvmlCallFailed
from hami_kubeletplugin.gpu.nvml import ERROR_FUNCTION_NOT_FOUND, ERROR_NOT_SUPPORTED

_KINDS: Final = {
    "nvmlDeviceGetPciInfo": "it has no PCI bus id, as those that are part of a processor (Jetson, Tegra)",
    "nvmlDeviceGetUUID": "it has no UUID, by which containers are given GPUs",
    "nvmlDeviceGetMinorNumber": "it has no device node /dev/nvidia<minor>, as in WSL2 and on Jetson (Tegra)",
    "nvmlDeviceGetMemoryInfo": "it has no memory of its own, as those that share the processor's (Jetson, Tegra, GB10)",
}
"""By the call that such a GPU does not support."""


def what_is_wrong(error: NvmlCallFailed) -> str:
    """What it is about the GPU by which a call failed."""
    if error.code in (ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND) and error.call in _KINDS:
        return f"GPU left out: {_KINDS[error.call]}; such GPUs are not served"
    return "GPU can't be read"
