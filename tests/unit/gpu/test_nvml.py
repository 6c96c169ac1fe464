"""The NVML session as discovery uses it: drivers that are missing, broken, replaced or stuck."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import DriverMissing, NvmlCallFailed
from hami_kubeletplugin.gpu.discover import NvmlSource
from hami_kubeletplugin.gpu.nvml import Nvml, library_below
from hami_kubeletplugin.gpu.sessions import Sessions


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "modprobe"), (12, "install the driver"), (18, "different versions")],
    ids=["not loaded", "libraries", "mismatch"],
)
async def test_a_driver_that_is_not_there_is_named_and_found_later(
    node: Any, gpu_lines: Any, code: int, words: str
) -> None:
    """The message says what to do; the same source works once the driver is there."""
    source = node.source()
    node.write(f"fail nvmlInitWithFlags {code}", gpu_lines(0))
    with pytest.raises(DriverMissing, match=words):
        await source.discover()
    node.write(gpu_lines(0))
    assert len((await source.discover()).gpus) == 1


async def test_a_driver_that_goes_away_meanwhile_is_missing(node: Any, gpu_lines: Any) -> None:
    """A driver unloaded in the middle of a look is not the fault of one GPU."""
    node.write(gpu_lines(0), gpu_lines(1, "fail nvmlDeviceGetName 9"))
    with pytest.raises(DriverMissing):
        await node.source().discover()


async def test_a_missing_library_is_named_and_found_later(node: Any, gpu_lines: Any, tmp_path: Path) -> None:
    """The path, the option, and no need to start again when it has been installed."""
    node.write(gpu_lines(0))
    path = tmp_path / "late.so"
    source = NvmlSource(Sessions(path), node.sysfs)
    with pytest.raises(DriverMissing, match=r"late\.so.*--nvml-library"):
        await source.discover()
    path.symlink_to(node.library)
    assert len((await source.discover()).gpus) == 1


async def test_without_a_path_the_linker_looks_for_the_library() -> None:
    """On a machine without the driver, its usual name is in the message."""
    try:
        await NvmlSource(Sessions()).discover()
    except DriverMissing as error:
        assert "libnvidia-ml.so.1" in str(error) or "nvmlInit" in str(error)  # noqa: PT017 - a driver may be here


async def test_a_library_that_is_not_nvml_is_an_error(tmp_path: Path) -> None:
    """A file that is no library is missing as one; a library without NVML's functions fails at the first call."""
    (tmp_path / "text.so").write_text("not ELF")
    with pytest.raises(DriverMissing, match=r"text\.so"):
        await NvmlSource(Sessions(tmp_path / "text.so")).discover()
    with pytest.raises(NvmlCallFailed, match="nvmlInitWithFlags") as caught:
        await NvmlSource(Sessions(Path("libm.so.6"))).discover()
    assert caught.value.code == 13


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2"])
async def test_a_node_that_can_not_be_asked_is_an_error(node: Any, call: str) -> None:
    """With the call and the code; and NVML is not left open."""
    node.write(f"fail {call} 999")
    with pytest.raises(NvmlCallFailed, match="this node") as caught:
        await node.source().discover()
    assert (caught.value.call, caught.value.code) == (call.removesuffix("_v2"), 999)
    node.write()
    assert (await node.source().discover()).gpus == ()


async def test_nvml_is_open_during_a_look_only_and_in_one_thread(node: Any, gpu_lines: Any) -> None:
    """Opened first, closed last, all in one thread that is not the event loop's; the library is unloaded."""
    node.write(gpu_lines(0))
    await node.source().discover()
    threads, calls = zip(*node.calls(), strict=True)
    assert (calls[0], calls[-1]) == ("nvmlInitWithFlags", "nvmlShutdown")
    assert len(set(threads)) == 1
    assert set(threads) != {str(threading.get_native_id())}
    assert not node.library_is_loaded()


async def test_a_failed_look_closes_nvml_too(node: Any) -> None:
    """An error between open and close leaves nothing open."""
    node.write("fail nvmlDeviceGetCount_v2 999")
    with pytest.raises(NvmlCallFailed):
        await node.source().discover()
    assert node.calls()[-1][1] == "nvmlShutdown"
    assert not node.library_is_loaded()


async def test_nvml_that_can_not_be_closed_does_not_lose_the_result(node: Any, gpu_lines: Any) -> None:
    """What was read is good."""
    node.write("fail nvmlShutdown 999", gpu_lines(0))
    assert len((await node.source().discover()).gpus) == 1


async def test_a_library_that_was_replaced_is_used(node: Any, gpu_lines: Any, tmp_path: Path) -> None:
    """After a driver upgrade the next look loads the new library; the process need not start again."""
    node.write(gpu_lines(0))
    path = tmp_path / "nvml.so"
    old = node.library.read_bytes()
    path.write_bytes(old)
    source = NvmlSource(Sessions(path), node.sysfs)
    await source.discover()
    new = tmp_path / "new.so"
    new.write_bytes(old.replace(b"an error of the fake", b"an error of the new!"))
    new.rename(path)
    node.write("fail nvmlInitWithFlags 25")
    with pytest.raises(NvmlCallFailed, match="an error of the new!"):
        await source.discover()


