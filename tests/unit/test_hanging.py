"""Work that hangs: bounded in threads, named, and in nobody's way."""

import asyncio
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from hami_kubeletplugin import hanging
from hami_kubeletplugin.api.errors import HamiError, StorageError
from hami_kubeletplugin.hanging import MayHang, OwnThreads
from tests.waiting import until


class Kernel:
    """Reads names, and does not come back from some of them until it is told to."""

    def __init__(self) -> None:
        self.hangs: set[str] = set()
        self.let_go = threading.Event()
        self.inside: list[str] = []

    def read(self, name: str) -> str:
        """As long as a file, backwards."""
        if name in self.hangs:
            self.inside.append(name)
            assert self.let_go.wait(60)
            self.inside.remove(name)
        return name[::-1]


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """That lets go in the end."""
    made = Kernel()
    yield made
    made.let_go.set()


def test_many_at_once_get_what_they_ask_for(kernel: Kernel) -> None:
    """Whatever names they share; none is refused for being one of many."""
    files = MayHang("the file", StorageError)
    with ThreadPoolExecutor(64) as callers:
        found = list(callers.map(lambda i: files.each(kernel.read, [f"a{i % 3}", f"b{i}"]), range(500)))
    assert found == [{f"a{i % 3}": f"{i % 3}a", f"b{i}": f"b{i}"[::-1]} for i in range(500)]
    assert files.each(kernel.read, []) == {}


def test_nobody_is_woken_in_vain() -> None:
    """All prepares of a burst look at the same files: counted as waits of threads, each costs some, not one for each other."""
    files, callers, calls = MayHang("the file", StorageError), 64, 10

    def ask() -> None:
        for _ in range(calls):
            files.each(len, ["a", "b"])

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waits = (resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before) / (callers * calls)
    assert waits < callers / 3


@pytest.mark.parametrize("earlier", [0.0, 0.2])
def test_who_asks_for_more_than_what_hangs_waits_for_it_only(kernel: Kernel, earlier: float) -> None:
    """Behind one that hangs at a name that they don't need they get what they ask for, whoever's time is up first."""
    files = MayHang("the file", StorageError, patience=0.4)
    kernel.hangs = {"other", "x"}
    with pytest.raises(StorageError, match="the file other"):
        files.each(kernel.read, ["other"])
    with ThreadPoolExecutor(8) as callers:
        first = callers.submit(files.each, kernel.read, ["x", "common"])
        assert not threading.Event().wait(earlier)
        same = callers.submit(files.each, kernel.read, ["common", "x"])
        rest = [callers.submit(files.each, kernel.read, ["common", "y"]) for _ in range(6)]
        for future in (first, same):
            assert "the file x has not answered" in str(future.exception())
        assert all(future.result() for future in rest)


def test_one_name_hangs_once(kernel: Kernel) -> None:
    """However many ask for it at the same time and later; others go on, and so does it when the kernel lets go."""
    files = MayHang("the file", StorageError, most=3, patience=0.1)
    kernel.hangs = {"x"}

    def ask(number: int) -> str:
        with pytest.raises(StorageError) as caught:
            files.each(kernel.read, [f"before-{number}", "x", f"after-{number}"])
        return str(caught.value)

    for _ in range(2):
        with ThreadPoolExecutor(20) as callers:
            assert all("the file x has not answered for" in words for words in callers.map(ask, range(20)))
        assert kernel.inside == ["x"]
        assert files.each(kernel.read, ["y"]) == {"y": "y"}
    kernel.let_go.set()
    while kernel.inside:
        pass
    kernel.hangs.clear()
    assert files.each(kernel.read, ["x"]) == {"x": "x"}


def test_what_hangs_is_said_in_the_same_words(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it does: who says each failure once, as logs do, would say it each time anew."""
    later = [0.0]
    monkeypatch.setattr(hanging, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later[0]))
    files = MayHang("the file", StorageError, patience=0.05)
    kernel.hangs, said = {"x"}, set()
    for later[0] in (0.0, 60.0, 600.0):
        with pytest.raises(StorageError) as caught:
            files.each(kernel.read, ["x"])
        said.add(str(caught.value))
    assert len(said) == 1


def test_no_more_threads_than_most_hang(kernel: Kernel) -> None:
    """When all of them do, everybody is refused at once, and told of one that hangs."""
    files = MayHang("the file", StorageError, most=3, patience=0.05)
    kernel.hangs = set("abcdef")
    for name in "abcdef":
        with pytest.raises(StorageError, match=rf"the file {name if name in 'abc' else 'a'} has not answered"):
            files.each(kernel.read, [name])
    assert kernel.inside == ["a", "b", "c"]


def test_an_error_is_the_callers() -> None:
    """What the work raises is no matter of hanging."""
    files = MayHang("the file", StorageError)

    def fail(name: str) -> None:
        raise HamiError(name)

    for _ in range(3):
        with pytest.raises(HamiError, match=r"^z$"):
            files.each(fail, ["z"])


async def test_work_of_other_kinds_goes_on(kernel: Kernel) -> None:
    """In asyncio's own pool a few that hang would be the end of all work. Of one kind only so many do; the next is refused."""
    threads = OwnThreads(most=4, last_wait=0.05)
    asyncio.get_running_loop().set_default_executor(threads)
    kernel.hangs = {"x"}
    hanging = [asyncio.create_task(asyncio.to_thread(kernel.read, "x")) for _ in range(4)]
    await until(lambda: len(kernel.inside) == 4)
    for _ in range(3):
        with pytest.raises(StorageError, match=r"Kernel\.read hangs, 4 times by now"):
            await asyncio.to_thread(kernel.read, "y")
    assert [await asyncio.to_thread(str, i) for i in range(40)] == [str(i) for i in range(40)]
    threads.shutdown()  # comes back, though they hang
    kernel.let_go.set()
    assert await asyncio.gather(*hanging) == ["x"] * 4
    assert await asyncio.to_thread(kernel.read, "y") == "y"
