"""In which order a container numbers its GPUs: the one fact that limits, variables and regions have to agree on. Pure."""

from collections.abc import Mapping

from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES
from hami_kubeletplugin.claims.prepared import Use
from hami_kubeletplugin.gpu.model import Gpu


def numbered(use: Use, gpus: Mapping[str, Gpu]) -> dict[str, Limit]:
    """The limits of a use by GPU UUID, in PCI bus order: NVML's, and CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Args:
        use: The use.
        gpus: The node's GPUs by UUID, as they are now: over a reboot a GPU keeps its UUID and nothing else.

    Raises:
        ClaimError: A GPU is gone.
    """
    for uuid in use.gpus:
        if uuid not in gpus:
            raise ClaimError(f"GPU {uuid} is not on this node any more; delete the pod so that another is allocated")
    return dict(sorted(use.gpus.items(), key=lambda item: gpus[item[0]].bus_order))


def numbering_variables(gpus: int) -> dict[str, str]:
    """The environment by which CUDA numbers a container's GPUs as `numbered` does, whatever image and pod say.

    Args:
        gpus: How many the container sees. Any value of CUDA_VISIBLE_DEVICES but the identity breaks the numbering of a HAMi-core
            without our patches, up to "unlimited" (utils.c:175-233).
    """
    return {CUDA_DEVICE_ORDER: "PCI_BUS_ID", CUDA_VISIBLE_DEVICES: ",".join(map(str, range(gpus)))}