async def test_a_driver_that_hangs_is_given_up_and_never_asked_twice_at_once(
    node: Any, gpu_lines: Any, tmp_path: Path
) -> None:
    """The error names the call; while it hangs no second thread is added; when it wakes up, all works again.

    Each time counts for that call; calls that return are counted as never given up.
    """
    hang = tmp_path / "hang"
    hang.touch()
    node.write(gpu_lines(0, f"hang nvmlDeviceGetName {hang}"))
    source = node.source(time_limit=0.2)
    for _ in range(3):
        with pytest.raises(NvmlCallFailed, match=r"nvmlDeviceGetName.*no answer within 0\.2 s") as caught:
            await source.discover()
        assert caught.value.code == 10
    assert sum(thread.name == "nvml" for thread in threading.enumerate()) == 1
    assert source._sessions.timeouts == {"dlopen": 0, "nvmlDeviceGetName": 3}
    hang.unlink()
    source._sessions._time_limit = 20
    assert len((await source.discover()).gpus) == 1
    counted = source._sessions.timeouts
    assert {call for call, count in counted.items() if count} == {"nvmlDeviceGetName"}
    assert {"nvmlInitWithFlags", "nvmlDeviceGetUUID", "nvmlShutdown"} <= counted.keys()


async def test_a_look_that_was_cancelled_does_not_disturb_the_next(node: Any, gpu_lines: Any, tmp_path: Path) -> None:
    """Cancelling returns at once; the next look waits for the thread of the first, then does its own."""
    hang = tmp_path / "hang"
    hang.touch()
    node.write(gpu_lines(0, f"hang nvmlDeviceGetName {hang}"))
    source = node.source()
    first = asyncio.create_task(source.discover())
    await node.until_called("nvmlDeviceGetName")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(source.discover())
    hang.unlink()
    assert len((await second).gpus) == 1
    assert [call for _, call in node.calls()].count("nvmlInitWithFlags") == 2


async def test_looks_at_the_same_time_take_turns(node: Any, gpu_lines: Any) -> None:
    """Many callers, one session at a time, each with a whole answer."""
    node.write(gpu_lines(0), gpu_lines(1))
    source, other = node.source(), node.source()
    found = await asyncio.gather(*(each.discover() for each in (source, other) * 4))
    assert {len(inventory.gpus) for inventory in found} == {2}
    sessions = [call for _, call in node.calls() if call in {"nvmlInitWithFlags", "nvmlShutdown"}]
    assert sessions == ["nvmlInitWithFlags", "nvmlShutdown"] * 8


def test_a_session_says_what_it_is_doing(node: Any) -> None:
    """For the message when it hangs: loading at first, then the call."""
    session = Nvml(node.library)
    assert session.calling == f"loading {node.library}"
    with session as nvml:
        assert nvml.require("nvmlDeviceGetCount") == 0
        assert nvml.calling == "nvmlDeviceGetCount"


def test_a_session_that_stays_open_is_not_waited_for_for_ever(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes meanwhile is told, and leaves no thread behind; then all is as before."""
    monkeypatch.setattr("hami_kubeletplugin.gpu.nvml._TURN", 0.1)
    with Nvml(node.library), pytest.raises(NvmlCallFailed, match=r"another session of this process .* 0.1 s"):
        Nvml(node.library).__enter__()
    with Nvml(node.library) as nvml:
        assert nvml.require("nvmlDeviceGetCount") == 0


def test_a_session_that_ends_oddly_lets_the_next_one_in(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever closing it comes to, the library is let go."""
    with monkeypatch.context() as patch:
        patch.setattr("pynvml.nvmlShutdown", lambda: 1 // 0)
        patch.setattr("hami_kubeletplugin.gpu.nvml._TURN", 0.1)
        with pytest.raises(ZeroDivisionError), Nvml(node.library):
            pass
        with pytest.raises(ZeroDivisionError), Nvml(node.library):
            pass
    assert not node.library_is_loaded()


def test_library_below_another_root(tmp_path: Path) -> None:
    """The library of a driver below another root is found there, also through links that are absolute within that root."""
    (tmp_path / "usr/lib/x86_64-linux-gnu/nvidia/current").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    assert library_below(tmp_path) is None
    real = tmp_path / "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1"
    real.touch()
    (tmp_path / "etc/alternatives/nvml").symlink_to("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvml")
    assert library_below(tmp_path) == real
    assert library_below(Path("/")) is None


async def test_a_call_that_an_old_driver_does_not_have(node: Any, gpu_lines: Any) -> None:
    """Of those with several versions, too, for which the bindings have an error of their own: not known, and no bug."""
    node.write(gpu_lines(0))

    def ask(nvml: Nvml) -> Any:
        handle = nvml.require("nvmlDeviceGetHandleByIndex", 0)
        return nvml.query("nvmlDeviceGetMPSComputeRunningProcesses", handle)

    assert await Sessions(node.library).use(ask) is None
