"""Which release of HAMi-core a library is, and so how its shared region is laid out. Pure.

A library doesn't say; its digest does, by `versions.json`, which whoever builds the image puts beside it:

    [{"sha256": "<of libvgpu.so>", "version": "2.10.0"}]

`layout` may stand there too, for a build of our own or a release that is newer than this program: the name of a layout in
`region.LAYOUTS`. A region in a layout that the library doesn't have would be worse than none, so in doubt there is none.
`patch` names the patches of ours that are in it (native/hami-core).
"""

import hashlib
import platform
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import elf
from hami_kubeletplugin.hamicore.region import BROKEN_SIZE, LAYOUTS, Layout

VERSIONS_FILE: Final = "versions.json"

_RELEASES: Final = {
    "2.4.0": "0",
    **dict.fromkeys(("2.4.1", "2.5.0", "2.5.1", "2.5.2", "2.5.3", "2.6.0", "2.6.1", "2.7.0", "2.7.1", "2.8.0"), "1.1"),
    **dict.fromkeys(("2.8.2", "2.8.3", "2.9.0", "2.10.0"), "1.2"),
}
"""Layout by release of HAMi: read off the headers of the HAMi-core commit that each release has as its submodule."""
_MAPPING: Final = frozenset({"hami-dra-1"})
"""Patches with which a GPU has one number, whatever CUDA calls it; without, see `Release.maps_gpus`."""
_BROKEN: Final = "2.8.1"
_LAST_WITH_LOCK: Final = (2, 8, 0)
_WHY_BROKEN: Final = (
    f"it is HAMi-core {_BROKEN}, where all processes of a container but the first are unlimited; ship another"
)


class Entry(BaseModel):
    """One library of `versions.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    version: str = Field(pattern=r"^v?[0-9A-Za-z][0-9A-Za-z.+-]{0,62}$")
    layout: str | None = None
    patch: str | None = Field(default=None, pattern=r"^[0-9a-z][0-9a-z.-]{0,62}$")


_ENTRIES: Final = TypeAdapter(list[Entry])


@dataclass(frozen=True, slots=True)
class Release:
    """What is known of a library.

    Attributes:
        digest: SHA-256, hexadecimal.
        version: E.g. `2.10.0`; None if its digest is unknown.
        layout: Of its shared region; None if unknown.
        patch: The patches of ours that are in it, if any.
    """

    digest: str
    version: str | None
    layout: Layout | None
    patch: str | None = None

    @property
    def age(self) -> tuple[tuple[int, ...], str]:
        """Sort key: newer releases later, what is unknown first."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version or "")), self.version or ""

    @property
    def locks_node(self) -> bool:
        """Whether it counts its processes under a lock that is common to all containers of the node: up to 2.8.0.

        Its code stays in later ones and is never called. What is unknown may need it, and without it waits for ever.
        """
        return self.version is None or self.age[0][:3] <= _LAST_WITH_LOCK

    @property
    def maps_gpus(self) -> bool:
        """Whether limits hold for a program that chooses or renumbers its GPUs by CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER.

        In releases it looks limit and use up by CUDA's number, and books under NVML's.
        """
        return self.patch in _MAPPING

    @property
    def name(self) -> str | None:
        """Version and patch; None if its digest is unknown."""
        return f"{self.version}-{self.patch}" if self.patch else self.version

    def __str__(self) -> str:
        return f"version {self.name}" if self.version else f"unknown library (SHA-256 {self.digest})"


def read_versions(content: bytes | None, where: str) -> Sequence[Entry]:
    """The entries of a versions.json; none if there is no such file.

    Raises:
        StorageError: It is there and is none.
    """
    if content is None:
        return ()
    try:
        return _ENTRIES.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise StorageError(
            f"{where}: {path + ': ' if path else ''}{first['msg']}; it must be a list of sha256 and version of each library"
        ) from None


def recognise(library: bytes, entries: Sequence[Entry], machine: str | None = None) -> Release:
    """What is known of a library.

    Args:
        library: The whole file.
        entries: Of the versions.json beside it.
        machine: As `uname -m` says; this machine by default.
    """
    digest = hashlib.sha256(library).hexdigest()
    entry = next((entry for entry in entries if entry.sha256 == digest), None)
    if entry is None:
        return Release(digest, None, None)
    version = entry.version.removeprefix("v")
    layout = LAYOUTS.get(entry.layout or _RELEASES.get(version, ""))
    if layout and not entry.layout and (machine or platform.machine()) == "x86_64" and not _has(library, layout.size):
        # Built with another region than the release's header, so the table is wrong about it: better none than a wrong one.
        layout = None
    return Release(digest, version, layout, entry.patch)


def layout_of(name: str | None) -> Layout | None:
    """The layout of a release by its name as records have it, with our patches or without; None if it isn't known."""
    version = (name or "").partition("-hami-dra")[0]
    return LAYOUTS.get(_RELEASES.get(version, ""))


def unfit(library: bytes, release: Release, *, floor: tuple[int, int], machine: str | None = None) -> str | None:
    """Why a library must not come into any container; None if it may.

    Args:
        library: The whole file.
        release: What is known of it.
        floor: The oldest glibc that containers are expected to have: in one with an older one than the library needs, every
            program would die.
        machine: As `uname -m` says; this machine by default.
    """
    machine = machine or platform.machine()
    if reason := elf.defect(library, machine):
        return reason
    if release.version == _BROKEN or _has_broken_region(library, machine):
        return _WHY_BROKEN
    try:
        needed = elf.needed_glibc(library)
    except ValueError as error:
        return str(error)
    if needed and needed > floor:
        return (
            f"it needs glibc {needed[0]}.{needed[1]}, and programs of a container that has an older one would die; "
            f"build it on glibc {floor[0]}.{floor[1]} or older, or set --glibc-floor to what all GPU images have"
        )
    return None


def _has_broken_region(library: bytes, machine: str) -> bool:
    """Whether the size of the broken region is in the code, and that of its neighbours not."""
    return machine == "x86_64" and _has(library, BROKEN_SIZE) and not _has(library, LAYOUTS["1.2"].size)


def _has(library: bytes, size: int) -> bool:
    """Whether x86-64 code has the size of a region as an immediate; other instruction sets split such a constant.

    In all builds that were looked at it stands there 7 or 8 times (8f3a89c, ec8979d1, 94fff568).
    """
    return struct.pack("<I", size) in library
