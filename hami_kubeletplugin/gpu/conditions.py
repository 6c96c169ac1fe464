"""What is to be said of GPUs beside what they are: that one waits for a reset, is lost, is cordoned, can't be used yet.

Several parts of the daemon find conditions, each its own; the board joins them. Slices (taints), the kubelet (device health),
Events, metrics and tables all read the board, so that they never say different things.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from hami_kubeletplugin.observe.observable import Observable


class What(StrEnum):
    """The kinds of conditions; the names of taints are `gpu.hami.io/` and one of these."""

    XID = "xid"
    """The driver reported an error (Xid) that needs no action. Value: its number."""
    ACTION = "recovery-action"
    """The GPU waits for what an administrator has to do. Value: what, e.g. `gpu-reset`; `unknown` on drivers that can't say."""
    LOST = "lost"
    """The GPU doesn't answer any more, or isn't there any more."""
    NOT_ANSWERING = "not-answering"
    """The driver doesn't answer in time, so nothing is known of the GPU."""
    ROW_REMAP_PENDING = "row-remap-pending"
    """Memory rows are remapped at the next reset, when it suits."""
    ROW_REMAP_FAILURE = "row-remap-failure"
    """Memory rows couldn't be remapped: the board has to be replaced."""
    UNMONITORED = "unmonitored"
    """The GPU works, but the driver doesn't tell of its errors."""
    NOT_READY = "not-ready"
    """This node can't prepare claims yet. Value: what is missing, e.g. `hami-core`."""
    CORDONED = "cordoned"
    """Somebody asked, by annotation of the node, that nothing new is put on it."""
    GIVEN_OUT_TWICE = "given-out-twice"
    """Another driver or device plugin gives out the same GPU. Value: the driver, or `device-plugin`."""
    HIDDEN = "hidden"
    """A ResourceSlice of somebody's has the scheduler see none of this node's. Value: its name."""


class Health(StrEnum):
    """What the kubelet is told of a GPU with a condition."""

    HEALTHY = "Healthy"
    UNKNOWN = "Unknown"
    UNHEALTHY = "Unhealthy"


HEALTH: Final[Mapping[What, Health]] = {
    What.XID: Health.HEALTHY,
    What.ACTION: Health.UNHEALTHY,
    What.LOST: Health.UNHEALTHY,
    What.NOT_ANSWERING: Health.UNKNOWN,
    What.ROW_REMAP_PENDING: Health.HEALTHY,
    What.ROW_REMAP_FAILURE: Health.UNHEALTHY,
    What.UNMONITORED: Health.HEALTHY,
    What.NOT_READY: Health.HEALTHY,  # the GPU is; running containers needn't be told
    What.CORDONED: Health.HEALTHY,
    What.GIVEN_OUT_TWICE: Health.HEALTHY,
    What.HIDDEN: Health.HEALTHY,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing to be said of one GPU.

    Attributes:
        what: Its kind. A GPU has at most one of each kind.
        message: For people: what is wrong, and what to do.
        value: Its taint's value: at most 63 of `[-A-Za-z0-9_.]`, empty if the kind says it all.
        since: UNIX time at which it began.
        count: How often it came up since then.
    """

    what: What
    message: str
    value: str = ""
    since: float = 0.0
    count: int = 1


EVERY: Final = "*"
"""Stands for all GPUs of this node in what a source reports."""

Found = Mapping[str, tuple[Condition, ...]]
"""Conditions by UUID; those below `EVERY` hold for each GPU."""


class Conditions:
    """The board. Sources report in the event loop; any thread may read.

    Attributes:
        all: What is known now, by UUID or `EVERY`; GPUs without conditions are not in it.
    """

    def __init__(self) -> None:
        self.all = Observable[Found]({})
        self._by_source: dict[str, Found] = {}
        self._from_earlier = set[str]()
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """Have `changed` called, in the event loop, after each change. It must not wait for anything."""
        self._followers.append(changed)

    @property
    def by_source(self) -> Mapping[str, Found]:
        """What each source says."""
        return self._by_source

    def restore(self, by_source: Mapping[str, Found]) -> None:
        """Take over what sources said in an earlier run; each holds until its source says anything, or `expire`."""
        self._from_earlier = set(by_source) - set(self._by_source)
        self._by_source |= {source: by_source[source] for source in self._from_earlier}
        self._join()

    def expire(self) -> None:
        """Forget what sources said in an earlier run that have said nothing in this one."""
        for source in sorted(self._from_earlier):
            self.report(source, {})

    def report(self, source: str, found: Mapping[str, Iterable[Condition]]) -> None:
        """Replace all that a source has said so far.

        A condition that goes on, with its kind and value, keeps the time at which it began.

        Args:
            source: Who says it.
            found: By UUID, or `EVERY`.
        """
        self._from_earlier.discard(source)
        before = self._by_source.get(source, {})
        self._by_source[source] = {
            uuid: tuple(_going_on(condition, before.get(uuid, ())) for condition in conditions)
            for uuid, conditions in found.items()
        }
        self._join()

    def _join(self) -> None:
        joined: dict[str, tuple[Condition, ...]] = {}
        for said in self._by_source.values():
            for uuid, conditions in said.items():
                joined[uuid] = joined.get(uuid, ()) + conditions
        joined = {uuid: _one_of_each(conditions) for uuid, conditions in joined.items() if conditions}
        if joined != self.all.get():
            self.all.set(joined)
            for changed in self._followers:
                changed()

    def of(self, uuid: str) -> tuple[Condition, ...]:
        """All conditions of one GPU, by kind, at most one of each. For any thread."""
        return of(self.all.get(), uuid)


def of(found: Found, uuid: str) -> tuple[Condition, ...]:
    """All conditions of one GPU among these, by kind, at most one of each. Pure."""
    return _one_of_each((*found.get(uuid, ()), *found.get(EVERY, ())))


def health(conditions: Iterable[Condition]) -> tuple[Health, str]:
    """The worst that they say of a GPU, and the messages that say so; all messages if it is healthy. Pure."""
    by_health: dict[Health, list[str]] = {}
    for condition in conditions:
        by_health.setdefault(HEALTH[condition.what], []).append(condition.message)
    for worst in (Health.UNHEALTHY, Health.UNKNOWN):
        if worst in by_health:
            return worst, "; ".join(by_health[worst])
    return Health.HEALTHY, "; ".join(by_health.get(Health.HEALTHY, ()))


def _going_on(condition: Condition, before: Iterable[Condition]) -> Condition:
    for earlier in before:
        if (earlier.what, earlier.value) == (condition.what, condition.value):
            return replace(condition, since=earlier.since)
    return condition


def _one_of_each(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The first of each kind, ordered by kind: a device has one taint of a key."""
    first: dict[What, Condition] = {}
    for condition in conditions:
        first.setdefault(condition.what, condition)
    return tuple(first[what] for what in sorted(first))
