"""What is known of GPUs, in a file: for the commands beside the daemon, and for the daemon that comes after it.

Without it a daemon that is replaced would call a lost GPU healthy until it has found out again, and would never find out that
one waits for its reset on a driver that names no actions.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ValidationError

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.gpu.conditions import Condition, Conditions
from hami_kubeletplugin.health.states import State
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

FILE: Final = "conditions.json"


class Kept(BaseModel):
    """The file.

    Attributes:
        holder: Who wrote it, as the daemon's lock names its holder.
        boot_id: Of the kernel that it was written under.
        by_source: Conditions by source and by UUID.
        devices: Device names by UUID.
        states: What else is known of GPUs, by UUID: by what their conditions end.
    """

    holder: str
    boot_id: str
    by_source: dict[str, dict[str, tuple[Condition, ...]]]
    devices: dict[str, str]
    states: dict[str, State] = {}


class Remembers(Protocol):
    """Who has states of GPUs: `health.service`."""

    @property
    def states(self) -> Mapping[str, State]:
        """By UUID."""

    def restore(self, states: Mapping[str, State]) -> None:
        """Go on with those of an earlier run."""


def read(plugin_dir: Path) -> Kept | None:
    """The file; None if there is none, or it can't be used.

    Raises:
        StorageError: It is there and can't be read.
    """
    content = files.read(plugin_dir / FILE)
    try:
        return None if content is None else Kept.model_validate_json(content)
    except ValidationError:
        return None  # of another version


class Keeper:
    """Keeps the file as the board is.

    Args:
        plugin_dir: Where it is.
        holder: Who we are, as the daemon's lock says.
        boot_id: Of this kernel.
        conditions: The board.
        health: Where the states of GPUs are, if anywhere.
    """

    def __init__(
        self, plugin_dir: Path, holder: str, boot_id: str, conditions: Conditions, health: Remembers | None = None
    ) -> None:
        self._plugin_dir, self._holder, self._boot_id, self._conditions = plugin_dir, holder, boot_id, conditions
        self._health = health
        self._failed = Once[str]()

    def restore(self) -> None:
        """Take over what an earlier run knew. A reboot resets GPUs: what was known before it is nothing now."""
        try:
            kept = read(self._plugin_dir)
        except StorageError as error:
            log.warning("what was known of GPUs can't be read, it is found out anew", error=str(error))
            return
        if kept and kept.boot_id == self._boot_id:
            if self._health:
                self._health.restore(kept.states)
            self._conditions.restore(kept.by_source)

    async def write(self, devices: dict[str, str]) -> bool:
        """Have the file as the board is now. Says once what it can't be written for, and returns False.

        Args:
            devices: Device names by UUID.
        """
        said = {source: dict(found) for source, found in self._conditions.by_source.items()}
        states = dict(self._health.states) if self._health else {}
        kept = Kept(holder=self._holder, boot_id=self._boot_id, by_source=said, devices=devices, states=states)
        content = kept.model_dump_json(indent=2).encode()
        try:
            await asyncio.to_thread(files.write, self._plugin_dir / FILE, content, durable=False)
        except StorageError as error:
            if self._failed.is_new("write", str(error)):
                log.warning("what is known of GPUs can't be kept; trying again", error=str(error))
            return False
        self._failed.ended("write")
        return True
