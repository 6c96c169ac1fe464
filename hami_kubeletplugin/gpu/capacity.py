"""How much of a GPU there is to share: what is published of it, and so what claims may hold of it together. Pure."""

from dataclasses import dataclass
from fractions import Fraction

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.gpu.model import Gpu


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is of one GPU.

    Attributes:
        memory_mib: MiB, scaled.
        cores: Percent of its compute, scaled.
        slots: Slots; with all of them a claim has the GPU for itself.
        slot: Slots of a claim that asks for no number of them.
    """

    memory_mib: int
    cores: int
    slots: int
    slot: int


def capacity(gpu: Gpu, sharing: Sharing) -> Capacity:
    """Of one GPU, with the node's options."""
    # Through the decimal text, so that a scaling of 1.1 is 11/10 and no float.
    return Capacity(
        memory_mib=int(gpu.memory_bytes * Fraction(str(sharing.device_memory_scaling)) / names.MIB),
        cores=int(100 * Fraction(str(sharing.device_core_scaling))),
        slots=names.SHARES_TOTAL,
        slot=default_slot(sharing),
    )


def default_slot(sharing: Sharing) -> int:
    """Slots of a claim that asks for no number of them: as many claims fit on a GPU as may share it."""
    return names.SHARES_TOTAL // sharing.device_split_count
