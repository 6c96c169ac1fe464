"""The node's GPUs: what is found of their health, on the board and in the log."""

from collections.abc import Callable, Collection, Mapping

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.gpu.watch import lost_conditions
from hami_kubeletplugin.health.log import ConditionLog
from hami_kubeletplugin.health.states import State
from hami_kubeletplugin.health.watch import HealthWatch
from hami_kubeletplugin.health.xids import XidRules


class GpuHealth:
    """Of all GPUs that are published.

    Args:
        settings: How they are watched.
        conditions: The board.
        sessions: NVML; None for simulated GPUs, which tell nothing of themselves.
        in_use: UUIDs of the GPUs that prepared claims have; called in a thread, and may raise a StorageError.
        hardware_changed: Called in the event loop when slices may have to change.
    """

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        sessions: Sessions | None,
        *,
        in_use: Callable[[], Collection[str]],
        hardware_changed: Callable[[], None],
    ) -> None:
        self._conditions, self._log = conditions, ConditionLog(conditions)
        self._watch = sessions and HealthWatch(
            sessions,
            conditions,
            interval=settings.health_poll,
            listen=settings.health_events == "watched",
            rules=XidRules(*settings.xids),
            sysfs=settings.sysfs,
            in_use=in_use,
            hardware_changed=hardware_changed,
        )

    def known(self, inventory: Inventory | None) -> None:
        """These are the GPUs from now on; None while the driver is missing. In the event loop."""
        self._log.known(inventory)
        self._conditions.report("hardware", lost_conditions(inventory))
        if self._watch:
            self._watch.known(inventory)

    @property
    def states(self) -> Mapping[str, State]:
        """How the GPUs are that are watched, by UUID."""
        return self._watch.states if self._watch else {}

    @property
    def xids(self) -> Mapping[str, Mapping[str, int]]:
        """How many Xids the driver told of since the start, by UUID of the GPU and number; of those that are watched."""
        return self._watch.xids if self._watch else {}

    def restore(self, states: Mapping[str, State]) -> None:
        """Go on with what an earlier run knew, before the GPUs are known."""
        if self._watch:
            self._watch.restore(states)

    async def run(self) -> None:
        """Watch until cancelled, if there is anything to watch."""
        if self._watch:
            await self._watch.run()
