"""Choose where the GPUs and the driver's edits come from."""

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.gpu.edits import DriverEditsSource, NoDriverEdits, RuntimeDriverEdits
from hami_kubeletplugin.gpu.model import GpuSource
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.gpu.toolkit import ToolkitDriverEdits


def source_for(settings: Settings) -> GpuSource:
    """The simulation if `--simulate` is given, else NVML.

    Raises:
        SettingsError: `--simulate` names neither a profile nor a good file.
    """
    if settings.simulate is not None:
        return SimulatedSource(settings.simulate, settings.node_name)
    return NvmlSource(settings.nvml_library, settings.sysfs, driver_root=settings.driver_root)


def driver_edits_for(settings: Settings) -> DriverEditsSource:
    """What `--driver-edits` says."""
    match settings.driver_edits:
        case "none":
            return NoDriverEdits()
        case "runtime":
            return RuntimeDriverEdits()
        case "toolkit":
            return ToolkitDriverEdits(
                toolkit=settings.nvidia_ctk,
                hook=settings.nvidia_cdi_hook,
                driver_root=settings.driver_root,
                host_driver_root=settings.host_driver_root,
            )
