"""Is this file a whole library or program, and which glibc does it need?

A library that was cut short by a full disk, or that a container's loader can't load, must never be preloaded.

Source: the ELF-64 object file format, System V gABI chapters 4 and 5; symbol versions as in the LSB core, part "Symbol
Versioning"; `struct` formats are those of <elf.h>.
"""

import platform
import re
import struct
from collections.abc import Iterator
from typing import Final, Literal

_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""e_machine of the architectures that HAMi-core is built for."""
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_NEEDED_FILE: Final = struct.Struct("<HHIII")
_NEEDED_VERSION: Final = struct.Struct("<IHHII")
_ET_EXEC: Final = 2
_ET_DYN: Final = 3
_PT_LOAD: Final = 1
_PT_DYNAMIC: Final = 2
_SHT_NOBITS: Final = 8
_DT_STRTAB: Final = 5
_DT_VERNEED: Final = 0x6FFFFFFE
_MOST: Final = 1000
"""So many entries of a chain are read: a damaged one may have no end."""
_GLIBC: Final = re.compile(rb"GLIBC_(\d+)\.(\d+)(?:\.\d+)?\0")

Kind = Literal["library", "program"]


def defect(data: bytes, machine: str | None = None, *, kind: Kind = "library") -> str | None:
    """Why these bytes are not a whole ELF64 file for this machine; None if they are.

    Args:
        data: The whole file.
        machine: As `uname -m` says; this machine by default.
        kind: A shared object, or something that can be run.
    """
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        return f"it is no ELF file ({len(data)} bytes)"
    ident, etype, arch, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = _HEADER.unpack_from(data)
    machine = machine or platform.machine()
    if ident[4] != 2 or ident[5] != 1 or etype not in ({_ET_DYN} if kind == "library" else {_ET_DYN, _ET_EXEC}):
        return f"it is no 64-bit little-endian {'shared object' if kind == 'library' else kind}"
    if arch != _MACHINES.get(machine):
        return f"it is built for another machine (e_machine {arch}) than this {machine}"
    if phsize != _PROGRAM.size or (shoff and shsize != _SECTION.size):
        return "its ELF header is damaged"
    needed = max(phoff + phnum * phsize, shoff + shnum * shsize)
    if needed <= len(data):
        programs = [_PROGRAM.unpack_from(data, phoff + index * phsize) for index in range(phnum)]
        sections = [_SECTION.unpack_from(data, shoff + index * shsize) for index in range(shnum if shoff else 0)]
        if not ({_PT_LOAD, _PT_DYNAMIC} if kind == "library" else {_PT_LOAD}) <= {program[0] for program in programs}:
            return "it has nothing to load"
        ends = [offset + size for _, _, offset, _, _, size, *_ in programs]
        ends += [offset + size for _, stype, _, _, offset, size, *_ in sections if stype != _SHT_NOBITS]
        needed = max(ends)
    return f"it is cut short: {len(data)} bytes of at least {needed}" if needed > len(data) else None


def needed_glibc(data: bytes) -> tuple[int, int] | None:
    """The oldest glibc that can load a library, from the symbol versions that it needs; None if it needs none.

    GLIBC_PRIVATE is left out: it says nothing about a version.

    Args:
        data: The whole file, without `defect`.

    Raises:
        ValueError: Its symbol versions are damaged.
    """
    try:
        return max(_needed_versions(data), default=None)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"its symbol versions are damaged: {error}") from error


def _needed_versions(data: bytes) -> Iterator[tuple[int, int]]:
    """All GLIBC_x.y of the version needs: a chain of files, each with a chain of versions."""
    programs = _programs(data)
    tags = {
        tag: value
        for kind, offset, _, size in programs
        if kind == _PT_DYNAMIC
        for tag, value in _tags(data, offset, size)
    }
    if _DT_VERNEED not in tags:
        return
    strings = _offset(programs, tags.get(_DT_STRTAB, -1))
    at = _offset(programs, tags[_DT_VERNEED])
    for _ in range(_MOST):
        _, count, _, first, following = _NEEDED_FILE.unpack_from(data, at)
        inner = at + first
        for _ in range(min(count, _MOST)):
            _, _, _, name, further = _NEEDED_VERSION.unpack_from(data, inner)
            if found := _GLIBC.match(data, strings + name):
                yield int(found[1]), int(found[2])
            inner += further
        if not following:
            return
        at += following


def _programs(data: bytes) -> list[tuple[int, int, int, int]]:
    """(type, offset, address, bytes in the file) of each program header."""
    header = _HEADER.unpack_from(data)
    every = (_PROGRAM.unpack_from(data, header[5] + index * _PROGRAM.size) for index in range(header[10]))
    return [(kind, offset, address, size) for kind, _, offset, address, _, size, *_ in every]


def _tags(data: bytes, offset: int, size: int) -> Iterator[tuple[int, int]]:
    for index in range(size // _DYNAMIC.size):
        yield _DYNAMIC.unpack_from(data, offset + index * _DYNAMIC.size)


def _offset(programs: list[tuple[int, int, int, int]], address: int) -> int:
    """Where in the file something is that is loaded at an address."""
    for kind, offset, start, size in programs:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise IndexError(f"nothing is loaded at {address:#x}")
