"""The toolkit is run as seldom as can be, and nothing half-found is ever used. A shell script stands for nvidia-ctk."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.toolkit import ToolkitDriverEdits
from tests.unit.gpu.edits import edits_of
from tests.waiting import until

A, B, C = (f"GPU-00000000-0000-0000-0000-00000000000{i}" for i in range(3))


class Node:
    """A driver root of plain files, and a toolkit that prints what it is told and counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.toolkit, self.version, self.runs_file = folder / "bin/nvidia-ctk", folder / "version", folder / "runs"
        self.libraries = self.root / "usr/lib"
        for directory in (self.libraries, self.root / "dev", self.toolkit.parent):
            directory.mkdir(parents=True)
        for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
            (self.root / "dev" / name).touch()
        for version in ("550", "560"):
            (self.libraries / f"libcuda.so.{version}").write_text(version)
        (self.libraries / "libcuda.so.1").symlink_to("libcuda.so.550")
        self.version.write_text("550")
        self.prints(self.spec(A, B))
        self.does(f"cat {folder}/spec.json")
        self.edits = self.source()

    def source(self, **options: Any) -> ToolkitDriverEdits:
        """The daemon's side."""
        settings: dict[str, Any] = {
            "toolkit": str(self.toolkit),
            "hook": lambda: "/usr/bin/nvidia-cdi-hook",
            "driver_root": self.root,
            "driver_version": self.version,
        }
        return ToolkitDriverEdits(**(settings | options))

    def does(self, *lines: str) -> None:
        """Replace the toolkit by this script."""
        fresh = self.toolkit.with_name("new")
        fresh.write_text("\n".join(["#!/bin/sh", f'echo "$$ $@" >>{self.runs_file}', *lines]) + "\n")
        fresh.chmod(0o755)
        fresh.rename(self.toolkit)

    def prints(self, spec: dict[str, Any]) -> None:
        """What it prints from now on."""
        (self.folder / "spec.json").write_text(json.dumps(spec))

    def spec(self, *uuids: str) -> dict[str, Any]:
        """A whole spec of these GPUs."""
        library = f"libcuda.so.{self.version.read_text()}"
        return {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": uuid, "containerEdits": self.nodes(f"nvidia{uuid[-1]}")} for uuid in uuids],
            "containerEdits": self.nodes("nvidiactl", "nvidia-uvm")
            | {"mounts": [{"hostPath": str(self.libraries / library), "containerPath": f"/usr/lib/{library}"}]},
        }

    def nodes(self, *names: str) -> dict[str, Any]:
        """Edits with these device nodes."""
        return {"deviceNodes": [{"path": f"/dev/{name}", "hostPath": str(self.root / "dev" / name)} for name in names]}

    @property
    def runs(self) -> list[str]:
        """Process id and arguments of each run."""
        return self.runs_file.read_text().splitlines() if self.runs_file.exists() else []

    async def until_run(self, count: int = 1) -> int:
        """Wait until the toolkit runs for this time; its process id."""
        await until(lambda: len(self.runs) >= count)
        return int(self.runs[count - 1].split()[0])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two GPUs with a driver."""
    return Node(tmp_path)


async def until_gone(group: int) -> None:
    """Wait until no process of this process group lives; it may take a moment to die."""
    await until(lambda: not _living(group))


def _living(group: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, process_group = path.read_text().rpartition(")")[2].split()[:3]
            if process_group == str(group) and state not in "ZX":
                found.append(path.parent.name)
    return found


async def test_one_run_serves_until_something_changes(node: Node) -> None:
    """Edits of the GPUs asked for, and no second run for the same or other known GPUs."""
    edits = await edits_of(node.edits, [A])
    assert (set(edits.per_gpu), edits.visible, edits.no_libcuda) == ({A}, "void", None)
    assert edits.per_gpu[A] == node.nodes("nvidia0")
    assert set((await edits_of(node.edits, [B, A])).per_gpu) == {A, B}
    assert len(node.runs) == 1
    for option in (
        "--format=json",
        "--device-name-strategy=uuid",
        f"--driver-root={node.root}",
        f"--dev-root={node.root}",
    ):
        assert option in node.runs[0].split()


def _update_driver(node: Node) -> None:
    node.version.write_text("560")
    node.prints(node.spec(A, B))


def _update_libraries(node: Node) -> None:
    link = node.libraries / "libcuda.so.1"
    link.unlink()
    link.symlink_to("libcuda.so.560")


def _reinstall_library(node: Node) -> None:
    library = node.libraries / "libcuda.so.550"
    library.unlink()
    library.write_text("rebuilt")


@pytest.mark.parametrize(
    "change",
    [_update_driver, _update_libraries, _reinstall_library, lambda node: node.does(f"cat {node.folder}/spec.json")],
)
async def test_a_new_driver_or_toolkit_means_a_new_run(node: Node, change: Callable[[Node], None]) -> None:
    """Kernel module version, the libraries' version link, a mounted file, the toolkit itself: each makes it look again, once."""
    await edits_of(node.edits, [A])
    change(node)
    edits = await edits_of(node.edits, [A])
    await edits_of(node.edits, [A])
    assert len(node.runs) == 2
    assert edits.common["mounts"][0]["hostPath"].endswith(f"libcuda.so.{node.version.read_text()}")


