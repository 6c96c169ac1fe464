"""A cluster for what the webhook keeps in it: an API server in this process, a client of it, and a clock that tests move."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hami_kubeletplugin.api.names import LAST_USED, TEMPLATE_PREFIX
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.template_api import TemplateClient
from hami_kubeletplugin.webhook.conversion.template import MANAGED_BY, Template

START = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Clock:
    """A time that only moves when told, or when somebody sleeps; while `held`, sleepers wait."""

    def __init__(self) -> None:
        self.time = START
        self.slept = list[float]()
        self._go = asyncio.Event()
        self._go.set()

    def now(self) -> datetime:
        """The time."""
        return self.time

    def seconds(self) -> float:
        """The time as a number that only grows."""
        return (self.time - START).total_seconds()

    def move(self, **by: float) -> None:
        """Let time pass, e.g. `hours=1`."""
        self.time += timedelta(**by)

    def hold(self) -> None:
        """Let sleepers wait from now on."""
        self._go.clear()

    def release(self) -> None:
        """Let them go on."""
        self._go.set()

    async def sleep(self, seconds: float) -> None:
        """Pass the time at once, or when released."""
        self.slept.append(seconds)
        await self._go.wait()
        self.move(seconds=seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[ApiServer, TemplateClient]]:
    """An empty one and a client of it."""
    async with ApiServer() as server, TemplateClient(Access(server.url), timeout=5) as client:
        yield server, client


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, Any] | Awaitable[Any]) -> AsyncIterator[None]:
    """Something that runs for ever, until the block ends."""
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def template(number: int = 0) -> Template:
    """A template; another one for another number."""
    device = {"deviceClassName": "gpu.hami.io", "allocationMode": "ExactCount", "count": number + 1}
    return Template(f"{TEMPLATE_PREFIX}{number:020}", {"devices": {"requests": [{"name": "gpu", "exactly": device}]}})


def stored(
    number: int = 0, *, namespace: str = "default", used: datetime | str | None = None, ours: bool = True
) -> dict[str, Any]:
    """That template as an object, with a stamp if `used` is given."""
    obj = template(number).object(namespace, labels=MANAGED_BY if ours else None)
    if used is not None:
        stamp = used if isinstance(used, str) else used.strftime("%Y-%m-%dT%H:%M:%SZ")
        obj["metadata"]["annotations"] = {LAST_USED: stamp}
    obj["metadata"]["creationTimestamp"] = START.strftime("%Y-%m-%dT%H:%M:%SZ")
    return obj


def names(server: ApiServer) -> list[tuple[str, str]]:
    """Namespace and name of all templates that there are."""
    return [(obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in server.all("resourceclaimtemplates")]
