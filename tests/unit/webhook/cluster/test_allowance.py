"""webhook.allowance: how many templates there may be, and how fast they may come. Against an API server over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError, TooSoon
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.webhook.cluster.allowance import Allowance
from tests.unit.webhook.cluster.fake_cluster import START, Clock, cluster, in_background, stored, template
from tests.unit.webhook.cluster.test_templates import RESOURCE, World
from tests.waiting import until

LARGE = 64 * 1024


@pytest.fixture
async def small() -> AsyncIterator[World]:
    """A cluster where a namespace may have three templates."""
    async with cluster() as (server, client):
        world = World(server, client, WebhookSettings(max_namespace_templates=3))
        async with in_background(world.templates.run()):
            await world.seen()
            yield world


async def test_a_namespace_that_is_full(small: World) -> None:
    """What would be one too many is refused with the numbers and what to do, and nothing of that pod is written."""
    await small.ensure(0, 1)
    for dry_run in (True, False):
        with pytest.raises(AdmissionError) as refused:
            await small.ensure(2, 3, dry_run=dry_run)
        assert str(refused.value).startswith(
            "namespace default has 2 ResourceClaimTemplates of hami-webhook, this pod needs 2 more, and there may be 3: "
        )
        assert "kubectl -n default delete resourceclaimtemplates -l app.kubernetes.io/managed-by=hami-webhook" in str(
            refused.value
        )
    assert small.calls == {"create": 2}
    await small.ensure(0, 1, 2)
    await small.ensure(3, 4, 5, namespace="other")
    assert small.calls == {"create": 6}


async def test_pods_that_use_what_is_there(small: World) -> None:
    """In a full namespace they are admitted, stamps are renewed, and room comes when templates go; others' don't count."""
    for number in range(3):
        small.put(stored(number, used=START))
    small.put(stored(7, ours=False))
    await small.seen()
    small.clock.move(hours=1)
    await small.ensure(0, 1, 2, 7)
    with pytest.raises(AdmissionError, match="has 3 "):
        await small.ensure(3)
    small.server.remove(RESOURCE, template(1).name, "default")
    await small.seen()
    await small.ensure(3)
    assert small.calls == {"patch": 3, "create": 1}


async def test_pods_at_once_do_not_get_past_the_bound(small: World) -> None:
    """Templates that are just being made count, once each, for all pods that wait for them."""
    small.server.latency = 0.05
    wanted = [0, 1, 0, 1, 2, 3, 0, 4]
    results = await asyncio.gather(*(small.ensure(number) for number in wanted), return_exceptions=True)
    refused = [number for number, result in zip(wanted, results, strict=True) if isinstance(result, AdmissionError)]
    assert refused == [3, 4]
    assert small.calls == {"create": 3}


async def test_the_count_follows_the_cluster(small: World) -> None:
    """After a new list, and when somebody takes the label off, what counts is what there is."""
    for number in range(3):
        small.put(stored(number, used=START))
    await small.seen()
    small.put(stored(2, ours=False))
    await small.seen()
    await small.ensure(5)
    small.server.remove(RESOURCE, template(0).name, "default")
    small.templates.replace(await small.templates.listed())
    await small.ensure(6)
    with pytest.raises(AdmissionError, match="has 3 "):
        await small.ensure(8)


def allowance(clock: Clock, **settings: Any) -> Allowance:
    """With other bounds than the defaults."""
    return Allowance(WebhookSettings(**settings), clock=clock.seconds)


def taken(allowed: Allowance, namespace: str, size: int = LARGE) -> int:
    """How many of that size are made before clients are told to come later."""
    count = 0
    while count < 10_000:
        try:
            allowed.take(namespace, [size])
        except TooSoon:
            break
        count += 1
    return count


def test_a_namespace_has_a_rate() -> None:
    """Two minutes' worth may come at once, then as much as the rate says; who comes too soon is told when to come back."""
    clock = Clock()
    allowed = allowance(clock, namespace_template_rate=4)
    assert taken(allowed, "team") == 4 * 120 // 65
    with pytest.raises(TooSoon) as refused:
        allowed.take("team", [LARGE])
    assert str(refused.value) == (
        "too many ResourceClaimTemplates were made in namespace team a moment ago: try again in 10 s, or have an administrator "
        "raise --namespace-template-rate"
    )
    assert refused.value.retry_after == pytest.approx(10)
    clock.move(seconds=refused.value.retry_after)
    allowed.take("team", [LARGE])
    clock.move(hours=1)
    assert taken(allowed, "team") == 4 * 120 // 65


def test_one_namespace_leaves_the_others_theirs() -> None:
    """However much is asked for in one, a tenth of what all may have is gone, and others have what they had."""
    clock = Clock()
    allowed = allowance(clock)
    for _ in range(120):
        taken(allowed, "greedy", 1000)
        clock.move(seconds=1)
    assert taken(allowed, "modest") == 4 * 120 // 65


def test_all_namespaces_have_a_rate_together() -> None:
    """Many that ask at once, whether they exist or not, get no more than the rate of all; the message names its option."""
    clock = Clock()
    allowed = allowance(clock)
    assert sum(taken(allowed, f"team-{number}") for number in range(100)) == 40 * 120 // 65
    with pytest.raises(TooSoon, match=r"in the cluster a moment ago: .* raise --template-rate$"):
        allowed.take("another", [LARGE])


def test_what_is_more_than_two_minutes_worth() -> None:
    """It is made when nothing else was: a rate below the size of a template makes pods wait, and none for ever."""
    clock = Clock()
    allowed = allowance(clock, namespace_template_rate=0.1, max_pod_template_bytes=2**20)
    allowed.take("team", [LARGE])
    with pytest.raises(TooSoon):
        allowed.take("team", [1])
    clock.move(seconds=120)
    allowed.take("team", [LARGE])


def test_a_million_namespaces_are_not_kept() -> None:
    """Rates of namespaces that have made nothing for two minutes are forgotten."""
    clock = Clock()
    allowed = allowance(clock)
    for number in range(20_000):
        clock.move(seconds=1)
        allowed.take(f"team-{number}", [500])
    assert len(allowed._namespaces) < 2000


async def test_pods_that_come_too_soon_write_nothing() -> None:
    """Neither of a pod's two templates is made, and a dry run uses nothing up."""
    async with cluster() as (server, client):
        world = World(server, client, WebhookSettings(namespace_template_rate=0.1, template_rate=1))
        large = [replace(template(number), size=6 * 1024) for number in range(3)]
        await world.templates.ensure("default", large, dry_run=True)
        await world.templates.ensure("default", large[:1], dry_run=False)
        with pytest.raises(TooSoon):
            await world.templates.ensure("default", large, dry_run=False)
        await until(lambda: world.calls == {"create": 1})
        world.clock.move(minutes=2)
        await world.templates.ensure("default", large, dry_run=False)
        assert world.calls == {"create": 3}
