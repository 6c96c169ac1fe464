"""The driver's part of a container: which device nodes, libraries and hooks make an NVIDIA GPU work in it.

Three sources, chosen by `--driver-edits`: `toolkit` (see `toolkit.py`) writes everything into our own CDI spec, `runtime` leaves
it to the NVIDIA container runtime, `none` to whoever set up the node.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from hami_kubeletplugin.api.cdi import ContainerEdits
from hami_kubeletplugin.gpu.libcuda import LIBCUDA, find_libcuda
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_NOT_INJECTED: Final = (
    f"--driver-edits=runtime, but the NVIDIA container runtime has put no {LIBCUDA} into the daemon's own container, so it may "
    "put none into others: give the DaemonSet runtimeClassName nvidia and NVIDIA_VISIBLE_DEVICES=all, and leave "
    "NVIDIA_DRIVER_CAPABILITIES unset or include compute in it; or use --driver-edits=toolkit"
)


@dataclass(frozen=True, slots=True)
class DriverEdits:
    """What the driver needs in a container. Paths are the host's; no edit needs a CDI version above 0.5.0.

    Shared between claims: copy, don't change.

    Attributes:
        common: Once for each container, whatever GPUs it gets.
        per_gpu: For each GPU, by UUID.
        visible: What NVIDIA_VISIBLE_DEVICES must say: `void` keeps an NVIDIA runtime from injecting all a second time, `uuids`
            asks it to inject the container's GPUs. The variable is never in the edits.
        no_libcuda: Why libcuda.so.1 may not be in the container, and what to do; None if it will be. Without it HAMi-core must
            not be preloaded: linked against libcuda as it is, every program there would die.
    """

    common: ContainerEdits = field(default_factory=ContainerEdits)
    per_gpu: Mapping[str, ContainerEdits] = field(default_factory=dict)
    visible: Literal["void", "uuids"] = "void"
    no_libcuda: str | None = None


class DriverEditsSource(Protocol):
    """Knows the driver edits of this node's GPUs. Blocking; thread-safe."""

    def edits(self, uuids: Collection[str], *, deadline: float) -> DriverEdits:
        """The edits for these GPUs, complete: `per_gpu` has each of them, unless the source leaves GPUs to others.

        Args:
            uuids: The GPUs.
            deadline: By the monotonic clock.

        Raises:
            HardwareError: They can't be had; says what is missing and what to do.
        """

    def stamp(self) -> object:
        """What the edits follow from, to be compared: when it is another, those that were given may be out of date.

        Raises:
            HardwareError: It can't be told now.
        """

    def close(self) -> None:
        """Nobody waits for edits any more."""


class NoDriverEdits:
    """`--driver-edits=none`: simulated GPUs, or a node where something else brings the driver into every container.

    That includes libcuda: HAMi-core is preloaded, and who chose this mode answers for it.
    """

    def edits(self, uuids: Collection[str], *, deadline: float) -> DriverEdits:  # noqa: ARG002
        """Nothing for any GPU."""
        return DriverEdits(per_gpu={uuid: ContainerEdits() for uuid in uuids})

    def stamp(self) -> object:
        """They never change."""
        return None

    def close(self) -> None:
        """Nothing goes on."""


class RuntimeDriverEdits:
    """`--driver-edits=runtime`: the NVIDIA container runtime is the node's default, or the pod's runtime class.

    It injects what NVIDIA_VISIBLE_DEVICES names, libcuda with it as long as the image's NVIDIA_DRIVER_CAPABILITIES include
    `compute`, which is the default. That it does is shown by the daemon's own container, or its host, having libcuda.

    Args:
        find: Where libcuda.so.1 is here, if anywhere; asked until it is found.
    """

    def __init__(self, find: Callable[[], Path | None] = find_libcuda) -> None:
        self._find = find
        self._found: Path | None = None

    def edits(self, uuids: Collection[str], *, deadline: float) -> DriverEdits:  # noqa: ARG002
        """Nothing but the variable, which the caller sets."""
        if self._found is None:
            self._found = self._find()
            if self._found is not None:
                log.info("the NVIDIA container runtime brings the driver", library=str(self._found))
        return DriverEdits(
            per_gpu={uuid: ContainerEdits() for uuid in uuids},
            visible="uuids",
            no_libcuda=None if self._found else _NOT_INJECTED,
        )

    def stamp(self) -> object:
        """They never change."""
        return None

    def close(self) -> None:
        """Nothing goes on."""
