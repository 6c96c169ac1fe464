"""What the image ships of HAMi-core: which library is taken, and whether its regions can be made. Reads only; blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore import elf
from hami_kubeletplugin.hamicore.versions import VERSIONS_FILE, Entry, Release, read_versions, recognise, unfit
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

_ADVICE: Final = "No container gets a GPU without it; check the daemon's image, or --hami-core"
_LIBRARIES: Final = "libvgpu.so*"


@dataclass(frozen=True, slots=True)
class Library:
    """A library that may come into containers."""

    path: Path
    content: bytes
    release: Release


@dataclass(frozen=True, slots=True)
class Shipped:
    """Where the image has HAMi-core, and which of it is wanted.

    Attributes:
        hami_core: A libvgpu.so, or a directory with one or several (`libvgpu.so*`); versions.json is beside them.
        version: The version to take; None for the newest that is fit, if possible one whose regions can be made.
        glibc_floor: The oldest glibc of GPU containers, `x.y`.
        region_hook: The program that renews regions.
    """

    hami_core: Path
    version: str | None = None
    glibc_floor: str = "2.31"
    region_hook: Path | None = None

    def library(self) -> Library:
        """The library to install.

        Raises:
            StorageError: There is none that is whole, for this machine, not known to be broken, and of the wanted version; or
                there are several and nothing says which. No container may start then, since it would run without limits.
        """
        folder = self.hami_core if self.hami_core.is_dir() else self.hami_core.parent
        versions = folder / VERSIONS_FILE
        entries = read_versions(files.read(versions), str(versions))
        found: list[Library] = []
        other: list[str] = []
        unfitting: list[str] = []
        for path in self._paths():
            library = _read(path, entries)
            if self.version is not None and library.release.version != self.version.removeprefix("v"):
                other.append(f"{path.name} is {library.release}")
            elif reason := unfit(library.content, library.release, floor=self._floor):
                unfitting.append(f"{path}: {reason}")
            else:
                found.append(library)
        if not found:
            wanted = f" in version {self.version}" if self.version is not None else ""
            why = "; ".join(unfitting + other) or f"no {_LIBRARIES} is there"
            raise StorageError(f"HAMi-core's library{wanted} can't be used from {self.hami_core}: {why}. {_ADVICE}")
        for reason in unfitting:
            log.warning("a library of HAMi-core is left out", reason=reason)
        if len(found) > 1 and all(library.release.version is None for library in found):
            names = ", ".join(library.path.name for library in found)
            raise StorageError(
                f"{self.hami_core} has several libraries ({names}), and {VERSIONS_FILE} knows none of them; "
                f"name one by --hami-core, or complete {versions}"
            )
        return max(found, key=lambda library: _preference(library.release))

    def hook(self) -> bytes | str:
        """The program that renews regions, or why there is none that can run."""
        if self.region_hook is None:
            return "there is no program to renew them"
        try:
            content = self.region_hook.read_bytes()
        except OSError as error:
            return f"{self.region_hook}, which would renew them, can't be read: {error.strerror}; check --region-hook"
        if reason := elf.defect(content, kind="program"):
            return f"{self.region_hook}, which would renew them, can't be used: {reason}; check --region-hook"
        return content

    @property
    def _floor(self) -> tuple[int, int]:
        major, minor = self.glibc_floor.split(".")
        return int(major), int(minor)

    def _paths(self) -> Sequence[Path]:
        if not self.hami_core.is_dir():
            return [self.hami_core]
        return sorted(path for path in self.hami_core.glob(_LIBRARIES) if path.is_file())


def _preference(release: Release) -> tuple[bool, bool, tuple[tuple[int, ...], str]]:
    """Regions first, then the right GPU's limit, then what is new."""
    return release.layout is not None, release.maps_gpus, release.age


def _read(path: Path, entries: Sequence[Entry]) -> Library:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"HAMi-core's library {path} can't be used: {error.strerror or error}. {_ADVICE}") from error
    return Library(path, content, recognise(content, entries))
