"""Driver edits, asked for as claims do: in a thread."""

import asyncio
import time
from collections.abc import Collection

from hami_kubeletplugin.gpu.edits import DriverEdits, DriverEditsSource


async def edits_of(source: DriverEditsSource, uuids: Collection[str], *, within: float = 60) -> DriverEdits:
    """The edits for these GPUs."""
    return await asyncio.to_thread(source.edits, uuids, deadline=time.monotonic() + within)
