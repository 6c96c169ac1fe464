"""Which devices are to be in the slices, by all that is known of their GPUs."""

from collections.abc import Mapping

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.api.taint_settings import Effect
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.publish.devices import Device, devices
from hami_kubeletplugin.publish.order import least_used_first
from hami_kubeletplugin.publish.taints import tainted


class Wanted:
    """Joins what is found, what is in use of it and what is to be said of it.

    Args:
        sharing: Scaling and split count.
        conditions: What is to be said of GPUs.
        effects: Of taints, by kind of condition.

    Attributes:
        used: What is in use of each GPU, by UUID.
    """

    def __init__(self, sharing: Sharing, conditions: Conditions, effects: Mapping[str, Effect]) -> None:
        self._sharing, self._conditions, self._effects = sharing, conditions, effects
        self._found: list[Device] | None = None
        self.used: Mapping[str, Usage] = {}

    def find(self, inventory: Inventory | None) -> None:
        """These GPUs are there now; None: no driver is."""
        self._found = None if inventory is None else devices(inventory.gpus, self._sharing)

    def devices(self) -> list[Device] | None:
        """Those to be published, in their order, with their taints; None: there is to be no pool."""
        if self._found is None:
            return None
        return tainted(least_used_first(self._found, self.used), self._conditions.all.get(), self._effects)
