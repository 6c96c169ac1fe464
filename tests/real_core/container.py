"""A container with two GPUs of which it may use parts, as far as HAMi-core sees one: its region, its variables, its programs."""

import json
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import CUDA_REDIRECT, MIB
from hami_kubeletplugin.hamicore.contract import variables
from hami_kubeletplugin.hamicore.reading import read_region, total
from hami_kubeletplugin.hamicore.region import LAYOUTS
from hami_kubeletplugin.hamicore.region import region as region_of

UUIDS: Final = ("GPU-1a2b3c4d-0000-4000-8000-000000000001", "GPU-1a2b9f00-0000-4000-8000-000000000002")
"""Of tests/native/fake_gpus.h, in the order of their PCI bus ids."""
LIMITS: Final = (4000, 1000)
"""MiB."""
LAYOUT: Final = LAYOUTS["1.2"]
CONTEXT: Final = 100
"""MiB that a process's context takes of a GPU (fake_gpus.h)."""

_PATIENCE: Final = 30
_GPUS, _PROCESSES = len(UUIDS), 64
_STATE: Final = struct.Struct(f"<{_GPUS}Q" + f"{_GPUS + 1}i4x{2 * _GPUS}Q" * _PROCESSES)
_SLOTS, _SLOT, _USED, _TOTAL = 1856, 1960, (8, 64), 32
"""Offsets and sizes of `shrreg_proc_slot_t` in layout 1.2, and of what it says of one GPU."""


@dataclass(frozen=True)
class Built:
    """The library that hack/hami-core built, and the folder with what hack/native did."""

    library: Path
    native: Path


class Program:
    """tests/native/cuda_program.c with the library preloaded. Each line that it is told has an answer."""

    def __init__(self, running: "subprocess.Popen[bytes]") -> None:
        self._running = running

    def __call__(self, *words: object) -> str:
        """Tell it a line, and wait for its answer."""
        self.tell(*words)
        return self.answer()

    def tell(self, *words: object) -> None:
        """Tell it a line, if it lives."""
        assert self._running.stdin is not None
        with suppress(BrokenPipeError):
            self._running.stdin.write(f"{' '.join(map(str, words))}\n".encode())

    def answer(self) -> str:
        """Of the line that it was told last; "ended" if it did not live to give one."""
        assert self._running.stdout is not None
        return self._running.stdout.readline().decode().rstrip("\n") or "ended"

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._running.kill()
        self._running.wait(_PATIENCE)


@dataclass
class Container:
    """What is in force in it, and what was wrong.

    Attributes:
        built: The programs.
        folder: An empty one.
        cores: Percent of each GPU; 0 for no limit.
        wrong: What was not as it has to be, in words.
    """

    built: Built
    folder: Path
    cores: tuple[int, int] = (0, 0)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.region.touch()
        self.start()

    @property
    def region(self) -> Path:
        """Its path."""
        return self.folder / "use-0.region"

    @property
    def _state(self) -> Path:
        return self.folder / "gpus"

    @property
    def _limits(self) -> dict[str, Limit]:
        return {uuid: Limit(memory, cores) for uuid, memory, cores in zip(UUIDS, LIMITS, self.cores, strict=True)}

    def start(self) -> None:
        """What happens before its first process: the hook writes the region anew."""
        made = region_of(LAYOUT, self._limits)
        pieces = [word for at, data in made.pieces for word in ("--content", f"{at}:{data.hex()}")]
        known = ["--region", str(self.region), "--size", str(made.size), *pieces, "--claim", "ns/claim"]
        subprocess.run(
            [str(self.built.native / "hami-region-hook"), *known],
            input=json.dumps({"ociVersion": "1.0.2", "id": "x", "status": "created", "pid": 1, "bundle": "/run/x"}),
            text=True,
            check=True,
            timeout=_PATIENCE,
        )

    def remove_region(self) -> bytes:
        """What was in it."""
        content = self.region.read_bytes()
        self.region.unlink()
        return content

    @contextmanager
    def program(self) -> Iterator[Program]:
        """A program with the variables that the driver gives it; what it changes of them, it is told to."""
        environment = variables(list(self._limits.values()), region=str(self.region), policy=Policy(log_level=0)) | {
            CUDA_REDIRECT: str(self.built.library),
            "LD_PRELOAD": str(self.built.library),
            "LD_LIBRARY_PATH": str(self.built.native / "gpus"),
            "FAKE_GPUS": str(self._state),
        }
        log = self.folder / "log"
        with (
            log.open("a") as stderr,
            subprocess.Popen(
                [self.built.native / "gpus/cuda_program"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
            ) as running,
        ):
            try:
                yield Program(running)
            finally:
                running.kill()

    @property
    def log(self) -> str:
        """What the programs said on stderr."""
        return (self.folder / "log").read_text()

    @property
    def most(self) -> tuple[int, ...]:
        """MiB of each GPU that were held at once, of all processes, when an allocation succeeded."""
        return tuple(size // MIB for size in self._read()[:_GPUS])

    @property
    def used(self) -> tuple[int, ...]:
        """MiB of each GPU that living processes hold now, by the driver."""
        found = [0] * _GPUS
        state, each = self._read()[_GPUS:], 1 + 3 * _GPUS
        for at in range(0, len(state), each):
            pid, *rest = state[at : at + each]
            for gpu in range(_GPUS) if pid and Path(f"/proc/{pid}").exists() else ():
                found[gpu] += rest[_GPUS + gpu] // MIB + (CONTEXT if rest[gpu] > 0 else 0)
        return tuple(found)

    @property
    def booked(self) -> tuple[int, ...]:
        """MiB of each GPU that the region says are in use, by NVML's number."""
        data = self.region.read_bytes()
        (count,) = struct.unpack_from("<i", data, LAYOUT.tail)
        slots = range(_SLOTS, _SLOTS + count * _SLOT, _SLOT)
        first, size = _USED
        return tuple(
            sum(struct.unpack_from("<Q", data, slot + first + size * gpu + _TOTAL)[0] for slot in slots) // MIB
            for gpu in range(_GPUS)
        )

    @property
    def told(self) -> tuple[int, ...]:
        """The same as the daemon reads it."""
        content = read_region(self.region, layout=None, gpus=_GPUS, pids=None)
        assert content is not None
        return tuple(total(content.processes, gpu, 1 << 50).total // MIB for gpu in range(_GPUS))

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Note it if it is another."""
        if found != wanted:
            self.wrong.append(f"{what}: {found}, not {wanted}")

    def check(self, when: str) -> None:
        """No GPU was ever used beyond its limit, and each one's use is booked."""
        for gpu, (most, limit) in enumerate(zip(self.most, LIMITS, strict=True)):
            if most > limit:
                self.wrong.append(f"{when}: {most} MiB of GPU {gpu}, whose limit is {limit}")
        self.expect(f"{when}: booked", self.booked, self.used)
        self.expect(f"{when}: told by the daemon", self.told, self.used)

    def _read(self) -> tuple[int, ...]:
        data = self._state.read_bytes() if self._state.exists() else b""
        return _STATE.unpack(data.ljust(_STATE.size, b"\0"))
