"""Is this file a complete shared object? A library cut short by a full disk or a broken copy must never be preloaded.

Source: the ELF-64 object file format, System V gABI chapters 4 and 5; `struct` formats are those of <elf.h>.
"""

import platform
import struct
from typing import Final

_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""e_machine of the architectures that HAMi-core is built for."""
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_ET_DYN: Final = 3
_PT_LOAD: Final = 1
_PT_DYNAMIC: Final = 2
_SHT_NOBITS: Final = 8


def defect(data: bytes, machine: str | None = None) -> str | None:
    """Why these bytes are not a whole ELF64 shared object for this machine; None if they are.

    Args:
        data: The whole file.
        machine: As `uname -m` says; this machine by default.
    """
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        return f"it is no ELF file ({len(data)} bytes)"
    ident, kind, arch, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = _HEADER.unpack_from(data)
    machine = machine or platform.machine()
    if ident[4] != 2 or ident[5] != 1 or kind != _ET_DYN:
        return "it is no 64-bit little-endian shared object"
    if arch != _MACHINES.get(machine):
        return f"it is built for another machine (e_machine {arch}) than this {machine}"
    if phsize != _PROGRAM.size or (shoff and shsize != _SECTION.size):
        return "its ELF header is damaged"
    needed = max(phoff + phnum * phsize, shoff + shnum * shsize)
    if needed <= len(data):
        programs = [_PROGRAM.unpack_from(data, phoff + index * phsize) for index in range(phnum)]
        sections = [_SECTION.unpack_from(data, shoff + index * shsize) for index in range(shnum if shoff else 0)]
        if not {_PT_LOAD, _PT_DYNAMIC} <= {program[0] for program in programs}:
            return "it has nothing to load"
        ends = [offset + size for _, _, offset, _, _, size, *_ in programs]
        ends += [offset + size for _, kind, _, _, offset, size, *_ in sections if kind != _SHT_NOBITS]
        needed = max(ends)
    return f"it is cut short: {len(data)} bytes of at least {needed}" if needed > len(data) else None
