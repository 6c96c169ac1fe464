"""The webhook in a cluster with many namespaces and templates, beside the slices that are there already."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bench.admission import NEW, REVIEWS, Pods, pod, timed
from bench.figures import Figure, Watch, say
from bench.objects import Namespace, core_object, for_each, fresh_namespace
from bench.reviews import connected
from bench.served import Counts, Served
from bench.webhook import Installation, Webhook, until_called
from hami_kubeletplugin.api.names import WEBHOOK_NAMESPACE
from hami_kubeletplugin.api.webhook_settings import Conversion, WebhookSettings
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.kube.template_api import TemplateClient
from hami_kubeletplugin.webhook.cluster.allowance import Allowance
from hami_kubeletplugin.webhook.cluster.collector import Collector
from hami_kubeletplugin.webhook.cluster.templates import Templates
from hami_kubeletplugin.webhook.conversion.annotations import Selection
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.template import Template, template

NAMESPACES: Final = 1000
IN_EACH: Final = 10
STARTS: Final = 3
_AGE: Final = timedelta(days=10)
"""Of the templates' last use: each is one that the collector has to look after."""

Json = Mapping[str, Any]


async def measure(api: KubeClient, installed: Installation, counts: Counts) -> list[Figure]:
    """With none, then with all of them; the last thing is that the collector removes half."""
    async with fresh_namespace(api) as objects:
        pods = await Pods.known(api, objects)
        figures = await webhook(api, objects, installed, pods, "no template")
        say(f"scale: making {NAMESPACES} namespaces with {IN_EACH} templates each")
        async with TemplateClient(from_kubeconfig(installed.kubeconfig), timeout=60) as client:
            await make(api, client)
            figures += await webhook(api, objects, installed, pods, f"{NAMESPACES * IN_EACH} templates")
            say("scale: the collector's rounds")
            collector = Collector(client, WebhookSettings(namespace=WEBHOOK_NAMESPACE))
            figures += await collected(collector, counts, "half of them unused")
            figures += await collected(collector, counts, "all that are left used")
        return figures


async def make(api: KubeClient, client: TemplateClient) -> None:
    """Templates as the webhook makes them, last used long ago.

    Those of every other namespace are still named, by a CronJob: the last kind of user that the collector looks at.
    """
    unbounded = Allowance(WebhookSettings(template_rate=10**6, namespace_template_rate=10**6))
    webhook = Templates(client, unbounded, now=lambda: datetime.now(UTC) - _AGE)
    needs = [
        template(Demand(1, 1000 + number, None, 0, exclusive=False), Selection(), Conversion(), ())
        for number in range(IN_EACH)
    ]

    async def fill(number: int) -> None:
        name = f"team-{number:04}"
        await api.ask(Call("create", "namespaces", "/api/v1/namespaces", name), core_object("Namespace", name))
        await webhook.ensure(name, needs, dry_run=False)
        if number % 2:
            path = f"/apis/batch/v1/namespaces/{name}/cronjobs"
            await api.ask(Call("create", "cronjobs.batch", path, name), user(needs))

    await for_each(range(NAMESPACES), fill)


def user(needs: list[Template]) -> Json:
    """A suspended CronJob whose pods would use all of them."""
    claims = [{"name": need.name, "resourceClaimTemplateName": need.name} for need in needs]
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}], "resourceClaims": claims}
    job = {"spec": {"template": {"spec": pod}}}
    spec = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": job}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "user"}, "spec": spec}


async def webhook(api: KubeClient, objects: Namespace, installed: Installation, pods: Pods, there: str) -> list[Figure]:
    """Its start, its answers, its memory."""
    say(f"scale: the webhook, {there}")
    starts = []
    for _ in range(STARTS - 1):
        async with installed.running() as running:
            starts.append(running.ready)
    async with installed.running() as running:
        starts.append(running.ready)
        await until_called(api, objects.pods, pod("called", gpu=1))
        known, new = await reviewed(running, pods)
        return [
            Figure(f"webhook, {there}: start to ready", "ms", starts),
            Figure("    GPU pod, template exists", "ms", known.laps),
            Figure("    GPU pod, a new template each", "ms", new.laps),
            Figure("    memory (RSS) after that", "MB", [running.process.rss()]),
            Figure("    memory (RSS), the most it had", "MB", [running.process.peak()]),
        ]


async def reviewed(running: Webhook, pods: Pods) -> tuple[Watch, Watch]:
    """One review after the other on one connection: of pods whose template exists, and of pods that each need a new one."""
    async with connected(running.port, running.tls) as connection:
        await connection.post("/mutate", pods.gpu())  # makes the template
        known = await timed(connection, "/mutate", [pods.gpu() for _ in range(REVIEWS)], patched=True)
        new = await timed(connection, "/mutate", [pods.new() for _ in range(NEW)], patched=True)
        return known, new


async def collected(collector: Collector, counts: Counts, state: str) -> list[Figure]:
    """One round of the collector."""
    before, started = await counts.now(), time.perf_counter()
    await collector.collect()
    seconds, served = time.perf_counter() - started, (await counts.now()).since(before)
    return [
        Figure(f"collector, one round, {state}", "s", [seconds]),
        Figure("    lists", "", [lists(served)]),
        Figure("    deletes of templates", "", [served.of("DELETE", resource="resourceclaimtemplates")]),
    ]


def lists(served: Served) -> int:
    """All lists that were answered."""
    return sum(count for (verb, _), count in served.requests.items() if verb == "LIST")
