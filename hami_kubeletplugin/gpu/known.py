"""The GPUs as they were seen last, in a file: so that a daemon that is started anew knows which of them are lost. Blocking."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.gpu.model import Gpu, Inventory
from hami_kubeletplugin.hanging import PATIENCE, MayHang


class _Known(BaseModel):
    boot_id: str
    gpus: tuple[Gpu, ...]


class KnownGpus:
    """The file.

    Args:
        path: Where it is.
        boot_id: Of this kernel: a GPU that is not there after a reboot is not lost, but gone.
        patience: Seconds until its disk is said to hang.
    """

    def __init__(self, path: Path, boot_id: str, *, patience: float = PATIENCE) -> None:
        self._path, self._boot_id = path, boot_id
        self._disk = MayHang("the file", StorageError, patience=patience)

    def read(self) -> Inventory | None:
        """What was kept since the node booted; None if there is nothing, or nothing that can be used.

        Raises:
            StorageError: It is there and can't be read.
        """
        name = str(self._path)
        content = self._disk.each(lambda _: files.read(self._path), [name])[name]
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
        self._disk.each(lambda _: files.write(self._path, content.encode(), durable=False), [str(self._path)])
