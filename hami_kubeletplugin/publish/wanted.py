"""Which devices are to be in the slices, by all that is known of their GPUs."""

from collections.abc import Mapping

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.api.taint_settings import Effect
from hami_kubeletplugin.claims.usage import Usage
from hami_kubeletplugin.gpu.conditions import Conditions, What
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.publish.devices import Device, devices, uuid
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
        self._gone: dict[str, Device] = {}
        self.used: Mapping[str, Usage] = {}

    def find(self, inventory: Inventory | None) -> None:
        """These GPUs are there now; None: no driver is."""
        found = None if inventory is None else devices(inventory.gpus, self._sharing)
        there = {uuid(device) for device in found or ()}
        before = self._gone | {uuid(device): device for device in self._found or ()}
        self._gone = {name: device for name, device in before.items() if name not in there}
        self._found = found

    def devices(self) -> list[Device] | None:
        """Those to be published, in their order, with their taints; None: there is to be no pool."""
        # One that is lost stays, tainted: who tolerates that, or has to be evicted for it, is told by its device in the slice.
        lost = [device for name, device in self._gone.items() if self._is_lost(name)]
        if self._found is None and not lost:
            return None
        ordered = least_used_first([*(self._found or ()), *lost], self.used)
        return tainted(ordered, self._conditions.all.get(), self._effects)

    def _is_lost(self, name: str) -> bool:
        return any(condition.what is What.LOST for condition in self._conditions.of(name))
