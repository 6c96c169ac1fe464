"""Which pods are read from the API server's cache, and when that is not trusted."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from hami_kubeletplugin.claims.pods import Pod
from hami_kubeletplugin.claims.reader import ClaimReader
from tests.unit.claims.node import NAMESPACE, NODE, Api, claim, container, pod, ref, result

Json = dict[str, Any]
DRIVER = "gpu.hami.io"


async def pods(api: Api, obj: Json) -> list[Pod]:
    """The pods of a claim, as a call of the kubelet reads them."""
    reader = ClaimReader(api, driver=DRIVER, node=NODE, patience=5)
    try:
        return await reader.pods(await reader.claim(ref(obj)))
    finally:
        await reader.close()


async def test_the_only_pod_comes_from_the_cache() -> None:
    """A bound pod is read once, from the cache, though the API server has a newer one with another phase."""
    api, obj = Api(), claim("c", [result()])
    api.put(obj, pod("p", container("x", "c"), phase="Running"))
    api.outdated = {(NAMESPACE, "p"): pod("p", container("x", "c"), phase="Pending")}
    api.pods.clear()
    (found,) = await pods(api, obj)
    assert [c.name for c in found.containers] == ["x"]
    assert api.gets == 2


def _not_bound(cached: Json) -> Json:
    del cached["spec"]["nodeName"]
    return cached


def _of_another_pod(cached: Json) -> Json:
    cached["metadata"]["uid"] = "of-its-predecessor"
    return cached


@pytest.mark.parametrize("change", [_not_bound, _of_another_pod, lambda _: None])
async def test_a_cache_that_lags_is_not_trusted(change: Callable[[Json], Json | None]) -> None:
    """A pod that the cache shows before its binding, shows its predecessor for, or lacks, is read as it is."""
    api, obj = Api(), claim("c", [result()])
    current = pod("p", container("x", "c"))
    api.put(obj, current)
    cached = change(copy.deepcopy(current) | {"status": {}})
    if cached is not None:
        cached["spec"]["containers"] = []
    api.outdated = {} if cached is None else {(NAMESPACE, "p"): cached}
    (found,) = await pods(api, obj)
    assert [c.name for c in found.containers] == ["x"]


async def test_a_server_that_is_away_is_asked_every_other_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause doubles from a tenth of a second, and ends at two: pods wait for this, so it must not double for ever."""
    api, obj = Api(), claim("c", [result()])
    api.put(obj, pod("p", container("x", "c")))
    api.away = True
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        api.away = len(pauses) < 12

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await pods(api, obj)
    assert pauses[0] <= 0.1
    assert all(1 <= pause <= 2 for pause in pauses[5:12])


async def test_several_pods_are_read_as_they_are() -> None:
    """Beside another pod the phase matters: a pod that has finished does not count, whatever the cache still shows."""
    api, obj = Api(), claim("c", [result()], pods=("done", "next"))
    api.outdated = {(NAMESPACE, name): pod(name, container("x", "c")) for name in ("done", "next")}
    api.put(obj, pod("done", container("x", "c"), phase="Succeeded"), pod("next", container("x", "c")))
    assert [found.ref.name for found in await pods(api, obj)] == ["next"]
