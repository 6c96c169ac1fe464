"""What the doctor says of driver, device nodes and toolkit."""

import os
from pathlib import Path

import pytest

from hami_kubeletplugin.doctor import driver, toolkit
from hami_kubeletplugin.doctor.driver import Node
from hami_kubeletplugin.doctor.place import Hardware
from hami_kubeletplugin.doctor.programs import Ran, ran, version_in
from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.gpu.discover import Remark
from tests.unit.claims.objects import GPUS
from tests.unit.doctor.objects import levels, place, worst
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu

DEV = Path("/dev")
MAJORS = {"nvidia": 195, "nvidia-uvm": 510}
NODES = {f"nvidia{minor}": Node(195, minor) for minor in range(4)}
NODES |= {"nvidiactl": Node(195, 255), "nvidia-uvm": Node(510, 0)}


def test_a_node_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Driver version, CUDA and GPUs are named, and the library by which they were found."""
    node = FakeNode(tmp_path)
    node.write(lines_of_gpu(0), lines_of_gpu(1))
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    here = place(tmp_path, simulate=None, nvml_library=node.library, sysfs=node.sysfs)
    (first, *_) = driver.driver(here)
    assert first.level is Level.ok
    assert first.what.startswith(f"driver 550.54.15, CUDA 12.4, NVML from {node.library}; 2 GPUs: NVIDIA A100")
    assert "nvidia1 is not there" in " ".join(each.what for each in driver.device_nodes(here))


def test_a_node_without_a_driver(tmp_path: Path) -> None:
    """It is an error that says where NVML was looked for; what depends on it refers to it instead of repeating it."""
    here = place(tmp_path, simulate=None, nvml_library=tmp_path / "none.so")
    assert f"{tmp_path}/none.so" in worst(driver.driver(here)).what
    with pytest.raises(Exception, match="see driver"):
        list(driver.device_nodes(here))


def test_gpus_that_are_left_out_are_named() -> None:
    """Each with what NVML said, and what to do about it."""
    mig = Remark("GPUs in MIG mode left out: not served yet", (("gpus", "GPU 1"),))
    found = list(driver.judged(Hardware(GPUS, [mig]), "x", simulated=None))
    assert levels(found) == [Level.ok, Level.warning]
    assert "GPU 1" in found[1].what
    assert "nvidia-smi -mig 0" in found[1].mend


def test_device_nodes_that_are_right() -> None:
    """Nothing but an ok."""
    assert levels(driver.nodes_judged(DEV, NODES, MAJORS, GPUS.gpus)) == [Level.ok]


def test_a_device_node_that_is_missing() -> None:
    """It is named, with the command that makes it."""
    found = worst(driver.nodes_judged(DEV, {**NODES, "nvidia-uvm": None}, MAJORS, GPUS.gpus))
    assert (found.level, found.mend) == (Level.error, "nvidia-modprobe -u -c 0")
    assert "/dev/nvidia-uvm" in found.what


@pytest.mark.parametrize("node", [Node(195, 1), Node(194, 2)])
def test_a_device_node_of_another_device(node: Node) -> None:
    """A wrong minor would be another GPU, a wrong major another device."""
    assert (
        "kernel has it as 195:2" in worst(driver.nodes_judged(DEV, {**NODES, "nvidia2": node}, MAJORS, GPUS.gpus)).what
    )


def test_the_toolkit_has_to_be_new_enough() -> None:
    """1.18 is; 1.17 is not, and none at all is not."""

    def judge(said: str | None) -> Level:
        answer = None if said is None else Ran(0, said)
        return toolkit.program_judged(
            "nvidia-ctk", said and "/usr/bin/nvidia-ctk", answer, "nvidia-ctk", "--nvidia-ctk"
        ).level

    assert judge("NVIDIA Container Toolkit CLI version 1.18.0\ncommit: 8f3a89c") is Level.ok
    assert judge("NVIDIA Container Toolkit CLI version 1.17.8") is Level.error
    assert judge("what?") is Level.error
    assert judge(None) is Level.error


def test_a_hook_that_does_not_run_here_is_no_error() -> None:
    """It is the host's program: the daemon's image may not have what it needs."""
    assert toolkit.program_judged("nvidia-cdi-hook", "/h", Ran(127, "no libc"), "/h", "-x").level is Level.hint


def test_the_hook_is_looked_for_on_the_host(tmp_path: Path) -> None:
    """Below the root of process 1, whatever is in the daemon's container."""
    here = place(tmp_path, driver_edits="toolkit", nvidia_ctk=str(tmp_path / "ctk"))
    hook = tmp_path / "host/usr/bin/nvidia-cdi-hook"
    hook.parent.mkdir(parents=True)
    for path, version in ((hook, "1.18.1"), (tmp_path / "ctk", "1.20.2")):
        path.write_text(f"#!/bin/sh\necho version {version}\n")
        path.chmod(0o755)
    said = [each.what for each in toolkit.toolkit(here)]
    assert said[0] == f"{tmp_path}/ctk has version 1.20"
    assert said[1] == "/usr/bin/nvidia-cdi-hook has version 1.18"
    assert "nvidia-ctk" in said[2]  # that one describes no driver


def test_programs_are_bounded(tmp_path: Path) -> None:
    """One that hangs, and one that is none, are answers too."""
    assert ran(["sleep", "60"], within=0.1) == Ran(None, "it did not end within 0.1 s")
    assert ran([tmp_path / "none"]).status is None
    assert version_in("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7") == (2, 1)
    assert os.environ.get("HOME", "") not in ran(["env"]).said or not os.environ.get("HOME")
