"""Who answers the API server's calls: the Service, its addresses, and the Deployment behind it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.configuration import APPLY, Called

Json = Mapping[str, Any]
_service = partial(Finding, check="service")


def addresses(where: Called, service: Json | None, slices: Sequence[Json]) -> Iterator[Finding]:
    """Whether the Service leads to somebody.

    Args:
        where: As the configuration has it.
        service: The Service; None: there is none.
        slices: Its EndpointSlices.
    """
    name = f"{where.namespace}/{where.service}"
    why = "the API server can't call the webhook: pods that name nvidia.com/gpu are refused"
    if service is None:
        yield _service(level=Level.error, what=f"Service {name} does not exist", why=why, mend=APPLY)
        return
    endpoints = [endpoint for each in slices for _, endpoint in fields.mappings(each.get("endpoints"))]
    # Nothing said counts as ready: k8s.io/api discovery/v1 EndpointConditions.
    ready = sum(fields.at(endpoint, "conditions", "ready") is not False for endpoint in endpoints)
    if ready:
        yield _service(level=Level.ok, what=f"Service {name} leads to {ready} pods that are ready")
        return
    yield _service(
        level=Level.error,
        what=f"Service {name} leads to no pod that is ready, of {len(endpoints)}",
        why=why,
        mend=f"kubectl -n {where.namespace} get pods -o wide\nkubectl -n {where.namespace} logs deploy/{where.service}",
    )


def replicas(deployment: Json | None, budgets: Sequence[Json]) -> Iterator[Finding]:
    """Whether the webhook outlives a node.

    Args:
        deployment: Its Deployment.
        budgets: PodDisruptionBudgets of its namespace.
    """
    if deployment is None:
        return
    name, namespace = (str(fields.at(deployment, "metadata", part)) for part in ("name", "namespace"))
    wanted = fields.at(deployment, "spec", "replicas")
    if (1 if wanted is None else wanted) == 1:
        yield _service(
            level=Level.hint,
            what=f"Deployment {namespace}/{name} has one replica",
            why="while its node is drained or gone, pods that name nvidia.com/gpu are refused",
            mend=f"kubectl -n {namespace} scale deployment {name} --replicas=2",
        )
        return
    labels = fields.mapping(fields.at(deployment, "spec", "template", "metadata", "labels"))
    selectors = [fields.mapping(fields.at(each, "spec", "selector", "matchLabels")) for each in budgets]
    if not any(selector and selector.items() <= labels.items() for selector in selectors):
        yield _service(
            level=Level.hint,
            what=f"Deployment {namespace}/{name} has no PodDisruptionBudget",
            why="a drain of several nodes may take all replicas at once",
            mend=APPLY,
        )
