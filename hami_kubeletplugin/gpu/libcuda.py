"""Whether the NVIDIA container runtime brings libcuda.so.1 into containers of this node, seen in the daemon's own container.

The daemon's image has no libcuda, so if there is one, the runtime put it there, as it will in other containers that it starts.
Read only: loading it would start CUDA in the daemon. Blocks: call it in a thread.
"""

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBCUDA: Final = "libcuda.so.1"
_CACHE: Final = "etc/ld.so.cache"
_CACHED: Final = re.compile(rb"/[^\0]*/libcuda\.so\.1(?=\0)")
"""The cache ends in a table of strings, each with its NUL (glibc sysdeps/generic/dl-cache.h); no more of its form is needed."""
_CACHE_LIMIT: Final = 8 * 1024 * 1024
"""Bytes; usual are some 20 to 200 KB."""


def find_libcuda(root: Path = Path("/")) -> Path | None:
    """Where the loader would find libcuda.so.1: in its usual directories, or where its cache says; None if nowhere."""
    for path in (*_usual(root), *_cached(root)):
        try:
            with path.open("rb") as file:
                # A container without the driver may still have an empty file: what runtimes mount a library onto.
                if file.read(4) == b"\x7fELF":
                    return path
        except OSError:
            continue
    return None


def _usual(root: Path) -> Iterator[Path]:
    for top in ("lib", "usr/lib"):
        for folder in (f"{top}/{platform.machine()}-linux-gnu", f"{top}64", top):
            yield root / folder / LIBCUDA


def _cached(root: Path) -> Iterator[Path]:
    try:
        with (root / _CACHE).open("rb") as file:
            content = file.read(_CACHE_LIMIT)
    except OSError:
        return
    for match in _CACHED.finditer(content):
        yield root / match[0].decode(errors="surrogateescape").lstrip("/")
