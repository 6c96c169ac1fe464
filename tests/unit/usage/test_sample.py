"""What NVML says of the use of GPUs: asked seldom, waited for shortly, and None where it doesn't say."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.gpu import sessions
from hami_kubeletplugin.usage.model import OfGpu
from hami_kubeletplugin.usage.sample import OfProcess, Sampler
from tests.unit.gpu.fake_node import FakeNode, lines_of_gpu

UUID = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node whose NVML is the fake."""
    made = FakeNode(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


async def test_what_gpus_and_processes_use_is_told(node: FakeNode) -> None:
    """Memory and utilisation of each; what a GPU doesn't tell is None, and what can't be is left out."""
    node.write(
        lines_of_gpu(0, "used 5000", "rates 40 20", "process 10 3000 35", "process 11 -1 -1", "process 12 7 4000000"),
        lines_of_gpu(1, "fail nvmlDeviceGetMemoryInfo 3", "fail nvmlDeviceGetComputeRunningProcesses_v3 3"),
        lines_of_gpu(2, "fail nvmlDeviceGetUUID 15"),
        lines_of_gpu(3, "fail nvmlDeviceGetProcessUtilization 3", "process 20 8 0"),
        lines_of_gpu(4),
    )
    sample = await Sampler(node.sessions(), lambda: 0.0).sample()
    assert sample is not None
    assert sample.gpus[0] == OfGpu(0, UUID, "NVIDIA A100-SXM4-40GB", 42949672960, 5000, 40, 20)
    assert [(gpu.index, gpu.memory_used, gpu.utilization) for gpu in sample.gpus[1:]] == [
        (1, None, None),
        (3, 0, None),
        (4, 0, None),
    ]
    processes = {uuid[-1]: dict(found) for uuid, found in sample.processes.items()}
    assert processes == {
        "0": {10: OfProcess(3000, 35), 11: OfProcess(None, 0), 12: OfProcess(7, 0)},
        "3": {20: OfProcess(8, None)},
        "4": {},
    }


async def test_nvml_is_asked_once_for_many_and_let_go_of(node: FakeNode) -> None:
    """However often somebody wants to know, until the answer is too old; and nothing holds the driver in between."""
    node.write(lines_of_gpu(0))
    ages = [60.0]
    sampler = Sampler(node.sessions(), lambda: ages[-1])
    first = await sampler.sample()
    assert await sampler.sample() is first
    assert [call for _, call in node.calls()].count("nvmlInitWithFlags") == 1
    assert node.can_be_unloaded()
    ages.append(0.0)
    assert await sampler.sample() is not first
    assert [call for _, call in node.calls()].count("nvmlInitWithFlags") == 2


async def test_a_driver_that_hangs_keeps_nobody(node: FakeNode, tmp_path: Path) -> None:
    """Nothing is known until it answers; one question waits for it, not one for each who asks."""
    hang = tmp_path / "hang"
    hang.touch()
    node.write(lines_of_gpu(0, f"hang nvmlDeviceGetMemoryInfo {hang}"))
    sampler = Sampler(node.sessions(), lambda: 60.0, patience=0.05)
    assert await sampler.sample() is None
    await node.until_called("nvmlDeviceGetMemoryInfo")
    assert await sampler.sample() is None
    assert [call for _, call in node.calls()].count("nvmlInitWithFlags") == 1
    hang.unlink()
    sampler._patience = 20.0
    assert await sampler.sample() is not None


async def test_an_answer_of_just_now_is_better_than_none(node: FakeNode, tmp_path: Path) -> None:
    """While the next one takes its time; not for ever."""
    node.write(lines_of_gpu(0))
    sampler = Sampler(node.sessions(), lambda: 0.0, patience=20.0)
    before = await sampler.sample()
    assert before is not None
    hang = tmp_path / "hang"
    hang.touch()
    node.write(lines_of_gpu(0, f"hang nvmlDeviceGetMemoryInfo {hang}"))
    sampler._patience = 0.05
    assert await sampler.sample() is before
    sampler._stale = 0.0
    assert await sampler.sample() is None
    hang.unlink()
    sampler._patience = 20.0
    assert (await sampler.sample()) == before


async def test_without_a_driver_nothing_is_known(node: FakeNode) -> None:
    """And that is no failure."""
    node.write("fail nvmlInitWithFlags 9")
    assert await Sampler(node.sessions(), lambda: 0.0).sample() is None


async def test_what_nobody_thought_of_is_no_answer_either(monkeypatch: pytest.MonkeyPatch, node: FakeNode) -> None:
    """As where the process may have no more threads: what was known is not shown for ever, and the log has why, once."""
    node.write(lines_of_gpu(0))
    sampler = Sampler(node.sessions(), lambda: 0.0, patience=20.0)
    assert await sampler.sample() is not None

    def no_more(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sessions, "in_own_thread", no_more)
    with capture_logs() as logs:
        for _ in range(3):
            assert await sampler.sample() is None
    assert [entry["event"] for entry in logs] == ["what NVML says of the use of GPUs can't be had now"]
