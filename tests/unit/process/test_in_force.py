"""The daemon finds a real process that has a region mounted and no HAMi-core."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests import CHECKOUT
from tests.unit.proc_tree import is_root
from tests.unit.process.daemon import PROGRAM, Process, allocated
from tests.waiting import until

WAITS = "#include <unistd.h>\nint main(void) { pause(); return 0; }\n"


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A static program that waits."""
    if not is_root():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs root, to make a mount name space")
    (tmp_path / "s.c").write_text(WAITS)
    subprocess.run(["gcc", "-static", "-o", "waits", "s.c"], cwd=tmp_path, check=True, timeout=60)
    return tmp_path / "waits"


@pytest.fixture
def run(static: Path) -> Iterator[Callable[[Path], None]]:
    """Starts that program in a mount name space of its own, as a container with a region; ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(region: Path) -> None:
        (static.parent / "target").touch()
        script = f"mount --bind {region} target && exec {static}"
        started.append(subprocess.Popen(["unshare", "--mount", "sh", "-c", script], cwd=static.parent))

    yield start
    for one in started:
        one.kill()
        one.wait(timeout=10)


def claims(process: Process) -> str:
    """The line of the one claim in `hami-kubeletplugin claims`."""
    words = [PROGRAM, "claims", "--plugin-dir", process.plugin_dir, "--hami-dir", process.root / "vgpu"]
    command, env = list(map(str, words)), {**os.environ, **CHECKOUT}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.splitlines()[1]


async def test_a_static_program_is_reported(
    process: Process, api: ApiServer, native: Path, run: Callable[[Path], None]
) -> None:
    """Its pod gets the event, and `claims` says that no process has the library; before it starts it says nothing."""
    api.put("namespaces", {"metadata": {"name": "default"}})
    known = ("--hami-core", native / "libvgpu.so", "--region-hook", native / "hami-region-hook")
    async with FakeKubelet(process.registry) as kubelet:
        await process.start(*map(str, known), "--container-interval", "0.2")
        await until(lambda: api.all("resourceslices"))
        ref = allocated(api, "train", memory="4000Mi")
        await (await kubelet.plugin("gpu.hami.io")).prepare([ref])
        assert claims(process).split()[-3:] == ["region", "-", "train/main"]
        (pod,) = api.all("pods")
        api.put("pods", pod | {"status": {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}})
        run(process.root / "vgpu/cache" / ref.uid / "use-0.region")
        await until(lambda: api.all("events"))
        assert api.all("events")[0]["involvedObject"]["uid"] == pod["metadata"]["uid"]
        assert "Container main" in api.all("events")[0]["message"]
        assert "NONE of 1" in claims(process)
