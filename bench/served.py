"""What the API server says it has answered: its own counts, so that nothing that is asked of it goes unseen."""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from hami_kubeletplugin.kube.config import Access

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION"})
_EVERY: Final = 0.5
"""Seconds between looks for the peak. A look costs the API server some 30 ms, so there are none while it is measured at rest."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_ANSWERED: Final = re.compile(
    r'^apiserver_request_total\{code="(?!429)\d+".*\bresource="(?P<resource>[^"]*)".*\bverb="(?P<verb>\w+)".*\} (?P<count>\S+)$',
    re.MULTILINE,
)
_FLOW: Final = re.compile(
    r'^apiserver_flowcontrol_(?P<what>dispatched|rejected)_requests_total\{.*flow_schema="service-accounts".*\} (?P<count>\S+)$',
    re.MULTILINE,
)


@dataclass(slots=True)
class Served:
    """Counts of requests; watches count when they end.

    Attributes:
        requests: (verb, resource) -> how many, whoever sent them, less those that were refused for being too many. Verbs are
            HTTP's, and LIST and WATCH.
        flow: Those of service accounts, which only our programs are here, by `dispatched` and `rejected`. Unlike the former it
            has GETs of /version too, and watches as they begin.
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    flow: Counter[str] = field(default_factory=Counter)

    @classmethod
    def parsed(cls, metrics: str) -> "Served":
        """Out of the text of /metrics."""
        served = cls()
        for found in _ANSWERED.finditer(metrics):
            served.requests[found["verb"], found["resource"]] += round(float(found["count"]))
        for found in _FLOW.finditer(metrics):
            served.flow[found["what"]] += round(float(found["count"]))
        return served

    def since(self, before: "Served") -> "Served":
        """What came after that; all of it, if the server was started anew meanwhile: its counts begin at 0 then."""
        if self.requests.total() < before.requests.total():
            return self
        return Served(self.requests - before.requests, self.flow - before.flow)

    def of(self, *verbs: str, resource: str) -> int:
        """How many of these there were."""
        return sum(self.requests[verb, resource] for verb in verbs)

    def add(self, more: "Served") -> None:
        """Count these too."""
        self.requests += more.requests
        self.flow += more.flow


@dataclass(slots=True)
class Tally:
    """What was answered while a block ran, restarts of the API server included. Use `Counts.tally`.

    Attributes:
        served: All of it.
        peak: Most requests of service accounts in a second.
        peak_lists: Most lists of ResourceSlices in a second.
    """

    served: Served = field(default_factory=Served)
    peak: float = 0
    peak_lists: float = 0

    def take(self, more: Served, seconds: float) -> None:
        """What came in so many seconds."""
        self.served.add(more)
        self.peak = max(self.peak, more.flow["dispatched"] / seconds)
        self.peak_lists = max(self.peak_lists, more.of("LIST", resource="resourceslices") / seconds)


class Counts:
    """Asks the API server for them.

    Args:
        access: An administrator's.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def now(self) -> Served:
        """Since its start."""
        headers = {"Authorization": f"Bearer {self._access.token}"}
        async with (
            aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session,
            session.get(f"{self._access.server}/metrics", ssl=self._access.tls or True) as got,
        ):
            got.raise_for_status()
            return Served.parsed(await got.text())

    @contextlib.asynccontextmanager
    async def tally(self) -> AsyncIterator[Tally]:
        """Count while the block runs; complete at its end."""
        tally, last, looked = Tally(), await self.now(), time.monotonic()

        async def look() -> None:
            nonlocal last, looked
            found, seconds = await self.now(), time.monotonic() - looked
            tally.take(found.since(last), seconds)
            last, looked = found, looked + seconds

        async def again_and_again() -> None:
            nonlocal looked
            while True:
                await asyncio.sleep(_EVERY)
                try:
                    await look()
                except aiohttp.ClientConnectorError:  # it is away, and answers nobody
                    looked = time.monotonic()
                except (aiohttp.ClientError, TimeoutError):  # it is slow, or not quite there yet
                    continue

        looking = asyncio.create_task(again_and_again())
        try:
            yield tally
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
        await look()