async def test_a_new_gpu_means_a_new_run(node: Node) -> None:
    """A GPU that was not there before is looked for; one that does not exist is named."""
    await edits_of(node.edits, [A])
    with pytest.raises(HardwareError, match=f"GPU {C} is missing"):
        await edits_of(node.edits, [A, C])
    node.prints(node.spec(A, B, C))
    assert C in (await edits_of(node.edits, [C])).per_gpu
    assert len(node.runs) == 3


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("dev/nvidia0", "the device node /dev/nvidia<minor> of GPU " + A),
        ("dev/nvidiactl", "the device node /dev/nvidiactl"),
        ("dev/nvidia-uvm", "the device node /dev/nvidia-uvm"),
        ("usr/lib/libcuda.so.550", r"a mount of libcuda\.so"),
    ],
)
async def test_half_a_driver_is_refused_and_not_kept(node: Node, path: str, named: str) -> None:
    """What is missing is named, also when it vanishes later; once it is there the next claim goes through."""
    file = node.root / path
    file.rename(node.folder / "away")
    with pytest.raises(HardwareError, match=f"not complete: {named}.*nvidia-modprobe"):
        await edits_of(node.edits, [A])
    (node.folder / "away").rename(file)
    await edits_of(node.edits, [A])
    file.unlink()
    with pytest.raises(HardwareError, match=named):
        await edits_of(node.edits, [A])


async def test_a_node_of_another_gpu_may_be_missing(node: Node) -> None:
    """Only the GPUs asked for decide."""
    (node.root / "dev/nvidia1").unlink()
    assert set((await edits_of(node.edits, [A])).per_gpu) == {A}


async def test_calls_at_the_same_time_share_one_run(node: Node) -> None:
    """A batch of claims after a start costs one run."""
    node.does("sleep 0.3", f"cat {node.folder}/spec.json")
    await asyncio.gather(*(edits_of(node.edits, [A if i % 2 else B]) for i in range(20)))
    assert len(node.runs) == 1


async def test_a_call_whose_time_is_over_leaves_the_run_to_the_others(node: Node) -> None:
    """One claim's time-out does not fail the rest, and says what it waited for."""
    go = node.folder / "go"
    node.does(f"while [ ! -e {go} ]; do sleep 0.02; done", f"cat {node.folder}/spec.json")
    waiting = asyncio.create_task(edits_of(node.edits, [A]))
    await node.until_run()
    with pytest.raises(HardwareError, match="nvidia-ctk still runs for other claims"):
        await edits_of(node.edits, [A], within=0.05)
    go.touch()
    assert A in (await waiting).per_gpu
    assert len(node.runs) == 1


async def test_a_failure_is_shared_as_the_run_is(node: Node) -> None:
    """A batch of claims that finds no driver costs one run over all GPUs, and not one after the other until time is over."""
    go = node.folder / "go"
    node.does(f"while [ ! -e {go} ]; do sleep 0.02; done", "echo no JSON")
    calls = [asyncio.create_task(edits_of(node.edits, [A])) for _ in range(5)]
    await node.until_run()
    await until(node.edits._lock.locked)
    go.touch()
    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(failure) for failure in failures} == {HardwareError}
    assert len(node.runs) <= 2  # one that came late may have begun its own


async def test_the_end_of_the_daemon_kills_the_toolkit(node: Node) -> None:
    """Nothing that was started stays behind, and whoever waits for it is told."""
    node.does("sleep 1000 & sleep 1000")
    calls = [asyncio.create_task(edits_of(node.edits, [A])) for _ in range(2)]
    group = await node.until_run()
    node.edits.close()
    assert all(isinstance(each, HardwareError) for each in await asyncio.gather(*calls, return_exceptions=True))
    await until_gone(group)
    assert len(node.runs) == 1


async def test_a_hanging_toolkit_is_killed(node: Node) -> None:
    """After its time it is gone with all that it started, and the error says for how long we waited."""
    node.does("sleep 1000 & sleep 1000")
    with pytest.raises(HardwareError, match=r"within 0\.5 s"):
        await edits_of(node.source(timeout=0.5), [A])
    await until_gone(await node.until_run())


