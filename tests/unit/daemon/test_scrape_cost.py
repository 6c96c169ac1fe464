"""What a scrape reads, as counts: a little for each container, and of what doesn't change nothing."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.claims.usage import UNUSED, Usage
from hami_kubeletplugin.daemon.seen import Seen
from hami_kubeletplugin.usage import service
from tests.unit.claims.objects import GPUS, NODE, claim, container, pod, result
from tests.unit.usage.world import World

_WATCHERS: Final[list[Callable[[str], None]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for watcher in _WATCHERS if event == "open" else ():
        watcher(str(arguments[0]))


sys.addaudithook(_audit)


@contextmanager
def opened(root: Path) -> Iterator[Counter[str]]:
    """How often files below each folder of `root` are opened meanwhile."""
    found = Counter[str]()

    def watch(path: str) -> None:
        if path.startswith(f"{root}/"):
            found[Path(path).relative_to(root).parts[0]] += 1

    _WATCHERS.append(watch)
    try:
        yield found
    finally:
        _WATCHERS.remove(watch)


@pytest.fixture(autouse=True)
def _each_look_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FRESH", -1.0)
    monkeypatch.setattr(service, "REST", 0.0)


async def test_a_scrape_reads_each_region_once_and_no_record_again(tmp_path: Path) -> None:
    """Files that are opened: one region for each container, a few of its process; a record only when it is new."""
    world = World(tmp_path)
    held: Mapping[str, Usage] = dict.fromkeys(GPUS.by_uuid(), UNUSED)
    seen = Seen(
        NODE,
        Sharing(),
        usage=world.usage,
        gpus=GPUS.by_uuid,
        published=lambda: frozenset(GPUS.by_uuid()),
        held=lambda: held,
    )

    async def cost(first: int, count: int) -> Counter[str]:
        """Of a scrape with so many containers, after one in which they were new."""
        for number in range(first, count):
            made = claim(f"c{number}", [result(number % 2, "1Gi", "1")])
            world.prepare(made, pod(f"p{number}", container("x", f"c{number}")))
            world.runs(1000 + number, made)
        with opened(tmp_path) as new:
            await seen.look()
        with opened(tmp_path) as found:
            await seen.look()
        assert new["claims"] - found["claims"] == count - first
        assert len(seen.view.containers) == count
        return found

    few, many = await cost(0, 2), await cost(2, 12)
    assert (few["vgpu"], many["vgpu"]) == (2, 12)
    assert few["claims"] == many["claims"]
    assert (many["proc"] - few["proc"]) / 10 <= 5
