"""The GPUs as they were seen last, in a file: so that a daemon that is started anew knows which of them are lost. Blocking."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from hami_kubeletplugin import files
from hami_kubeletplugin.gpu.model import Gpu, Inventory


class _Known(BaseModel):
    boot_id: str
    gpus: tuple[Gpu, ...]


class KnownGpus:
    """The file.

    Args:
        path: Where it is.
        boot_id: Of this kernel: a GPU that is not there after a reboot is not lost, but gone.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path, self._boot_id = path, boot_id

    def read(self) -> Inventory | None:
        """What was kept since the node booted; None if there is nothing, or nothing that can be used.

        Raises:
            StorageError: It is there and can't be read.
        """
        content = files.read(self._path)
        try:
            known = None if content is None else _Known.model_validate_json(content)
        except ValidationError:
            return None  # of another version
        return Inventory(known.gpus) if known and known.boot_id == self._boot_id else None

    def write(self, inventory: Inventory) -> None:
        """Keep these.

        Raises:
            StorageError: They are not kept.
        """
        content = _Known(boot_id=self._boot_id, gpus=inventory.gpus).model_dump_json(indent=2)
        files.write(self._path, content.encode(), durable=False)
