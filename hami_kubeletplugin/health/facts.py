"""How the GPUs are, for Prometheus. Imported only where metrics are wanted."""

from collections.abc import Mapping

from hami_kubeletplugin.gpu.conditions import EVERY, Conditions, health
from hami_kubeletplugin.observe.metrics import Gpu


def gpu_facts(devices: Mapping[str, str], conditions: Conditions) -> tuple[Gpu, ...]:
    """Each GPU that is known, or that something is to be said of.

    Args:
        devices: Names of devices by UUID.
        conditions: What is to be said of GPUs.
    """
    return tuple(
        Gpu(
            devices.get(uuid, ""),
            uuid,
            health(conditions.of(uuid))[0].value,
            tuple((each.what.value, each.value, each.count) for each in conditions.of(uuid)),
        )
        for uuid in sorted({*devices, *conditions.all.get()} - {EVERY})
    )
