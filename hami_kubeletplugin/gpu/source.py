"""Choose where the GPUs come from."""

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.gpu.model import GpuSource
from hami_kubeletplugin.gpu.simulate import SimulatedSource


def source_for(settings: Settings) -> GpuSource:
    """The simulation if `--simulate` is given, else NVML.

    Raises:
        SettingsError: `--simulate` names neither a profile nor a good file.
    """
    if settings.simulate is not None:
        return SimulatedSource(settings.simulate, settings.node_name)
    return NvmlSource(settings.nvml_library, settings.sysfs)
