"""Find the GPUs of this node with NVML and sysfs.

One bad GPU never hides the others: it is named in a warning, and left out unless it was known before (`watch`). Each warning is
logged when it begins to hold, and not again by every rescan while it goes on.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import NvmlCallFailed
from hami_kubeletplugin.gpu import nvml as codes
from hami_kubeletplugin.gpu import pci
from hami_kubeletplugin.gpu.model import Gpu, Inventory, Unread
from hami_kubeletplugin.gpu.nvml import ARCHITECTURES, BRANDS, Nvml
from hami_kubeletplugin.gpu.sessions import Sessions
from hami_kubeletplugin.gpu.unserved import what_is_wrong
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

_MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS
_LINK_TO_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_MIG_ENABLED: Final = 1  # NVML_DEVICE_MIG_ENABLE

_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{7,63}")
"""What is a name of one GPU in slices, files and variables; a GPU that falls over answers with nothing, or zeros."""


class Remark(NamedTuple):
    """Something about the hardware that people should know: a log event and its facts."""

    event: str
    facts: tuple[tuple[str, str | int], ...]


@dataclass(slots=True)
class _Links:
    """Where the active NVLinks of a GPU lead to."""

    remotes: set[str] = field(default_factory=set)
    switched: bool = False


class NvmlSource:
    """The GPUs that NVML finds on this node; a `GpuSource`."""

    def __init__(self, sessions: Sessions, sysfs: Path = Path("/sys")) -> None:
        """Prepare to look; nothing is loaded yet.

        Args:
            sessions: NVML.
            sysfs: Where sysfs is mounted.
        """
        self._sessions, self._sysfs = sessions, sysfs
        self._told = Once[Remark]()

    async def discover(self) -> Inventory:
        """Look at the hardware.

        Raises:
            DriverMissing: No driver on the node yet, or library and kernel driver do not fit together.
            NvmlCallFailed: The node as a whole could not be asked, or did not answer in time (code 10).
        """
        inventory, remarks = await self._sessions.use(lambda nvml: read_node(nvml, self._sysfs))
        self._tell(remarks)
        return inventory

    def _tell(self, remarks: Sequence[Remark]) -> None:
        for remark in remarks:
            if self._told.is_new(remark):
                log.warning(remark.event, **dict(remark.facts))
        self._told.keep(remarks.__contains__)


def read_node(nvml: Nvml, sysfs: Path) -> tuple[Inventory, list[Remark]]:
    """Everything that can be published, and what people should know about the rest.

    Raises:
        DriverMissing, NvmlCallFailed: The node as a whole could not be asked.
    """
    driver_version = str(nvml.require("nvmlSystemGetDriverVersion"))
    cuda = nvml.query("nvmlSystemGetCudaDriverVersion")
    cuda_version = None if cuda is None else (cuda // 1000, cuda % 1000 // 10)
    found: list[tuple[Gpu, _Links]] = []
    in_mig_mode: list[str] = []
    unread: list[Unread] = []
    remarks: list[Remark] = []
    for index in range(nvml.require("nvmlDeviceGetCount")):
        reader = _Reader(nvml, index)
        try:
            reader.identify()
            if reader.in_mig_mode():
                in_mig_mode.append(str(reader))
                continue
            gpu = reader.gpu(driver_version, cuda_version, sysfs)
        except NvmlCallFailed as error:
            remarks.append(reader.remark(what_is_wrong(error), error))
            unread.append(reader.unread(error))
            continue
        try:
            links = reader.links()
        except NvmlCallFailed as error:
            # The GPU itself works; without its links it is only no longer grouped with its neighbours.
            remarks.append(reader.remark("GPU published without its NVLinks: they can't be read", error))
            links = _Links()
        found.append((gpu, links))
    found, doubles = _distinct(sorted(found, key=lambda each: each[0].bus_order))
    remarks += doubles
    if in_mig_mode:
        remarks.append(Remark("GPUs in MIG mode left out: not served yet", (("gpus", ", ".join(in_mig_mode)),)))
    rootless = ", ".join(gpu.pci_bus_id for gpu, _ in found if gpu.pcie_root is None)
    if rootless:
        facts = (("gpus", rootless), ("sysfs", str(sysfs)))
        remarks.append(Remark("GPUs published without pcieRoot: sysfs does not tell it", facts))
    return Inventory(_joined(found), tuple(unread)), remarks


class _Reader:
    """Reads one GPU, and can name it by whatever is known of it so far."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml, self._index = nvml, index
        self._handle: Any = None
        self._known: dict[str, str] = {}

    def __str__(self) -> str:
        return f"GPU {self._index}" + (f" ({', '.join(self._known.values())})" if self._known else "")

    def remark(self, event: str, error: NvmlCallFailed) -> Remark:
        return Remark(event, (("index", self._index), *self._known.items(), ("error", str(error))))

    def unread(self, error: NvmlCallFailed) -> Unread:
        return Unread(self._known.get("uuid"), str(error))

    def identify(self) -> None:
        self._handle = self._nvml.require("nvmlDeviceGetHandleByIndex", self._index, where=str(self))
        self._known["pci_bus_id"] = _bus_id("nvmlDeviceGetPciInfo", self._require("nvmlDeviceGetPciInfo"), str(self))
        uuid = str(self._require("nvmlDeviceGetUUID"))
        if not _UUID.fullmatch(uuid):
            raise NvmlCallFailed(
                "nvmlDeviceGetUUID", codes.ERROR_UNKNOWN, f"it answered {uuid!r}, which is no UUID", str(self)
            )
        self._known["uuid"] = uuid

    def in_mig_mode(self) -> bool:
        mode = self._query("nvmlDeviceGetMigMode")
        return mode is not None and mode[0] == _MIG_ENABLED

    def gpu(self, driver_version: str, cuda_driver_version: tuple[int, int] | None, sysfs: Path) -> Gpu:
        bus_id = self._known["pci_bus_id"]
        capability = self._query("nvmlDeviceGetCudaComputeCapability")
        return Gpu(
            uuid=self._known["uuid"],
            minor=int(self._require("nvmlDeviceGetMinorNumber")),
            pci_bus_id=bus_id,
            name=str(self._require("nvmlDeviceGetName")),
            brand=BRANDS.get(self._query("nvmlDeviceGetBrand") or 0, ""),
            architecture=ARCHITECTURES.get(self._query("nvmlDeviceGetArchitecture") or 0, ""),
            compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
            memory_bytes=self._memory(),
            driver_version=driver_version,
            cuda_driver_version=cuda_driver_version,
            pcie_root=pci.pcie_root(sysfs, bus_id),
            numa_node=pci.numa_node(sysfs, bus_id),
        )

    def _memory(self) -> int:
        """Bytes. A GPU that has none to give would have the API server refuse the slice of all GPUs."""
        call = "nvmlDeviceGetMemoryInfo"
        total = int(self._require(call).total)
        if total < names.MIB:
            raise NvmlCallFailed(call, codes.ERROR_UNKNOWN, f"it answered {total} bytes of memory in all", str(self))
        return total

    def links(self) -> _Links:
        links = _Links()
        for link in range(_MAX_LINKS):
            try:
                active = self._query("nvmlDeviceGetNvLinkState", link)
            except NvmlCallFailed as error:
                if error.code != codes.ERROR_INVALID_ARGUMENT:
                    raise
                active = None
            if active is None:  # No NVLink at all, or one more than this GPU has.
                break
            if not active:
                continue
            if self._query("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _LINK_TO_SWITCH:
                links.switched = True
            elif (info := self._query("nvmlDeviceGetNvLinkRemotePciInfo", link)) is not None:
                links.remotes.add(_bus_id("nvmlDeviceGetNvLinkRemotePciInfo", info, str(self)))
        return links

    def _require(self, call: str, *arguments: object) -> Any:
        return self._nvml.require(call, self._handle, *arguments, where=str(self))

    def _query(self, call: str, *arguments: object) -> Any | None:
        return self._nvml.query(call, self._handle, *arguments, where=str(self))


def _bus_id(call: str, info: Any, where: str) -> str:
    try:
        text = str(info.busId)
    except UnicodeDecodeError as error:
        text = repr(error.object)
    bus_id = pci.normalise(text)
    if bus_id is None:
        raise NvmlCallFailed(call, codes.ERROR_UNKNOWN, f"it answered {text!r}, which is no PCI bus id", where)
    return bus_id


def _distinct(found: Sequence[tuple[Gpu, _Links]]) -> tuple[list[tuple[Gpu, _Links]], list[Remark]]:
    """Drop GPUs that claim another's identity: publishing both would let one container get the other's GPU."""
    taken: set[tuple[str, str | int]] = set()
    kept: list[tuple[Gpu, _Links]] = []
    remarks = []
    for gpu, links in found:
        facts: tuple[tuple[str, str | int], ...]
        facts = (("uuid", gpu.uuid), ("minor", gpu.minor), ("pci_bus_id", gpu.pci_bus_id))
        if taken.isdisjoint(facts):
            kept.append((gpu, links))
            taken.update(facts)
        else:
            remarks.append(Remark("GPU left out: it has the identity of another one", facts))
    return kept, remarks


def _joined(found: Sequence[tuple[Gpu, _Links]]) -> tuple[Gpu, ...]:
    """Fill in the NVLink peers. All GPUs of a node that have a link to a switch reach each other through it."""
    here = {gpu.pci_bus_id for gpu, _ in found}
    switched = {gpu.pci_bus_id for gpu, links in found if links.switched}
    return tuple(
        dataclasses.replace(
            gpu,
            nvlink_peers=frozenset((links.remotes & here | (switched if links.switched else set())) - {gpu.pci_bus_id}),
        )
        for gpu, links in found
    )
