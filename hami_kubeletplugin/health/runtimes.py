"""Whether the container runtime reads CDI specs where we write them.

It is the runtime that runs the daemon's own container: the parent of a container's first process is containerd's shim, which says
at which address its containerd listens, or CRI-O's conmon. The configuration is read where the runtime reads it, in its own root
directory. That needs hostPID; whatever can't be seen or understood is no reason to say anything. Blocks.

Any container can call a process like the runtime. So only one that sees the same mounts as our shim counts, as what started it
does: a container has its own, and a file of a container could say anything, or hang.

Contracts: containerd internal/cri/config; containerd-shim's -address; see also `runtime_config`.
"""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.health.runtime_config import (
    CONTAINERD,
    CRI,
    DIRECTORIES,
    absolute,
    beside,
    containerd_files,
    crio_files,
    inside,
    option,
    process,
    same,
    table,
)

PROC: Final = Path("/proc")
_ADDRESS: Final = "/run/containerd/containerd.sock"


def check_cdi_directory(directory: Path, *, proc: Path = PROC, parent: int | None = None) -> None:
    """See that the runtime reads a directory, as far as that can be known.

    Args:
        directory: Where we write specs.
        proc: Where procfs is.
        parent: The process that started us.

    Raises:
        StorageError: It doesn't; containers with our devices would not start, or without GPU and limits.
    """
    for name, pid, sections in _runtimes(proc, os.getppid() if parent is None else parent):
        # One file may replace another's section or add to it, which differs by version: one that allows it is enough.
        read = {str(path) for section in sections for path in section.get("cdi_spec_dirs", DIRECTORIES)}
        root = proc / str(pid) / "root"
        if read and not any(same(inside(root, path), directory) for path in read):
            raise StorageError(
                f"{name} reads CDI specs in {', '.join(sorted(read))} only, and not in {directory} (--cdi-dir), so containers "
                "with GPUs would not start: add it to cdi_spec_dirs in its configuration and restart it, or set --cdi-dir, and "
                "the DaemonSet's mount, to one of those"
            )


def _runtimes(proc: Path, parent: int) -> Iterator[tuple[str, int, list[Mapping[str, Any]]]]:
    """The runtime that runs us: its name, PID, and the sections about CDI in its configuration. At most one."""
    name, words = process(proc, parent)
    if name.startswith("containerd-shim"):
        address = option(words, "-address", "--address")
        for pid in beside(proc, parent, "containerd"):
            options = process(proc, pid)[1]
            config = absolute(proc, pid, option(options, "-c", "--config") or CONTAINERD)
            files = list(containerd_files(proc / str(pid) / "root", config))
            told = (table(file, "grpc").get("address") for file in files)
            if address == (option(options, "-a", "--address") or next(filter(None, told), _ADDRESS)):
                sections = [table(file, "plugins", section) for file in files for section in CRI]
                yield "containerd", pid, [section for section in sections if section] or [{} for _ in files[:1]]
                return
    elif name in {"conmon", "conmonrs"}:
        for pid in islice(beside(proc, parent, "crio"), 1):
            root = proc / str(pid) / "root"
            files = crio_files(root)
            sections = [table(file, "crio", "runtime") for file in files]
            yield (
                "CRI-O",
                pid,
                [section for section in sections if "cdi_spec_dirs" in section] or [{} for _ in files[:1]],
            )
