"""Choose where the GPUs and the driver's edits come from."""

from collections.abc import Callable
from pathlib import Path

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.cdi_hook import hook_for
from hami_kubeletplugin.gpu.device_names import NamedGpus, Names
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.gpu.edits import DriverEditsSource, NoDriverEdits, RuntimeDriverEdits
from hami_kubeletplugin.gpu.model import GpuSource
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.gpu.toolkit import ToolkitDriverEdits


def sessions_for(settings: Settings) -> Sessions | None:
    """NVML, unless `--simulate` is given."""
    return Sessions(settings.nvml_library, settings.driver_root) if settings.simulate is None else None


def source_for(
    settings: Settings, prepared: Callable[[], Names] | None = None, *, sessions: Sessions | None = None
) -> GpuSource:
    """The simulation if `--simulate` is given, else NVML. Names of simulated GPUs follow from what is simulated.

    Args:
        settings: The settings.
        sessions: NVML, if other parts use it too.
        prepared: UUIDs by the device names that prepared claims have; None to look only, beside a running daemon.

    Raises:
        SettingsError: `--simulate` names neither a profile nor a good file.
    """
    if settings.simulate is not None:
        return SimulatedSource(settings.simulate, settings.node_name)
    sessions = sessions or Sessions(settings.nvml_library, settings.driver_root)
    found = NvmlSource(sessions, settings.sysfs)
    return NamedGpus(found, settings.plugin_dir / "device-names.json", prepared)


def driver_edits_for(settings: Settings, host_root: Path, own_hook: Callable[[], str]) -> DriverEditsSource:
    """What `--driver-edits` says.

    Args:
        settings: The settings.
        host_root: Where the host's root directory is seen.
        own_hook: Has the image's `nvidia-cdi-hook` on the host, and says where.
    """
    match settings.driver_edits:
        case "none":
            return NoDriverEdits()
        case "runtime":
            return RuntimeDriverEdits()
        case "toolkit":
            return ToolkitDriverEdits(
                toolkit=settings.nvidia_ctk,
                hook=hook_for(settings.nvidia_cdi_hook, host_root, own_hook),
                driver_root=settings.driver_root,
                host_driver_root=settings.host_driver_root,
            )
