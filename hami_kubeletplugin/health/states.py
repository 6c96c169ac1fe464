"""How one GPU is, as it follows from what the driver says of it. Pure.

Events only add to a state; only a poll takes something from it, and each condition only when what it stands for is measured gone:

    condition           begins                                          ends
    xid                 an Xid after which the GPU is as before         `XID_KEPT` seconds after the last one
    recovery-action     the driver names an action                      the GPU has answered twice in a row without naming one
                        a call returns "reset required"                 the GPU has answered twice in a row
                        an Xid that counts, and no action is named      the GPU was reset or the driver loaded anew, then as above
    lost                the GPU is lost or can't be found, or gives     the GPU has answered twice in a row
                        other errors twice in a row
    row-remap-…, unmonitored                                            with what the driver says
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from hami_kubeletplugin.gpu import nvml as codes
from hami_kubeletplugin.gpu.conditions import Condition, What
from hami_kubeletplugin.health.xids import XidRules, named

XID_KEPT: Final = 900.0
"""Seconds for which an Xid is told that needs no action."""
ANSWERS: Final = 2
"""How often in a row a GPU must answer to count as mended, and fail with odd errors to count as lost."""

_LOST: Final = frozenset({codes.ERROR_NOT_FOUND, codes.ERROR_GPU_IS_LOST, codes.ERROR_GPU_NOT_FOUND})

ACTIONS: Final[Mapping[int, str]] = {
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}
"""nvmlDeviceGpuRecoveryAction_t of nvml.h, as values of taints."""
_TO_DO: Final[Mapping[str, str]] = {
    "gpu-reset": "end the pods that use the GPU, then `nvidia-smi --gpu-reset -i {bus}`",
    "node-reboot": "drain the node and reboot it",
    "drain-p2p": "end the pods that use the GPU together with others (NVLink, peer to peer)",
    "drain-and-reset": "let the pods that use the GPU come to their end, then `nvidia-smi --gpu-reset -i {bus}`",
    "recover-imex-domain": "look at nvidia-imex on the nodes of this domain",
    "bus-reset": "drain the node and reset the GPU's bus, or reboot the node",
    "system-reboot": "drain the nodes of this system and reboot all of it",
}
_UNKNOWN_ACTION: Final = "unknown"
_TO_DO_AT_LAST: Final = (
    "end the pods that use the GPU, then `nvidia-smi --gpu-reset -i {bus}`; reboot the node if that does not help"
)


class Why(StrEnum):
    """Why a GPU waits for an action. Each reason ends by itself."""

    NAMED = "named"
    RESET_REQUIRED = "reset required"
    XID = "xid"


@dataclass(frozen=True, slots=True)
class Life:
    """What becomes another one when the driver is loaded anew or the GPU is reset.

    Attributes:
        load: Which load of the driver it is; None if not known.
        energy: What the GPU has used since it was initialised, in mJ; None if it doesn't count it.
    """

    load: int | None = None
    energy: int | None = None

    def is_over(self, now: "Life") -> bool:
        """Whether what is measured now belongs to another life."""
        if None not in (self.load, now.load) and self.load != now.load:
            return True
        return self.energy is not None and now.energy is not None and now.energy < self.energy


@dataclass(frozen=True, slots=True)
class Answer:
    """What a poll says of one GPU.

    Attributes:
        error: Return code (nvml.h) of the call that failed; None if it answers.
        said: The error in words.
        action: The recovery action (field 230), or None if the driver doesn't say.
        remap_pending, remap_failure: Of memory rows (fields 144 and 145), or None if the driver doesn't say.
        life: To see resets by.
        monitored: Whether its events come; None if nobody listens just now, or nobody needs to.
    """

    error: int | None = None
    said: str = ""
    action: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    life: Life = Life()
    monitored: bool | None = None


@dataclass(frozen=True, slots=True)
class State:
    """All that is known of one GPU.

    Attributes:
        conditions: What is to be told of it, by kind.
        why: Why it waits for an action, if it does.
        xid: The last Xid that counted, while it waits.
        xid_at: UNIX time of the last Xid that needs no action.
        answered, failed: How often in a row.
        calm: How often in a row it answered without an action.
        life: As measured last.
        renewed: Whether another life has begun since the last Xid that counted.
    """

    conditions: Mapping[What, Condition] = field(default_factory=dict)
    why: frozenset[Why] = frozenset()
    xid: int | None = None
    xid_at: float = 0.0
    answered: int = 0
    failed: int = 0
    calm: int = 0
    life: Life = Life()
    renewed: bool = False

    @property
    def waits(self) -> bool:
        """Whether somebody has to do something before it works again."""
        return What.ACTION in self.conditions or What.LOST in self.conditions


def after_xid(state: State, xid: int, action: int | None, rules: XidRules, *, bus: str, now: float) -> State:
    """The state after an Xid.

    Args:
        state: Before it.
        xid: Its number.
        action: The recovery action just after it, or None if the driver doesn't say.
        rules: Which Xids count.
        bus: The GPU's PCI bus id, for the message.
        now: UNIX time.
    """
    if not rules.counts(xid, action):
        message = f"{named(xid)}; nothing to do, new pods can use the GPU"
        return replace(_with(state, What.XID, message, str(xid), now, again=True), xid_at=now)
    state = replace(state, xid=xid, answered=0, calm=0)
    if action:
        return _waits(state, Why.NAMED, _action_name(action), bus, now, again=True)
    return _waits(replace(state, renewed=False), Why.XID, None, bus, now, again=True)


def after_answer(state: State, answer: Answer, *, bus: str, now: float) -> State:
    """The state after a poll, with the arguments of `after_xid`."""
    if answer.error is not None:
        return _after_failure(state, answer.error, answer.said, bus, now)
    anew = state.life.is_over(answer.life)
    state = replace(
        state,
        answered=1 if anew else min(state.answered + 1, ANSWERS),
        failed=0,
        calm=0 if answer.action else 1 if anew else min(state.calm + 1, ANSWERS),
        life=answer.life,
        renewed=state.renewed or anew,
    )
    if answer.action:
        state = _waits(state, Why.NAMED, _action_name(answer.action), bus, now)
    elif state.calm == ANSWERS:
        state = _no_longer(state, answer.action)
    if state.answered == ANSWERS:
        state = _without(state, What.LOST)
    if What.XID in state.conditions and now - state.xid_at >= XID_KEPT:
        state = _without(state, What.XID)
    pending = "memory rows are remapped at the GPU's next reset; do that when it suits"
    failure = "memory rows couldn't be remapped: the board has to be replaced"
    unmonitored = "the driver doesn't tell of this GPU's errors; what it says when it is asked is known all the same"
    state = _as_said(state, What.ROW_REMAP_PENDING, answer.remap_pending, pending, now)
    state = _as_said(state, What.ROW_REMAP_FAILURE, answer.remap_failure, failure, now)
    return _as_said(state, What.UNMONITORED, answer.monitored is False, unmonitored, now)


def _after_failure(state: State, error: int, said: str, bus: str, now: float) -> State:
    state = replace(state, answered=0, calm=0, failed=min(state.failed + 1, ANSWERS))
    if error == codes.ERROR_RESET_REQUIRED:
        return _waits(state, Why.RESET_REQUIRED, "gpu-reset", bus, now)
    if error in _LOST or state.failed == ANSWERS:
        message = f"the GPU doesn't answer any more: {said}; look at `dmesg`, drain the node and reboot it"
        return _with(state, What.LOST, message, "", now)
    return state


def _waits(state: State, why: Why, named_action: str | None, bus: str, now: float, *, again: bool = False) -> State:
    before = state.conditions.get(What.ACTION)
    # What is not known never takes the place of what is.
    action = named_action or (before.value if before else _UNKNOWN_ACTION)
    to_do = _TO_DO.get(action, _TO_DO_AT_LAST).format(bus=bus)
    cause = f"{named(state.xid)}; " if state.xid is not None else ""
    waits = "the GPU waits to be reset" if action == _UNKNOWN_ACTION else f"the GPU waits for: {action}"
    state = replace(state, why=state.why | {why})
    return _with(state, What.ACTION, f"{cause}{waits}; {to_do}", action, now, again=again)


def _no_longer(state: State, action: int | None) -> State:
    """What has ended of the reasons to wait, now that the GPU has answered often enough and no action is named."""
    over = {Why.RESET_REQUIRED}
    if action == 0 or state.renewed:
        over.add(Why.NAMED)
    if state.renewed:
        over.add(Why.XID)
    why = state.why - over
    return replace(state, why=why) if why else replace(_without(state, What.ACTION), why=why, xid=None, renewed=False)


def _action_name(action: int) -> str:
    return ACTIONS.get(action, f"action-{action}")


def _as_said(state: State, what: What, holds: bool | None, message: str, now: float) -> State:
    if holds is None:
        return state
    return _with(state, what, message, "", now) if holds else _without(state, what)


def _with(state: State, what: What, message: str, value: str, now: float, *, again: bool = False) -> State:
    before = state.conditions.get(what)
    since, count = (before.since, before.count + again) if before else (now, 1)
    return replace(state, conditions={**state.conditions, what: Condition(what, message, value, since, count)})


def _without(state: State, what: What) -> State:
    return replace(state, conditions={kind: each for kind, each in state.conditions.items() if kind != what})