async def test_an_absent_toolkit_is_named_with_the_ways_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path or a name that is not found, and a file that is no program, say where we looked and what to do."""
    monkeypatch.setenv("PATH", "/nowhere")
    for toolkit, text in (
        ("nvidia-ctk", "'nvidia-ctk' in PATH.*/nowhere"),
        (f"{node.root}/nvidia-ctk", f"'{node.root}/nvidia-ctk'"),
    ):
        with pytest.raises(
            HardwareError, match=f"nvidia-ctk is not at {text}.*--nvidia-ctk.*--driver-edits=runtime or none"
        ):
            await edits_of(node.source(toolkit=toolkit), [A])
    node.toolkit.write_bytes(b"\x7fELF for another machine")
    with pytest.raises(HardwareError, match=r"can't be run.*--nvidia-ctk"):
        await edits_of(node.edits, [A])


async def test_a_failing_toolkit_is_quoted(node: Node) -> None:
    """Its own error lines are the reason; warnings are not."""
    node.does(
        'echo \'time="x" level=warning msg="chatter"\' >&2', 'echo \'level=error msg="no \\"driver\\""\' >&2', "exit 3"
    )
    with pytest.raises(HardwareError, match=r'status 3: no \\"driver\\"\. Is the driver loaded'):
        await edits_of(node.edits, [A])


async def test_a_broken_gpu_does_not_take_the_others_with_it(node: Node) -> None:
    """When the run over all GPUs fails, those asked for are tried alone, and what was found so is kept."""
    for gpu in (A, B):
        (node.folder / f"{gpu}.json").write_text(json.dumps(node.spec(gpu)))
    node.does(
        "for argument; do case $argument in --device-id=*) "
        f"cat {node.folder}/${{argument#--device-id=}}.json; exit;; esac; done",
        "echo GPU is lost >&2; exit 1",
    )
    await asyncio.gather(edits_of(node.edits, [A]), edits_of(node.edits, [B]))
    assert len(node.runs) == 3, "all, A, B"
    for gpus in ([A], [B], [A, B]):
        assert set((await edits_of(node.edits, gpus)).per_gpu) == set(gpus)
    assert len(node.runs) == 3, "both are known"
    with pytest.raises(HardwareError, match="status 1"):
        await edits_of(node.edits, [C])


@pytest.mark.parametrize(
    ("script", "text"),
    [("true", "Invalid JSON"), ("echo '{}'", "cdiVersion"), ("head -c 20000000 /dev/zero", "more than 8388608 bytes")],
)
async def test_odd_output_is_refused(node: Node, script: str, text: str) -> None:
    """Empty, foreign or endless output is an error, and bounded in memory."""
    node.does(script)
    with pytest.raises(HardwareError, match=text):
        await edits_of(node.edits, [A])


async def test_a_talkative_toolkit_is_no_deadlock(node: Node) -> None:
    """More on stderr than a pipe holds is read and dropped."""
    node.does("head -c 3000000 /dev/zero >&2", f"cat {node.folder}/spec.json")
    assert A in (await edits_of(node.edits, [A])).per_gpu


async def test_variables_around_the_daemon_do_not_steer_the_toolkit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA_CTK_CDI_OUTPUT_FILE_PATH and the like are kept away, others reach it."""
    monkeypatch.setenv("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "/elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    node.does(f"env >{node.folder}/env", f"cat {node.folder}/spec.json")
    await edits_of(node.edits, [A])
    names = {line.partition("=")[0] for line in (node.folder / "env").read_text().splitlines()}
    assert "LD_LIBRARY_PATH" in names
    assert not any(name.startswith("NVIDIA_") for name in names)


async def test_a_root_mounted_elsewhere_is_named_as_on_the_host(node: Node) -> None:
    """The daemon looks where it sees the driver, the container runtime where it is."""
    edits = await edits_of(node.source(host_driver_root=Path("/run/nvidia/driver")), [A])
    assert edits.per_gpu[A]["deviceNodes"][0]["hostPath"] == "/run/nvidia/driver/dev/nvidia0"
    assert edits.common["mounts"][0]["hostPath"] == "/run/nvidia/driver/usr/lib/libcuda.so.550"


async def test_device_nodes_come_from_the_host_if_the_root_has_none(node: Node) -> None:
    """A containerised driver without a /dev of its own: the toolkit is sent to the host's."""
    (node.root / "dev/nvidiactl").unlink()
    with pytest.raises(HardwareError, match="nvidiactl"):
        await edits_of(node.edits, [A])
    assert "--dev-root=/" in node.runs[0].split()
