"""`hami-kubeletplugin doctor` as people type it, beside a daemon and without one."""

import asyncio
import json
import signal
import subprocess
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.doctor.checks import checks
from hami_kubeletplugin.doctor.cluster import Cluster
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from hami_kubeletplugin.hamicore import mounts
from tests import CHECKOUT, REPOSITORY
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu
from tests.unit.process.daemon import NODE, PROGRAM, Process, allocated
from tests.unit.process.test_daemon import registered
from tests.unit.process.test_handover import replaced, said
from tests.waiting import until

NAMES = list(checks(place := Place(Settings.checked(node_name=NODE)), Cluster(place)))


async def doctor(process: Process, native: Path, on: FakeNode | None, *more: str) -> tuple[int, str, str]:
    """Run it with the daemon's options."""
    options = {
        "--registry-dir": process.registry,
        "--plugin-dir": process.plugin_dir,
        "--cdi-dir": process.cdi,
        "--hami-dir": process.root / "vgpu",
        "--hami-core": native / "libvgpu.so",
        "--region-hook": native / "hami-region-hook",
        "--driver-edits": "none",
        "--kubeconfig": process.kubeconfig,
        "--node-name": NODE,
    }
    words = [
        *(str(word) for pair in options.items() for word in pair),
        *(on.options if on else ("--simulate", "a100x8")),
    ]
    env = {"PATH": "/usr/bin:/bin", **CHECKOUT, **(on.environment if on else {})}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, "doctor", *words, *more], capture_output=True, text=True, timeout=60, env=env, check=False
        )

    done = await asyncio.to_thread(run)
    return done.returncode, done.stdout, done.stderr


async def found(process: Process, native: Path, on: FakeNode | None = None) -> dict[str, list[dict[str, Any]]]:
    """What it finds, by check."""
    _, told, said = await doctor(process, native, on, "-o", "json")
    assert said == ""
    by_check = defaultdict(list)
    for each in json.loads(told):
        by_check[each["check"]].append(each)
    return by_check


def levels(of: dict[str, list[dict[str, Any]]], name: str) -> set[str]:
    """How bad what one check found is."""
    return {each["level"] for each in of[name]}


async def test_beside_a_daemon(process: Process, api: ApiServer, native: Path, node: FakeNode) -> None:
    """It finds what works, names what the tests' node lacks, and has not changed anything of claims or sockets."""
    known = ("--hami-core", str(native / "libvgpu.so"), "--region-hook", str(native / "hami-region-hook"))
    async with FakeKubelet(process.registry) as kubelet:
        await process.start(*known, on=node)
        await until(lambda: api.all("resourceslices"))
        plugin = await kubelet.plugin("gpu.hami.io")
        ref = allocated(api, "train", memory="4000Mi")
        await plugin.prepare([ref])
        before = {path: path.stat().st_mtime_ns for path in process.root.rglob("*") if path.is_file()}
        by_check = await found(process, native, node)
        assert list(by_check) == NAMES
        for name in (
            "driver",
            "region-hook",
            "sockets",
            "kubelet",
            "conditions",
            "api",
            "slices",
            "claims",
            "leftovers",
        ):
            assert levels(by_check, name) <= {"ok", "hint"}, by_check[name]
        assert "2 GPUs: NVIDIA A100" in by_check["driver"][0]["what"]
        assert "all 2 GPUs" in by_check["slices"][0]["what"]
        assert levels(by_check, "device-nodes") >= {"error"}
        after = {path: path.stat().st_mtime_ns for path in process.root.rglob("*") if path.is_file()}
        assert {path for path in before if before[path] != after.get(path)} <= {process.log}
        next(process.cdi.glob("*.json")).unlink()
        await process.kill()
        mounts.unmount(process.root / "vgpu/cache" / ref.uid)
        by_check = await found(process, native, node)
        assert levels(by_check, "sockets") == {"error", "hint"}
        assert "is not there" in by_check["claims"][0]["what"]


async def test_after_a_hand_over(process: Process, api: ApiServer, native: Path) -> None:
    """The successor serves at other sockets, and is found there."""
    async with FakeKubelet(process.registry) as kubelet:
        await registered(process, api, kubelet)
        async with replaced(process) as first:
            first.send_signal(signal.SIGTERM)
            await first.wait()
        await until(lambda: said(process, "starting") == said(process, "stopped") + 1)
        by_check = await found(process, native)
    (well,) = by_check["sockets"]
    assert (well["level"], well["what"].endswith("dra2.sock")) == ("ok", True)


async def test_exit_status_and_words(process: Process, native: Path) -> None:
    """Without daemon and API server: 1, and each finding with its command; a wrong option is 1 with a line on stderr.

    A support bundle is written all the same, and says what could not be had.
    """
    bundle = process.root / "b.tar.gz"
    status, told, said = await doctor(process, native, None, "--support-bundle", str(bundle))
    assert (status, said.partition(":")[0]) == (1, str(bundle))
    with tarfile.open(bundle) as archive:
        assert {"b/doctor.json", "b/MANIFEST"} <= set(archive.getnames())
    assert "ERROR   sockets: no daemon runs on this node" in told
    assert "        $ kubectl -n hami-system get pods" in told
    assert (await doctor(process, native, None, "--glibc-floor", "x"))[2].startswith(
        "hami-kubeletplugin: --glibc-floor"
    )


async def test_a_driver_that_hangs(process: Process, native: Path, node: FakeNode, tmp_path: Path) -> None:
    """Is a finding, and all the rest is there: it ends in time."""
    until_then = tmp_path / "hangs"
    until_then.touch()
    node.write(f"hang nvmlSystemGetDriverVersion {until_then}", lines_of_gpu(0))
    status, told, _ = await doctor(process, native, node, "--timeout", "3", "-o", "json")
    assert status == 1
    of = {each["check"]: each for each in json.loads(told)}
    assert "the driver hangs" in of["driver"]["what"]
    assert list(of) == NAMES


def test_each_check_is_in_the_docs() -> None:
    """By its name, in docs/doctor.md's table."""
    text = (REPOSITORY / "docs/doctor.md").read_text()
    named = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    first = named.index(NAMES[0])
    assert named[first : first + len(NAMES) + 1] == [*NAMES, "try"]
