"""webhook.collector against webhook.templates: no template goes that a pod was just promised."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.api_store import Key
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.template_api import TemplateClient
from hami_kubeletplugin.webhook.cluster.allowance import Allowance
from hami_kubeletplugin.webhook.cluster.collector import Collector
from hami_kubeletplugin.webhook.cluster.templates import STAMP_EVERY, Templates
from tests.unit.webhook.cluster.fake_cluster import START, Clock, names, template

RESOURCE = "resourceclaimtemplates"
LIFETIME = timedelta(days=1)


@pytest.mark.parametrize("seed", range(2))
async def test_race_with_pods(seed: int) -> None:
    """Two collectors and the pods of two replicas at any pace: when `ensure` returns the template is there, and it stays.

    It may go when a day has passed since, less the hour for which a stamp is not renewed.
    """
    async with (
        ApiServer() as server,
        TemplateClient(Access(server.url)) as one,
        TemplateClient(Access(server.url)) as two,
    ):
        race = Race(server, random.Random(seed))
        views = [Templates(client, Allowance(WebhookSettings()), now=race.clock.now) for client in (one, two)]
        collectors = [Collector(client, WebhookSettings(), now=race.clock.now) for client in (one, two)]
        endless = [asyncio.create_task(view.run()) for view in views]
        endless += [asyncio.create_task(race.pods(view)) for view in views * 4]
        endless += [asyncio.create_task(race.collecting(collector)) for collector in collectors]
        passing = asyncio.create_task(race.time_passes())
        try:
            await asyncio.wait([passing, *endless], return_when=asyncio.FIRST_COMPLETED)
            assert passing.done(), [task.result() for task in endless if task.done()]
        finally:
            for task in [passing, *endless]:
                task.cancel()
            await asyncio.gather(passing, *endless, return_exceptions=True)
        await passing
    assert race.has_happened


class Race:
    """Pods, collectors and time, all at a random pace; pods like templates that are about to be collected."""

    def __init__(self, server: ApiServer, chance: random.Random) -> None:
        self.server, self.chance, self.clock = server, chance, Clock()
        self.used = {template(number).name: START for number in range(12)}
        self.gone, self.asking, self.wrong = 0, 0, list[str]()
        self._delete = server.store.delete
        server.store.delete = self.delete  # type: ignore[assignment, method-assign]

    def delete(self, key: Key, *rest: Any) -> Any:
        """What the server does, and a look at whether it was right."""
        result = self._delete(key, *rest)
        self.gone += 1
        age = self.clock.time - self.used[key.name]
        if age <= LIFETIME - STAMP_EVERY:
            self.wrong.append(f"{key.name} was collected {age} after its last use")
        return result

    async def pods(self, view: Templates) -> None:
        """Pods that come through one replica."""
        while True:
            due = [
                number for number in range(12) if self.clock.time - self.used[template(number).name] > LIFETIME * 0.98
            ]
            if due and self.chance.random() < 0.05:
                number = self.chance.choice(due)
                self.asking += 1
                await view.ensure("default", [template(number)], dry_run=False)
                self.asking -= 1
                self.used[template(number).name] = self.clock.time
                if ("default", template(number).name) not in names(self.server):
                    self.wrong.append(f"{template(number).name} is not there")
            await asyncio.sleep(self.chance.choice([0.001, 0.002, 0.005]))

    async def collecting(self, collector: Collector) -> None:
        """One replica's collector, which thinks that it holds the Lease."""
        while True:
            await collector.collect()
            await asyncio.sleep(self.chance.choice([0, 0.002]))

    @property
    def has_happened(self) -> bool:
        """Whether collectors and pods have met often enough to say something."""
        return self.gone > 20 and self.server.requests["patch", RESOURCE] > 20

    async def time_passes(self) -> None:
        """Two weeks or so. Minutes go by in a millisecond here, so not while a pod waits, or it would wait for hours.

        On a busy machine all that happens takes more real time, in which more of this one passes.
        """
        for step in range(10_000):
            if step > 500 and self.has_happened:
                return
            if not self.asking:
                self.clock.move(minutes=self.chance.choice([1, 20, 90]))
            self.server.latency = self.chance.choice([0, 0, 0.001, 0.002])
            await asyncio.sleep(self.chance.choice([0.001, 0.004]))
            assert self.wrong == []
