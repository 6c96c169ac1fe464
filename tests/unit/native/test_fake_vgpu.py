"""the fake of libvgpu.so treats the shared region as the library does: what end-to-end tests see, they see through it."""

import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.hamicore.contract import variables
from hami_kubeletplugin.hamicore.region import LAYOUTS, region

Report = dict[str, str]
LAYOUT = LAYOUTS["1.2"]
LIMITS = {"GPU-a": Limit(1000, 30), "GPU-b": Limit(2000)}
SLOTS, PID = 1856, 0


class Preloaded:
    """Programs with the fake preloaded, and the region that they meet."""

    def __init__(self, library: Path, path: Path) -> None:
        self.path, self._library = path, library

    def environment(self, more: Mapping[str, object]) -> dict[str, str]:
        """Nothing but what is named."""
        known = {"LD_PRELOAD": self._library, "VGPU_REPORT": 1, "CUDA_DEVICE_MEMORY_SHARED_CACHE": self.path, **more}
        return {name: str(value) for name, value in known.items() if value is not None}

    def run(self, status: int = 0, **more: object) -> Report:
        """What it says in a program that ends at once."""
        ended = subprocess.run(
            ["/bin/true"], env=self.environment(more), check=False, capture_output=True, text=True, timeout=30
        )
        assert (ended.returncode, ended.stderr) == (status, "")
        return report(ended.stdout.splitlines())

    @contextmanager
    def process(self, mib: int, **more: object) -> Iterator["subprocess.Popen[str]"]:
        """A program that uses so much memory until it is ended."""
        environment = self.environment(more | {"VGPU_ALLOC": mib})
        with subprocess.Popen(["/bin/sleep", "60"], env=environment, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                lines: list[str] = []
                while not lines or not lines[-1].startswith("alloc="):
                    lines.append(running.stdout.readline())
                    assert lines[-1], lines
                assert lines[-1] == "alloc=1\n"
                yield running
            finally:
                running.kill()

    def made_by_the_driver(self, layout: str = "1.2") -> None:
        """A region as it is when a container starts."""
        made = region(LAYOUTS[layout], LIMITS, Policy("disable", "high"))
        data = bytearray(made.size)
        for offset, part in made.parts:
            data[offset : offset + len(part)] = part
        self.path.write_bytes(data)

    def patch(self, offset: int, data: bytes) -> None:
        """Change some bytes of the region."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)


def report(lines: list[str]) -> Report:
    """Key and value of each line."""
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def preloaded(native: Path, tmp_path: Path) -> Preloaded:
    """No region yet."""
    return Preloaded(native / "libvgpu.so", tmp_path / "region")


def test_it_is_silent_unless_asked(preloaded: Preloaded) -> None:
    """Every program of a container has it preloaded."""
    assert preloaded.run(VGPU_REPORT=None) == {}
    assert not preloaded.path.exists()


def test_the_first_process_sets_the_limits(preloaded: Preloaded) -> None:
    """They stay, whatever later ones have in their environment."""
    first = preloaded.run(CUDA_DEVICE_MEMORY_LIMIT_0="1000m", CUDA_DEVICE_SM_LIMIT_0=30)
    assert (first["cache.first"], first["consistent"]) == ("1", "1")
    assert preloaded.path.stat().st_size == LAYOUT.size + 1
    later = preloaded.run(CUDA_DEVICE_MEMORY_LIMIT_0="4000m")
    assert (later["cache.first"], later["consistent"]) == ("0", "0")
    assert (later["memory.0"], later["cores.0"]) == (str(1000 * MIB), "30")


def test_the_drivers_region_is_taken_for_initialised(preloaded: Preloaded) -> None:
    """Limits, UUIDs, priority and switch are the region's; the driver's variables agree with it."""
    preloaded.made_by_the_driver()
    told = variables(list(LIMITS.values()), region=str(preloaded.path))
    environments: tuple[tuple[dict[str, Any], str], ...] = ((told, "1"), ({}, "0"))
    for environment, consistent in environments:
        found = preloaded.run(**environment)
        assert (found["cache.first"], found["consistent"]) == ("0", consistent)
        assert [found[f"memory.{i}"] for i in (0, 1)] == [str(1000 * MIB), str(2000 * MIB)]
        assert (found["cores.0"], found.get("cores.1")) == ("30", None)
        assert (found["uuid.0"], found["uuid.1"], found["region.devices"]) == ("GPU-a", "GPU-b", "2")
        assert (found["region.priority"], found["region.switch"], found["region.recent_kernel"]) == ("0", "0", "0")
        assert "error" not in found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts")
def test_without_any_variable_the_default_path_is_used(preloaded: Preloaded, native: Path, tmp_path: Path) -> None:
    """So a region mounted there limits programs whose environment was cleared."""
    preloaded.made_by_the_driver()
    script = f"""
        mount -t tmpfs none /mnt && cp {native}/libvgpu.so /mnt/ && cp {preloaded.path} /mnt/region || exit 9
        mount -t tmpfs none /tmp && touch /tmp/cudevshr.cache && mount --bind /mnt/region /tmp/cudevshr.cache || exit 9
        env -i VGPU_REPORT=1 LD_PRELOAD=/mnt/libvgpu.so /bin/true
    """
    ended = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )
    found = report(ended.stdout.splitlines())
    assert (found["cache"], found["cache.first"], found["memory.0"]) == ("/tmp/cudevshr.cache", "0", str(1000 * MIB))


def test_processes_share_a_limit(preloaded: Preloaded) -> None:
    """Memory is summed over all that live; an orderly end gives it back."""
    preloaded.made_by_the_driver()
    with preloaded.process(600):
        assert preloaded.run()["used.0"] == str(600 * MIB)
        assert preloaded.run(VGPU_ALLOC=401)["alloc"] == "0"
        assert preloaded.run(VGPU_ALLOC=400)["alloc"] == "1"
        with preloaded.process(300):
            both = preloaded.run(VGPU_ALLOC=101)
            assert (both["processes"], both["used.0"], both["alloc"]) == ("3", str(900 * MIB), "0")
    assert preloaded.run(VGPU_ALLOC=1000)["alloc"] == "1"


def test_a_killed_process_counts_while_its_number_is_in_use(preloaded: Preloaded) -> None:
    """As PIDs of containers are soon again; a number that nobody has is given up by the next process."""
    preloaded.made_by_the_driver()
    with preloaded.process(600) as running:
        running.send_signal(signal.SIGKILL)
        running.wait(10)
    (number,) = struct.unpack_from("<i", preloaded.path.read_bytes(), SLOTS + PID)
    assert number == running.pid
    preloaded.patch(SLOTS + PID, struct.pack("<i", os.getpid()))
    assert preloaded.run(VGPU_ALLOC=401)["alloc"] == "0"
    preloaded.patch(SLOTS + PID, struct.pack("<i", number))
    after = preloaded.run(VGPU_ALLOC=1000)
    assert (after["alloc"], after.get("used.0"), after["processes"]) == ("1", None, "1")


@pytest.mark.parametrize(("offset", "name"), list(zip(LAYOUT.semaphores, ("lock", "start_lock"), strict=True)))
def test_a_hang_is_told(preloaded: Preloaded, offset: int, name: str) -> None:
    """A semaphore at 0 that nobody holds would stop the program for ever."""
    preloaded.made_by_the_driver()
    preloaded.patch(offset, bytes(4))
    assert preloaded.run(status=1)["error"] == f"hang {preloaded.path}: semaphore {name} is 0"


def test_a_lock_of_a_dead_process_is_taken(preloaded: Preloaded) -> None:
    """The one case of which the library knows what to do."""
    preloaded.made_by_the_driver()
    with subprocess.Popen(["/bin/true"]) as dead:
        dead.wait(10)
    preloaded.patch(LAYOUT.semaphores[0], bytes(4))
    preloaded.patch(16, struct.pack("<Q", dead.pid))
    assert "error" not in preloaded.run()
    assert "error" not in preloaded.run()


def older(preloaded: Preloaded) -> None:
    """Of a library with another layout."""
    preloaded.made_by_the_driver("1.1")
    preloaded.patch(LAYOUT.semaphores[1], struct.pack("<QiI16x", 1, 128, 0))


def cut(preloaded: Preloaded) -> None:
    """With its magic, without its end, of which only the second semaphore matters."""
    preloaded.made_by_the_driver()
    os.truncate(preloaded.path, LAYOUT.size)


@pytest.mark.parametrize(
    ("make", "error"), [(older, "version {}: 1.1 instead of 1.2"), (cut, "size {}: 2008952 instead of 2008953 bytes")]
)
def test_a_foreign_region_is_told(preloaded: Preloaded, make: Callable[[Preloaded], None], error: str) -> None:
    """The library goes on with it, and so does the program; a test should not."""
    make(preloaded)
    assert preloaded.run()["error"] == error.format(preloaded.path)


def test_the_hook_and_the_library_agree(preloaded: Preloaded, native: Path) -> None:
    """A region is in use as long as a process has the library; after SIGKILL it is renewed, and all memory is there again."""
    preloaded.made_by_the_driver()
    made = region(LAYOUTS["1.2"], LIMITS, Policy("disable", "high"))
    content = (word for at, data in made.pieces for word in ("--content", f"{at}:{data.hex()}"))
    words = ["--region", preloaded.path, "--size", made.size, *content, "--claim", "a/b"]
    command = [str(word) for word in (native / "hami-region-hook", *words)]

    def renew() -> bool:
        return subprocess.run(command, check=False, input=b"{}", timeout=30, stderr=subprocess.DEVNULL).returncode == 0

    with preloaded.process(600) as running:
        assert not renew()
        running.kill()
        running.wait(10)
        preloaded.patch(SLOTS + PID, struct.pack("<i", os.getpid()))
        assert preloaded.run()["used.0"] == str(600 * MIB)
        assert renew()
        assert preloaded.run(VGPU_ALLOC=1000)["alloc"] == "1"
