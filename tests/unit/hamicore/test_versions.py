"""A library is what its digest says; the broken release and what containers can't load are refused."""

import hashlib
import json
import struct
import subprocess
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.versions import read_versions, recognise, unfit

FLOOR = (2, 31)


def entries(library: bytes, **more: str) -> bytes:
    """A versions.json that knows a library."""
    return json.dumps([{"sha256": hashlib.sha256(library).hexdigest(), **more}]).encode()


def layout_of(library: bytes, versions: bytes | None) -> str | None:
    """Name of the layout that is found."""
    release = recognise(library, read_versions(versions, "versions.json"))
    return release.layout.name if release.layout else None


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        ("2.4.0", "0"),
        ("2.4.1", "1.1"),
        ("2.8.0", "1.1"),
        ("2.8.2", "1.2"),
        ("2.10.0", "1.2"),
        ("v2.10.0", "1.2"),
        ("2.8.1", None),
        ("2.11.0", None),
        ("2.10", None),
    ],
)
def test_a_release_tells_its_layout(built_library: bytes, version: str, layout: str | None) -> None:
    """Releases whose header was read; a newer or unheard-of one has none, since a guess could lift the limit."""
    assert layout_of(built_library, entries(built_library, version=version)) == layout


def test_a_layout_that_is_named_wins(built_library: bytes) -> None:
    """For builds of one's own and for releases that are newer than this program; a layout that nobody knows is none."""
    assert layout_of(built_library, entries(built_library, version="main-8f3a89c", layout="1.2")) == "1.2"
    assert layout_of(built_library, entries(built_library, version="2.10.0", layout="1.1")) == "1.1"
    assert layout_of(built_library, entries(built_library, version="2.10.0", layout="9")) is None


def test_a_build_without_the_regions_size_has_no_layout(built_library: bytes) -> None:
    """A release whose code has another region than its header had when it was read: none is better than a wrong one."""
    other = built_library.replace(struct.pack("<I", 2008952), struct.pack("<I", 2008960))
    for machine, layout in (("x86_64", None), ("aarch64", "1.2")):
        release = recognise(other, read_versions(entries(other, version="2.10.0"), "versions.json"), machine)
        assert (release.layout.name if release.layout else None) == layout
    assert layout_of(other, entries(other, version="2.10.0", layout="1.2")) == "1.2"


def test_a_patch_of_ours_is_named_and_tells_that_gpus_are_mapped(built_library: bytes) -> None:
    """A patch that nobody knows is shown, and promises nothing; without one there is nothing to show."""
    for patch, name, maps in (
        ("hami-dra-1", "2026.06.30+8f3a89c-hami-dra-1", True),
        ("hami-dra-0", "2026.06.30+8f3a89c-hami-dra-0", False),
        (None, "2026.06.30+8f3a89c", False),
    ):
        more = {"patch": patch} if patch else {}
        versions = entries(built_library, version="2026.06.30+8f3a89c", layout="1.2", **more)
        release = recognise(built_library, read_versions(versions, "versions.json"))
        assert (release.name, str(release), release.maps_gpus) == (name, f"version {name}", maps)
        assert not release.locks_node
    assert not recognise(built_library, ()).maps_gpus


def test_another_digest_is_another_library(built_library: bytes) -> None:
    """One byte more, and nothing is known; nor without a versions.json."""
    versions = entries(built_library, version="2.10.0")
    for library, known in ((built_library + b"\0", versions), (built_library, None), (built_library, b"[]")):
        release = recognise(library, read_versions(known, "versions.json"))
        assert (release.version, release.layout) == (None, None)
        assert hashlib.sha256(library).hexdigest() in str(release)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'[{"version": "1"}]',
        b'[{"sha256": "abc", "version": "1"}]',
        b'[{"sha256": "' + b"0" * 64 + b'", "version": "1", "extra": 1}]',
        b'[{"sha256": "' + b"0" * 64 + b'", "version": "1", "patch": "no word"}]',
    ],
)
def test_a_broken_versions_file_is_an_error(content: bytes) -> None:
    """Not "unknown": the image was meant to have regions. The message names file and field."""
    with pytest.raises(StorageError, match=r"/v/versions\.json: .*must be a list of sha256 and version"):
        read_versions(content, "/v/versions.json")


def compiled(folder: Path, source: str) -> bytes:
    """A shared object."""
    (folder / "v.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", "v.so", "v.c"], cwd=folder, check=True, timeout=60)
    return (folder / "v.so").read_bytes()


def test_the_broken_release_is_refused_by_name(built_library: bytes) -> None:
    """2.8.1, whatever its build."""
    release = recognise(built_library, read_versions(entries(built_library, version="v2.8.1"), "v"))
    assert "HAMi-core 2.8.1" in (unfit(built_library, release, floor=FLOOR) or "")


@pytest.mark.parametrize(
    ("sizes", "refused"), [((2_008_984,), True), ((2_008_952,), False), ((), False), ((2_008_952, 2_008_984), False)]
)
def test_the_broken_release_is_refused_by_its_region(tmp_path: Path, sizes: tuple[int, ...], refused: bool) -> None:
    """In x86-64 code the size of its region is an immediate; together with the good size it may be anything."""
    calls = "".join(f"f(0, {size});" for size in sizes)
    library = compiled(tmp_path, f"int f(void *, long); void g(void) {{ {calls} }}\n")
    assert [struct.pack("<I", size) in library for size in sizes] == [True] * len(sizes)
    reason = unfit(library, recognise(library, ()), floor=FLOOR, machine="x86_64")
    assert ("2.8.1" in (reason or "")) == refused


def test_a_library_that_needs_a_newer_glibc_is_refused(tmp_path: Path) -> None:
    """In a container with an older one every program would die; the floor may be raised."""
    library = compiled(tmp_path, "#include <string.h>\nvoid f(char *a, char *b, long n) { memcpy(a, b, n); }\n")
    release = recognise(library, ())
    assert unfit(library, release, floor=(2, 14)) is None
    reason = unfit(library, release, floor=(2, 13)) or ""
    assert "needs glibc 2.14" in reason
    assert "--glibc-floor" in reason


def test_a_library_that_is_not_whole_is_refused_first(built_library: bytes) -> None:
    """Whatever its name says."""
    cut = built_library[:-1]
    assert "cut short" in (unfit(cut, recognise(cut, ()), floor=FLOOR) or "")
