"""The webhook: what a review costs its caller, the API server, and the webhook's own core. No kubelet is needed."""

import asyncio
import contextlib
import copy
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.figures import Figure, Watch, say
from bench.largest import largest
from bench.objects import Namespace, namespace
from bench.process import Places
from bench.reviews import Connection, check, connected, deletion, review
from bench.webhook import Webhook, dry_run, installation, until_called
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

STARTS = 5
REVIEWS = 1000
"""Of each kind, one after the other."""
NEW = 200
"""Pods that each need another template."""
CALLERS = 16
ROUNDS = 5
"""Of as many reviews through all callers."""
THROUGH = 200
"""Pods of each kind that the API server is asked for, on a dry run."""
IDLE_SECONDS = 20.0

_REQUESTS: Final = re.compile(
    r'^apiserver_request_total\{.*group="resource.k8s.io".*verb="(?!WATCH)\w+".*\} (\S+)$', re.MULTILINE
)

Json = dict[str, Any]


async def measure(kubeconfig: Path, places: Places) -> list[Figure]:
    """Everything, in order."""
    access = from_kubeconfig(kubeconfig)
    async with (
        KubeClient(access) as api,
        namespace(api) as objects,
        installation(api, kubeconfig, places) as installed,
    ):
        say(f"webhook: {STARTS} starts")
        starts = []
        for _ in range(STARTS):
            async with installed.running() as webhook:
                starts.append(webhook.ready)
        async with installed.running() as webhook:
            pods = await Pods.known(api, objects)
            await until_called(api, objects.pods, pod("called", gpu=1))
            requests = Requests(access.server, access)
            figures = [
                Figure("webhook: start to ready", "ms", starts),
                *await single(webhook, pods, requests),
                *await many(webhook, pods),
                *await through(api, objects),
                Figure("memory (PSS) after that", "MB", [webhook.process.pss()], 80),
                Figure("memory (RSS) after that", "MB", [webhook.process.rss()], 80),
                *await largest(webhook, pods.gpu),
                Figure("memory (RSS) after these", "MB", [webhook.process.rss()]),
            ]
            say(f"webhook: at rest for {IDLE_SECONDS:g} s")
            return [*figures, Figure("CPU at rest", "%", [await webhook.process.idle_cpu(IDLE_SECONDS)], 0.3)]


class Pods:
    """Reviews of pods, and of a claim, as the API server sends them: with all defaults, each of another object.

    Args:
        gpu: A pod that asks for a GPU.
        plain: One that doesn't.
        claim: A claim.
    """

    def __init__(self, gpu: Json, plain: Json, claim: Json) -> None:
        self._gpu, self._plain, self._claim = gpu, plain, claim
        self._numbers = itertools.count()

    @classmethod
    async def known(cls, api: KubeClient, objects: Namespace) -> "Pods":
        """Ask the API server for the defaults."""
        gpu = await dry_run(api, objects.pods, pod("gpu", labels={"hami.io/webhook": "ignore"}, gpu=1, gpumem=4000))
        del gpu["metadata"]["labels"]
        return cls(gpu, await dry_run(api, objects.pods, pod("plain")), claim(objects.name))

    def gpu(self) -> bytes:
        """All of them need the same template."""
        return self._review(self._gpu)

    def new(self) -> bytes:
        """Needs a template that no other one needs."""
        made = copy.deepcopy(self._gpu)
        memory = {"nvidia.com/gpumem": str(10001 + 2 * next(self._numbers))}
        for amounts in made["spec"]["containers"][0]["resources"].values():
            amounts.update(memory)
        return self._review(made)

    def plain(self) -> bytes:
        """Needs none. The condition in webhook.yaml keeps such pods away from the webhook."""
        return self._review(self._plain)

    def claim(self) -> bytes:
        """A ResourceClaim that somebody wrote."""
        return review(self._claim, "resourceclaims")

    def _review(self, obj: Json) -> bytes:
        return review(obj | {"metadata": obj["metadata"] | {"name": f"pod-{next(self._numbers)}"}}, "pods")


class Requests:
    """How many requests for resource.k8s.io the API server has answered; here only the webhook sends any.

    Args:
        server: Its URL.
        access: An administrator's.
    """

    def __init__(self, server: str, access: Any) -> None:
        self._url, self._access = f"{server}/metrics", access

    async def count(self) -> float:
        """Since its start; watches don't count."""
        headers = {"Authorization": f"Bearer {self._access.token}"} if self._access.token else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self._url, ssl=self._access.tls) as got,
        ):
            got.raise_for_status()
            return sum(map(float, _REQUESTS.findall(await got.text())))


