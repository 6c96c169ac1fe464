"""What is known of the use of this node's GPUs, at one moment. None is always "not known", never zero."""

from dataclasses import dataclass
from typing import Literal, Protocol

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.limits import Limit


@dataclass(frozen=True, slots=True)
class Memory:
    """GPU memory in use, bytes.

    Attributes:
        total: All of it.
        context, module, buffer: Of it, as HAMi-core counts it; None where NVML alone tells.
    """

    total: int
    context: int | None = None
    module: int | None = None
    buffer: int | None = None


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What one container has of one GPU through one claim.

    Attributes:
        uuid: The GPU's.
        device: Name of its device.
        limit: What must hold: what the container was given of it, by all of its claims together.
        region: What the container's region says, in units of `limit`; None if there is none, or it can't be read.
        used: Memory in use.
        utilization: Percent of the GPU's compute in use, 0 to 100.
        index: Its number in the container, which is HAMi's `vdevice_index`.
    """

    uuid: str
    device: str
    limit: Limit
    region: Limit | None
    used: Memory | None
    utilization: int | None
    index: int = 0


@dataclass(frozen=True, slots=True)
class OfContainer:
    """One container that has a claim of ours.

    Attributes:
        claim: The claim.
        use: Index of the use in its record.
        namespace, pod, pod_uid, container: Who it is.
        container_index: Its place in the pod, init containers first, as HAMi counts; None if not known.
        gpus: Those that it has through this claim, in the order in which it numbers them (PCI bus).
        whole: Whether its GPUs are wholly its own, or it has admin access: nothing is limited.
        source: Where `used` and `utilization` come from.
        processes: How many of its processes use GPUs now; None if that can't be seen.
        last_kernel: UNIX time of its last kernel, seconds; None if there was none, or nobody knows.
    """

    claim: ClaimRef
    use: int
    namespace: str
    pod: str
    pod_uid: str
    container: str
    container_index: int | None
    gpus: tuple[OnGpu, ...]
    whole: bool
    source: Literal["region", "nvml"] | None
    processes: int | None
    last_kernel: float | None

    @property
    def differs(self) -> bool:
        """Whether its region has other limits than the claim."""
        return any(gpu.region is not None and gpu.region != gpu.limit for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class OfGpu:
    """One GPU of the node, as NVML tells.

    Attributes:
        index: NVML's.
        uuid: Its UUID.
        name: Its model, as NVML has it.
        memory, memory_used: Bytes.
        utilization, memory_utilization: Percent of time in which kernels ran, and in which memory was read or written.
    """

    index: int
    uuid: str
    name: str
    memory: int
    memory_used: int | None
    utilization: int | None
    memory_utilization: int | None


@dataclass(frozen=True, slots=True)
class OfNode:
    """All of it.

    Attributes:
        at: UNIX time at which it was so.
        gpus: By NVML index.
        containers: Each once for each claim that it has.
    """

    at: float
    gpus: tuple[OfGpu, ...] = ()
    containers: tuple[OfContainer, ...] = ()


class Usage(Protocol):
    """Who looks."""

    async def look(self) -> OfNode:
        """What is in use now, or was a moment ago when somebody else asked.

        Never raises, and never takes longer than its patience: what can't be told in time is as it was shortly before, left out,
        or None.
        """
