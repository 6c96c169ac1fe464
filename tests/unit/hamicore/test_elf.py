"""A library that is not whole is recognised without loading it."""

import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.hamicore.elf import defect


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
