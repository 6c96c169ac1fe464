"""Where things are on this node, and what is asked once for all checks. Blocks."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.gpu.device_names import NamedGpus
from hami_kubeletplugin.gpu.discover import Remark, read_node
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.gpu.source import source_for

T = TypeVar("T")


class Once(Generic[T]):
    """Something that is found out once, by the first who asks. Its failure is everybody's. Thread-safe."""

    def __init__(self, find: Callable[[], T]) -> None:
        self._find, self._lock = find, threading.Lock()
        self._found: T | None = None
        self._error: Exception | None = None
        self._asked = False

    def __call__(self) -> T:
        """What was found.

        Raises:
            Exception: As finding it did.
        """
        with self._lock:
            if not self._asked:
                self._asked = True
                try:
                    self._found = self._find()
                except Exception as error:  # noqa: BLE001 - kept for all who ask
                    self._error = error
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._found  # type: ignore[return-value] # it is there: nothing was raised


@dataclass(frozen=True, slots=True)
class Hardware:
    """This node's GPUs, and what is to be said of those that are left out.

    Attributes:
        inventory: The GPUs, under the names by which they are published.
        remarks: About others, and about parts of these.
    """

    inventory: Inventory
    remarks: Sequence[Remark] = ()


@dataclass(frozen=True)
class Place:
    """This node.

    Attributes:
        settings: The options, the same that the daemon has.
        timeout: Seconds that all checks together may take.
        proc: Where procfs is.
        dev: Where device nodes are; None: below the driver's root if there are any, else /dev.
        hardware: Its GPUs.
    """

    settings: Settings
    timeout: float = 20.0
    proc: Path = Path("/proc")
    dev: Path | None = None
    hardware: "Once[Hardware]" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hardware", Once(self._hardware))

    @property
    def host(self) -> Path:
        """The host's root directory as far as it can be seen: with hostPID process 1 is the host's; else it is our own."""
        root = self.proc / "1/root"
        return root if os.access(root, os.R_OK | os.X_OK) else Path("/")

    @property
    def devices(self) -> Path:
        """Where device nodes are, as for `nvidia-ctk`."""
        below = self.settings.driver_root / "dev"
        return self.dev or (below if (below / "nvidiactl").exists() else Path("/dev"))

    @property
    def records(self) -> Records:
        """Of prepared claims."""
        return Records(self.settings.plugin_dir / "claims")

    def prepared(self) -> list[Prepared]:
        """Those whose records can be used.

        Raises:
            StorageError: The folder can't be read.
        """
        return list(self.records.usable())

    def gpus(self) -> dict[str, Gpu]:
        """The node's GPUs by UUID, for checks that compare with them.

        Raises:
            HardwareError: They can't be seen; why is said by the check `driver`.
        """
        try:
            return self.hardware().inventory.by_uuid()
        except HardwareError as error:
            raise HardwareError("the GPUs can't be seen: see driver") from error

    def _hardware(self) -> Hardware:
        settings = self.settings
        if settings.simulate is not None:
            return Hardware(asyncio.run(source_for(settings).discover()))
        sessions = Sessions(settings.nvml_library, settings.driver_root, time_limit=max(self.timeout - 1, 1))
        looked = _Looked(sessions, settings.sysfs)
        named = NamedGpus(looked, settings.plugin_dir / "device-names.json", None)
        return Hardware(asyncio.run(named.discover()), looked.remarks)


class _Looked:
    """A `GpuSource` that keeps what else is to be said instead of logging it."""

    def __init__(self, sessions: Sessions, sysfs: Path) -> None:
        self._sessions, self._sysfs = sessions, sysfs
        self.remarks: Sequence[Remark] = ()

    async def discover(self) -> Inventory:
        inventory, self.remarks = await self._sessions.use(lambda nvml: read_node(nvml, self._sysfs))
        return inventory
