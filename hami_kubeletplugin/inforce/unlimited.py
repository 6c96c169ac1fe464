"""Containers in which no process has been seen with HAMi-core, from one look at /proc to the next. Blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_kubeletplugin.hamicore.loaded import count, our_mappings
from hami_kubeletplugin.hamicore.processes import PROC, Process, UseKey, look

_LOOKS: Final = 2
"""At the first one a container's programs may be just about to start."""


@dataclass(frozen=True, slots=True)
class Unlimited:
    """A running container in which no process has been seen with HAMi-core.

    Attributes:
        started: When its first process did; with the use it tells this start of it from others.
        looks: At so many.
        processes: At the last one.
    """

    started: int
    looks: int
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found.

    Attributes:
        others: Whether other containers can be seen at all.
        loaded: Start of the container that has each use, where a process has the library.
        unlimited: Where none has.
        unknown: Where none was seen with it, but not all processes were looked at, since they have too many mappings.
        crowded: UIDs of pods that have more mounts than are read.
    """

    others: bool = True
    loaded: Mapping[UseKey, int] = field(default_factory=dict)
    unlimited: Mapping[UseKey, Unlimited] = field(default_factory=dict)
    unknown: frozenset[UseKey] = frozenset()
    crowded: frozenset[str] = frozenset()

    @property
    def overdue(self) -> list[UseKey]:
        """Where none has had it at enough looks to say so."""
        return [key for key, container in self.unlimited.items() if container.looks >= _LOOKS]


def look_again(before: Seen, hami_dir: Path, proc: Path = PROC) -> Seen:
    """One look more. One process that has the library is enough: a static `init` beside it is as usual as it is harmless."""
    now, ours = look(hami_dir, proc), our_mappings(hami_dir, proc)
    loaded, unlimited, unknown = {}, {}, set()
    for key, processes in now.processes.items():
        # Files belong to one container at a time, and its first process lives as long as it does: another first one is
        # another container, or the same one started again.
        started, earlier = processes[0].started, before.unlimited.get(key)
        if before.loaded.get(key) == started:
            loaded[key] = started
            continue
        answers = count(processes, ours, proc, enough=1)
        if answers.loaded:
            loaded[key] = started
        elif not answers.complete:
            unknown.add(key)
        elif answers.without:
            looks = earlier.looks + 1 if earlier and earlier.started == started else 1
            unlimited[key] = Unlimited(started, looks, processes)
    return Seen(now.others, loaded, unlimited, frozenset(unknown), now.crowded)
