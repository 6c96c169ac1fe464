"""A library that is not whole is recognised without loading it."""

import contextlib
import platform
import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.hamicore.elf import defect, needed_glibc


def without_sections(data: bytes) -> bytes:
    """As `strip --strip-section-headers` leaves it."""
    return data[:40] + struct.pack("<Q", 0) + data[48:58] + struct.pack("<HHH", 0, 0, 0) + data[64:]


def test_a_whole_library_has_no_defect(built_library: bytes) -> None:
    """What the compiler made is accepted, with and without section headers."""
    assert defect(built_library) is None
    assert defect(without_sections(built_library)) is None


@given(cut=st.floats(0, 1, exclude_max=True))
def test_every_cut_is_seen(built_library: bytes, cut: float) -> None:
    """However short the file was cut, it is refused."""
    assert defect(built_library[: int(cut * len(built_library))])


def test_a_cut_is_seen_without_section_headers(built_library: bytes) -> None:
    """The loadable segments alone tell that bytes are missing."""
    assert "cut short" in (defect(without_sections(built_library)[:0x2000]) or "")


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"\x7fELG", "no ELF"),
        (4, b"\x01", "no 64-bit"),
        (5, b"\x02", "no 64-bit"),
        (16, struct.pack("<H", 2), "shared object"),
        (18, struct.pack("<H", 8), "another machine"),
        (54, struct.pack("<H", 1), "damaged"),
        (56, struct.pack("<H", 0), "nothing to load"),
    ],
)
def test_another_kind_of_file_is_named(built_library: bytes, offset: int, value: bytes, reason: str) -> None:
    """Class, byte order, type, machine and header sizes are checked, each with its reason."""
    data = built_library[:offset] + value + built_library[offset + len(value) :]
    assert reason in (defect(data) or "")


def test_a_library_for_the_other_architecture_is_refused(built_library: bytes) -> None:
    """An amd64 library in an arm64 image (or the reverse) is named as such."""
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    assert "another machine" in (defect(built_library, other) or "")


def test_a_program_is_no_library_but_may_be_a_program(built_program: bytes, built_library: bytes) -> None:
    """What is run on the host may be linked to a fixed address or not; a library that is preloaded may not."""
    assert defect(built_program, kind="program") is None
    assert "shared object" in (defect(built_program) or "")
    assert "cut short" in (defect(built_program[:-1], kind="program") or "")
    assert "no ELF" in (defect(b"#!/bin/sh", kind="program") or "")


@pytest.mark.parametrize("strip", [False, True])
def test_the_needed_glibc_is_the_newest_symbol_version(tmp_path: Path, strip: bool) -> None:
    """As `objdump -p` lists them, with or without section headers; numbers are compared as numbers."""
    source, library = tmp_path / "v.c", tmp_path / "v.so"
    # memcpy@2.14 and, by its old version, printf@2.2.5: 2.14 is newer than 2.2 and than 2.5.
    source.write_text(
        "#include <stdio.h>\n#include <string.h>\nvoid f(char *a, char *b, size_t n) { memcpy(a, b, n); printf(a); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source], check=True, timeout=60)
    listing = subprocess.run(
        ["objdump", "-p", library], check=True, timeout=60, stdout=subprocess.PIPE, text=True
    ).stdout
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", listing)]
    data = library.read_bytes()
    assert needed_glibc(without_sections(data) if strip else data) == max(versions)[:2]


def test_a_library_that_needs_no_glibc(tmp_path: Path) -> None:
    """Nothing to compare with a floor."""
    (tmp_path / "v.c").write_text("int f(void) { return 1; }\n")
    arguments = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", "v.so", "v.c"]
    subprocess.run(arguments, cwd=tmp_path, check=True, timeout=60)
    assert needed_glibc((tmp_path / "v.so").read_bytes()) is None


@given(damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), max_size=30))
def test_damaged_symbol_versions_never_hang_or_crash(built_library: bytes, damage: list[tuple[float, bytes]]) -> None:
    """Whatever stands in a file that looks whole: a version, none, or one kind of error."""
    data = bytearray(built_library)
    for where, what in damage:
        at = int(where * (len(data) - 64 - len(what))) + 64
        data[at : at + len(what)] = what
    with contextlib.suppress(ValueError):
        needed_glibc(bytes(data))


def test_an_offset_beyond_all_files_is_damage(built_library: bytes) -> None:
    """Each program header says that its part begins at 2^64 - 1."""
    data = bytearray(built_library)
    first, size, count = (struct.unpack_from(kind, data, at)[0] for kind, at in (("<Q", 32), ("<H", 54), ("<H", 56)))
    for header in range(first, first + count * size, size):
        struct.pack_into("<Q", data, header + 8, 2**64 - 1)
    with pytest.raises(ValueError, match="symbol versions are damaged"):
        needed_glibc(bytes(data))