async def single(webhook: Webhook, pods: Pods, requests: Requests) -> list[Figure]:
    """One connection, one review after the other."""
    say(f"webhook: {REVIEWS} reviews of each kind, one at a time")
    async with connected(webhook.port, webhook.tls) as connection:
        await connection.post("/mutate", pods.gpu())  # makes the template
        least = await timed(connection, "/mutate", [deletion() for _ in range(REVIEWS)], patched=False)
        before = await requests.count()
        gpu = await timed(connection, "/mutate", [pods.gpu() for _ in range(REVIEWS)], patched=True)
        known = exactly(await requests.count() - before, 0, "pods with a template that exists")
        plain = await timed(connection, "/mutate", [pods.plain() for _ in range(REVIEWS)], patched=False)
        claims = await timed(connection, "/validate", [pods.claim() for _ in range(REVIEWS)], patched=False)
        before = await requests.count()
        new = await timed(connection, "/mutate", [pods.new() for _ in range(NEW)], patched=True)
        unknown = exactly(await requests.count() - before, NEW, f"{NEW} pods with a new template each") / NEW
    return [
        Figure("a deletion, for comparison", "ms", least.laps),
        Figure("GPU pod, template exists", "ms", gpu.laps, 2, 8),
        Figure("    requests to the API server", "per pod", [known], 0),
        Figure("GPU pod, a new template each", "ms", new.laps),
        Figure("    requests to the API server", "per pod", [unknown], 1),
        Figure("pod without GPU", "ms", plain.laps),
        Figure("ResourceClaim, /validate", "ms", claims.laps),
    ]


async def many(webhook: Webhook, pods: Pods) -> list[Figure]:
    """Many connections, on each one review after the other; the webhook has one core, we have the others."""
    say(f"webhook: {CALLERS} callers, {ROUNDS} x {REVIEWS} reviews")
    rates, cpu, latency = [], [], Watch()
    async with contextlib.AsyncExitStack() as stack:
        pinned = stack.enter_context(webhook.process.on_one_core())
        connections = [await stack.enter_async_context(connected(webhook.port, webhook.tls)) for _ in range(CALLERS)]
        for _ in range(ROUNDS):
            bodies = iter([pods.gpu() for _ in range(REVIEWS)])
            spent, started = webhook.process.cpu_seconds(), time.perf_counter()
            await asyncio.gather(*(caller(connection, bodies, latency) for connection in connections))
            rates.append(REVIEWS / (time.perf_counter() - started))
            cpu.append(1000 * (webhook.process.cpu_seconds() - spent) / REVIEWS)
    where = "on one core" if pinned else "on the only core"
    return [
        Figure(f"GPU pod, {CALLERS} at once", "ms", latency.laps),
        Figure(f"{CALLERS} at once, {where}", "reviews/s", rates, 500, at_least=True),
        Figure("    CPU time of the webhook", "ms/review", cpu),
    ]


async def through(api: KubeClient, objects: Namespace) -> list[Figure]:
    """Through the API server, as people see it; both kinds take turns."""
    say(f"webhook: {THROUGH} pods of each kind through the API server")
    gpu, plain = Watch(), Watch()
    for number in range(THROUGH):
        async with plain.lap():
            await dry_run(api, objects.pods, pod(f"plain-{number}"))
        async with gpu.lap():
            await dry_run(api, objects.pods, pod(f"gpu-{number}", gpu=1, gpumem=4000))
    added = [one - other for one, other in zip(gpu.laps, plain.laps, strict=True)]
    return [
        Figure("dry-run create of a plain pod", "ms", plain.laps),
        Figure("dry-run create of a GPU pod", "ms", gpu.laps),
        Figure("    difference", "ms", added),
    ]


async def caller(connection: Connection, bodies: Iterator[bytes], latency: Watch) -> None:
    """One of those who share the work."""
    for body in bodies:
        async with latency.lap():
            answer = await connection.post("/mutate", body)
        check(answer, patched=True)


async def timed(connection: Connection, path: str, bodies: Sequence[bytes], *, patched: bool) -> Watch:
    """Send all, one after the other."""
    watch = Watch()
    for body in bodies:
        async with watch.lap():
            answer = await connection.post(path, body)
        check(answer, patched=patched)
    return watch


def exactly(count: float, wanted: int, what: str) -> float:
    """The count. Unlike a time it does not depend on the machine's mood, so another one ends the bench.

    Raises:
        RuntimeError: It is another one.
    """
    if count != wanted:
        raise RuntimeError(f"{what} cost {count:g} requests to the API server, not {wanted}")
    return count


def pod(name: str, *, labels: dict[str, str] | None = None, **amounts: int) -> Json:
    """As people write it."""
    limits = {"cpu": "1", **{f"nvidia.com/{each}": str(amount) for each, amount in amounts.items()}}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def claim(where: str) -> Json:
    """As people write it."""
    driver, amounts = "gpu.hami.io", {"memory": "4000Mi", "cores": "30", "shares": "1"}
    parameters = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig", "corePolicy": "force"}
    request = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1, "capacity": {"requests": amounts}}
    devices = {
        "requests": [{"name": "gpu", "exactly": request}],
        "config": [{"opaque": {"driver": driver, "parameters": parameters}}],
    }
    metadata = {"name": "claim", "namespace": where}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": devices},
    }
