"""A line in the log for each condition of a GPU that begins, changes or ends."""

from collections.abc import Callable, Mapping

from hami_kubeletplugin.gpu.conditions import EVERY, HEALTH, Condition, Conditions, Found, Health, What
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()


class ConditionLog:
    """Follows the board. A message that goes on in other words is no news, as is an Xid that comes up once more."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._said: Mapping[tuple[str, What], Condition] = {}
        self._devices: dict[str, str] = {}
        conditions.follow(self._changed)

    def known(self, inventory: Inventory | None) -> None:
        """Call GPUs by the names of these devices, too. Those of former ones are kept: what began with them may yet end."""
        self._devices.update({gpu.uuid: gpu.device_name for gpu in (inventory.gpus if inventory else ())})

    def _changed(self) -> None:
        now = _by_kind(self._conditions.all.get())
        before, self._said = self._said, now
        for key in sorted(now.keys() | before.keys()):
            uuid, what = key
            facts = {"what": str(what)}
            facts |= {"gpus": "all"} if uuid == EVERY else {"uuid": uuid, "device": self._devices.get(uuid, "")}
            begun, ended = now.get(key), before.get(key)
            if begun is None:
                log.info("GPU condition ended", **facts)
            elif ended is None or ended.value != begun.value:
                _level(what)("GPU condition", **facts, value=begun.value, message=begun.message)


def _level(what: What) -> Callable[..., object]:
    """How loud. That a GPU is as it should be says nothing of what is done to it from outside."""
    if what in {What.GIVEN_OUT_TWICE, What.HIDDEN}:
        return log.error
    return log.info if HEALTH[what] is Health.HEALTHY else log.warning


def _by_kind(found: Found) -> Mapping[tuple[str, What], Condition]:
    """All but what readiness itself says, with more words."""
    every = ((uuid, each) for uuid, conditions in found.items() for each in conditions)
    return {(uuid, each.what): each for uuid, each in every if each.what is not What.NOT_READY}
