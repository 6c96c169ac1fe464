"""A container use with its region, and hami-region-hook as a runtime calls it."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore.region import LAYOUTS, Layout, Region, region

CLAIM = "team-a/train"
POD = "3f2c7d0e-9a64-4c1e-8f0b-0a1b2c3d4e5f"
ANYBODY = 0xFFFFFFFF
CONTAINERD, CRIO = "io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"

ATTRIBUTES = {
    # Linux include/uapi/linux/posix_acl_xattr.h: version 2; tag, permissions and id of owner, user 1000, group, mask, others
    "system.posix_acl_access": struct.pack(
        "<I" + "HHI" * 5, 2, 1, 6, ANYBODY, 2, 0, 1000, 4, 6, ANYBODY, 16, 6, ANYBODY, 32, 6, ANYBODY
    ),
    "security.capability": struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0),  # CAP_SYS_ADMIN, effective
    "user.note": b"left by a container",
}
"""What a container can set on its region, by extended attribute."""
HOLDERS = {
    "opened for writing": "f = os.open(p, os.O_RDWR)",
    "mapped for writing": "f = os.open(p, os.O_RDWR); m = mmap.mmap(f, 0); os.close(f)",
    "opened for writing, mapped for reading": "f = os.open(p, os.O_RDWR); m = mmap.mmap(f, 0, prot=1); os.close(f)",
}
"""What keeps a region in use."""
READERS = {
    "opened for reading": "f = os.open(p, os.O_RDONLY)",
    "mapped for reading": "f = os.open(p, os.O_RDONLY); m = mmap.mmap(f, 0, prot=1); os.close(f)",
}
"""What does not: a monitor."""


def pristine(layout: Layout = LAYOUTS["1.2"]) -> Region:
    """For one GPU with 1000 MiB."""
    return region(layout, {"GPU-1": Limit(1000, 30)})


def content(made: Region) -> bytes:
    """All of it."""
    data = bytearray(made.size)
    for offset, part in made.parts:
        data[offset : offset + len(part)] = part
    return bytes(data)


def state(**annotations: Any) -> bytes:
    """What a runtime writes to its hooks."""
    found = {"ociVersion": "1.0.2", "id": "x", "status": "created", "pid": 1, "bundle": "/run/x"}
    return json.dumps(found | ({"annotations": annotations} if annotations else {})).encode()


@dataclass(frozen=True)
class Ended:
    """How a run of the hook ended."""

    status: int
    message: str


class Use:
    """The files of one container use in a folder, and the hook for it."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.program = program
        self.made, self.region = pristine(), folder / "use-0.region"
        self.region.write_bytes(b"\x4e\xf7\x2f\x01" + b"used" * 10_000)
        self.region.chmod(0o666)

    def arguments(self, *pods: str) -> list[str]:
        """The command line in the claim's CDI spec."""
        content = (word for at, data in self.made.pieces for word in ("--content", f"{at}:{data.hex()}"))
        known = ["--region", str(self.region), "--size", str(self.made.size), *content, "--claim", CLAIM]
        return [str(self.program), *known, *(word for uid in pods for word in ("--pod", uid))]

    def run(self, *pods: str, stdin: bytes | None = None, **options: Any) -> Ended:
        """Call it. Whatever happens, it says nothing on stdout and at most one line on stderr."""
        return call(self.arguments(*pods), state() if stdin is None else stdin, **options)

    @property
    def in_memory(self) -> bool:
        """Whether the region is in a tmpfs."""
        kind = subprocess.run(["stat", "-f", "-c", "%T", self.region], capture_output=True, check=True, timeout=10)
        return kind.stdout == b"tmpfs\n"

    def is_renewed(self) -> bool:
        """Whether the region is pristine and any user may use it."""
        return self.region.read_bytes() == content(self.made) and self.region.stat().st_mode & 0o7777 == 0o666


def call(arguments: list[str], stdin: bytes, **options: Any) -> Ended:
    """Call the hook with nothing in its environment; the sanitizers of a test build say it when they find something."""
    ended = subprocess.run(
        arguments,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=30,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
        **options,
    )
    message = ended.stderr.decode("ascii")
    assert ended.stdout == b""
    assert ended.returncode in {0, 1}, message
    assert (message == "") if ended.returncode == 0 else message.startswith("hami-region-hook: "), message
    assert message.count("\n") == ended.returncode, message
    return Ended(ended.returncode, message)


@contextmanager
def process(action: str, path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that does something to a file and then keeps what it has."""
    code = f"import mmap, os, sys; p = sys.argv[1]; {action}; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-I", "-S", "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
            yield running
        finally:
            running.kill()
