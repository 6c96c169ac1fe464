"""Who looks at the use of GPUs; implements `model.Usage`."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import HamiError, StorageError
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.hamicore.host import Installed
from hami_kubeletplugin.hamicore.processes import PROC
from hami_kubeletplugin.hanging import MayHang
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.usage.joined import Found, joined
from hami_kubeletplugin.usage.model import OfContainer, OfGpu, OfNode
from hami_kubeletplugin.usage.node import OnNode
from hami_kubeletplugin.usage.pods import PodApi, Pods
from hami_kubeletplugin.usage.sample import Sample, Sampler
from hami_kubeletplugin.usage.shares import held

log = get_logger()

FRESH: Final = 1.0
"""Seconds for which a look is good for others, at the least."""
REST: Final = 10.0
"""For so many times the time that it took: what a container does to make it cost much costs us a tenth of a core at most."""
_LONGEST_REST: Final = 30.0
STALE: Final = 60.0
"""Seconds for which what containers used is better than nothing, where a look fails: their series would go, and come back."""
_SAMPLE: Final = 5.0
"""Seconds for which NVML's answers are good while GPUs are in use; with none in use it is asked as seldom as health asks it."""
_PATIENCE: Final = 3.0
HANGS: Final = 30.0
"""Seconds until files and /proc are said to hang."""


class UsageOfNode:
    """Looks, when somebody asks; several at once share a look.

    Args:
        records: Claim records.
        hami_dir: HAMi-core's directory on the host.
        gpus: Gives the node's GPUs by UUID, as far as they are known; never waits.
        sessions: NVML; None: hardware is simulated, and of it is in use what containers use.
        pods: Where pods can be asked for; None: nowhere.
        installed: Gives what is known of HAMi-core as it is installed.
        idle: Seconds between questions to NVML while no claim is prepared.
        patience: Seconds that a look waits for files and /proc. What takes longer goes on, and is there for who asks next.
        proc: Where procfs is.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        *,
        records: Records,
        hami_dir: Path,
        gpus: Callable[[], Mapping[str, Gpu]],
        sessions: Sessions | None,
        pods: PodApi | None = None,
        installed: Callable[[], Installed | None] = lambda: None,
        idle: float = 15.0,
        patience: float = _PATIENCE,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._clock, self._rest = patience, clock, 0.0
        self._gpus, self._idle, self._pods = gpus, idle, Pods(pods)
        self._seen: Mapping[str, Gpu] = {}
        self._sampler = Sampler(sessions, self._age) if sessions else None
        self._node, self._folder = OnNode(records, hami_dir, installed, proc), str(hami_dir)
        self._may_hang = MayHang("what GPU containers use, below", StorageError, patience=HANGS)
        self._finding: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[OfNode] | None = None
        self._last: tuple[float, OfNode] | None = None
        self._told: tuple[float, tuple[OfContainer, ...]] = (-math.inf, ())
        self._in_use = True
        self._said = Once[str]()

    async def look(self) -> OfNode:
        """See `Usage`."""
        if self._last and self._clock() - self._last[0] < max(FRESH, self._rest):
            return self._last[1]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="usage")
        return await asyncio.shield(self._looking)

    def gpus(self) -> Mapping[str, Gpu]:
        """The node's GPUs by UUID, and those that claims have and that can't be seen now. Never waits."""
        self._seen = {**self._seen, **self._gpus()}
        return self._seen

    def found(self) -> Found:
        """What is on this node now, without NVML. Blocks.

        Raises:
            StorageError: Records can't be read, or something hangs.
            OSError: /proc can't be read.
        """
        return self._found(None)

    def _age(self) -> float:
        return min(_SAMPLE, self._idle) if self._in_use else self._idle

    async def _look(self) -> OfNode:
        sample = await self._sampler.sample() if self._sampler else None
        gpus = self._gpus()
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._find(sample), name="usage, below")
        done, _ = await asyncio.wait({self._finding}, timeout=self._patience)
        if not done and self._said.is_new("slow"):
            log.warning("looking at what containers use of GPUs takes long", seconds=self._patience)
        at, containers = self._told
        if self._clock() - at > STALE:
            containers = ()
        made = OfNode(time.time(), self._of_gpus(gpus, sample, containers), containers)
        self._last = self._clock(), made
        return made

    async def _find(self, sample: Sample | None) -> None:
        began = self._clock()
        try:
            found = await asyncio.to_thread(self._found, sample)
            self._told = self._clock(), self._joined(found, sample)
            self._in_use = bool(found.claims)
            self._said.ended("failure")
        except Exception as error:
            if self._said.is_new("failure", str(error)):
                unexpected = None if isinstance(error, HamiError | OSError) else error
                log.warning("what containers use of GPUs can't be told now", error=str(error), exc_info=unexpected)
        took = self._clock() - began
        self._rest = min(took * REST, _LONGEST_REST)
        if took < self._patience:
            self._said.ended("slow")

    def _found(self, sample: Sample | None) -> Found:
        return self._may_hang.each(lambda _: self._node.look(sample), [self._folder])[self._folder]

    def _joined(self, found: Found, sample: Sample | None) -> tuple[OfContainer, ...]:
        now, in_use = self._gpus(), {uuid for claim in found.claims for use in claim.uses for uuid in use.gpus}
        self._seen = {uuid: gpu for uuid, gpu in self.gpus().items() if uuid in now or uuid in in_use}
        made = joined(found, self._seen, sample, self._pods.known)
        self._pods.want([pod for claim in found.claims for pod in claim.pods], made.vague)
        return tuple(made.containers)

    def _of_gpus(
        self, gpus: Mapping[str, Gpu], sample: Sample | None, containers: tuple[OfContainer, ...]
    ) -> tuple[OfGpu, ...]:
        """NVML's answers; without, what is known of GPUs otherwise."""
        if sample is not None:
            return sample.gpus
        simulated = held(containers) if self._sampler is None else None
        made = []
        for index, gpu in enumerate(sorted(gpus.values(), key=lambda gpu: gpu.bus_order)):
            used, busy = (None, None) if simulated is None else simulated.get(gpu.uuid, (0, 0))
            idle = None if simulated is None else 0
            made.append(OfGpu(index, gpu.uuid, gpu.name, gpu.memory_bytes, used, busy, memory_utilization=idle))
        return tuple(made)
