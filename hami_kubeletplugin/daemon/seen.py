"""What metrics show of GPUs and containers: looked at when somebody asks."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims import usage as claims_usage
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.metrics.view import View, view
from hami_kubeletplugin.usage.model import Usage

Held = Mapping[str, claims_usage.Usage]
"""By GPU UUID."""

_PATIENCE: Final = 2.0
"""Seconds for what claims hold. It is in memory, except at the first time, or behind a prepare that has to read the disk."""


class Seen:
    """Joins what is in use, what is given out, and what there is. For one event loop.

    Args:
        node: This node.
        sharing: How much there is of a GPU.
        usage: Who looks what is in use.
        gpus: The node's, by UUID, in bus order.
        published: UUIDs of those that we publish.
        held: What prepared claims hold. Called in a thread, of which there is one at a time; raises a StorageError.
        patience: Seconds for that; then what was known before is shown.

    Attributes:
        view: As it was at the last look.
    """

    def __init__(
        self,
        node: str,
        sharing: Sharing,
        *,
        usage: Usage,
        gpus: Callable[[], Mapping[str, Gpu]],
        published: Callable[[], frozenset[str]],
        held: Callable[[], Held],
        patience: float = _PATIENCE,
    ) -> None:
        self.view = View(node)
        self._node, self._sharing, self._usage = node, sharing, usage
        self._gpus, self._published, self._read_held, self._patience = gpus, published, held, patience
        self._held: Held | None = None
        self._reading: asyncio.Task[Held] | None = None
        self._index: dict[str, int] = {}

    async def look(self) -> None:
        """See how it is now; what can't be told in time is as it was."""
        usage, _ = await asyncio.gather(self._usage.look(), self._look_at_held())
        gpus = self._gpus()
        # Kept for while NVML says nothing, not even a number: a GPU with another one would be another series.
        told = {each.uuid: each.index for each in usage.gpus if (each.memory_used, each.utilization) != (None, None)}
        self._index = {uuid: index for uuid, index in (self._index | told).items() if uuid in gpus}
        self.view = view(
            self._node,
            usage,
            gpus=gpus.values(),
            published=self._published(),
            held=self._held,
            sharing=self._sharing,
            index=self._index,
        )

    async def _look_at_held(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self._read_held))
        await asyncio.wait({self._reading}, timeout=self._patience)
        if self._reading.done():
            try:
                self._held = self._reading.result()
            except StorageError:  # readiness says so
                return
