"""What is looked at, by whom: people with their rights, and the webhook in its pod with its own."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import ApiError, ApiForbidden
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.findings import Check, Finding, Level, examine
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.webhook.doctor import (
    classes,
    configuration,
    conflicts,
    installed,
    kubernetes,
    order,
    policies,
    probe,
    rates,
    reach,
    service,
    templates,
)
from hami_kubeletplugin.webhook.doctor.cluster import Cluster
from hami_kubeletplugin.webhook.doctor.installation import CONFIGURATIONS, Installation

_NAMES: Final = "names"
Part = Callable[[], Iterable[Finding]]
TryOut = Callable[[Call, Object], Object]


def found_by(there: Installation, checks: Mapping[str, Check], timeout: float) -> list[Finding]:
    """Run them; what could not be read for several of them is told once, and commands have the names that things have there.

    Args:
        there: What is looked at.
        checks: By name.
        timeout: Seconds for all.
    """
    called = [(names.WEBHOOK_NAMESPACE, names.WEBHOOK)]

    def learn() -> list[Finding]:
        # Beside the others, as it asks the API server, which may hang.
        called.append((there.namespace, str(fields.at(there.webhook(), "metadata", "name") or names.WEBHOOK)))
        return []

    once: dict[object, Finding] = {}
    for finding in examine({**checks, _NAMES: learn}, timeout):
        if finding.check != _NAMES:
            once.setdefault(finding.what if finding.level is Level.unknown else finding, finding)
    return [replace(each, mend=_called(each.mend, *called[-1])) for each in once.values()]


def _called(mend: str, namespace: str, webhook: str) -> str:
    """A command with the names that things have, instead of those by default."""
    mend = mend.replace(f"-n {names.WEBHOOK_NAMESPACE}", f"-n {namespace}")
    for kind in ("deploy/", "deployment "):
        mend = mend.replace(f"{kind}{names.WEBHOOK}", f"{kind}{webhook}")
    return mend


def for_people(there: Installation, namespace: str, try_out: TryOut) -> dict[str, Check]:
    """All that can be seen of a cluster from outside.

    Args:
        there: What is looked at.
        namespace: In which a pod is tried out.
        try_out: How: `PeoplesClient.try_out`.
    """
    cluster = there.cluster
    return {
        **_everybodys(there, lambda: _node_names(cluster)),
        "nodes": _parts("nodes", lambda: installed.nodes_without(cluster.nodes(), there.daemon_pods())),
        "certificate": _parts("certificate", lambda: configuration.trust(there.entries(), datetime.now(UTC))),
        "service": _parts("service", lambda: _addresses(there), lambda: _replicas(there)),
        "conversion": _parts("conversion", lambda: _tried(namespace, try_out, there)),
        "order": _parts(
            "order",
            lambda: order.order(there.configurations(CONFIGURATIONS[0])),
            lambda: order.left_out(cluster.all("namespaces", "", {names.IGNORE_LABEL: "ignore"})),
        ),
        "policies": _parts("policies", lambda: _policies(there)),
        "class": _parts(
            "class",
            lambda: classes.classes(
                cluster.all("deviceclasses"), cluster.driver, name=there.variables().get("HAMI_DEVICE_CLASS", "")
            ),
        ),
        "conflicts": _parts(
            "conflicts",
            lambda: conflicts.plugins(cluster.all("daemonsets")),
            lambda: conflicts.same_nodes(cluster.nodes(), _our_nodes(there)),
            lambda: conflicts.other_driver(cluster.slices(), cluster.driver),
            lambda: conflicts.operators(cluster.all("gpuclusters"), cluster.all("clusterpolicies")),
        ),
        "quotas": _parts("quotas", lambda: conflicts.quotas(cluster.all("resourcequotas"), cluster.driver)),
        "rates": _parts(
            "rates",
            lambda: _control_plane("kube-controller-manager", cluster),
            lambda: _control_plane("kube-scheduler", cluster),
            lambda: _kubelet(there),
        ),
    }


def for_the_webhook(there: Installation, certificate: Part) -> dict[str, Check]:
    """What the webhook's own rights, which are few on purpose, let it see, and how it is reached from its pod.

    Args:
        there: What is looked at.
        certificate: What it knows of its own certificate.
    """
    return {
        **_everybodys(there, lambda: None),
        "certificate": _parts("certificate", certificate),
        "reachable": _parts("reachable", lambda: _reached(there)),
        "conflicts": _parts(
            "conflicts",
            lambda: conflicts.plugins(there.cluster.all("daemonsets")),
            lambda: conflicts.other_driver(there.cluster.slices(), there.cluster.driver),
        ),
        "rest": _rest,
    }


def _rest() -> Iterator[Finding]:
    yield Finding(
        check="rest",
        level=Level.hint,
        what="nodes, policies, DeviceClasses, quotas and others' webhooks were not looked at: the webhook may not, on purpose",
        mend="kubectl hami doctor",
    )


def _everybodys(there: Installation, nodes: Callable[[], Collection[str] | None]) -> dict[str, Check]:
    cluster = there.cluster
    return {
        "kubernetes": _parts(
            "kubernetes",
            lambda: kubernetes.kubernetes(
                cluster.path("/version", "version", "gitVersion"), cluster.path("/apis/resource.k8s.io", "apis")
            ),
            lambda: kubernetes.gates(cluster.slices(), cluster.driver),
        ),
        "daemon": _parts("daemon", lambda: _daemons(there)),
        "slices": _parts("slices", lambda: installed.published(cluster.slices(), cluster.driver, nodes())),
        "webhook": _parts("webhook", lambda: _webhook(there), lambda: _rules(there)),
        "versions": _parts("versions", lambda: _versions(there)),
        "templates": _parts("templates", lambda: _templates(there)),
    }


def _parts(name: str, *parts: Part) -> Check:
    """A check of several parts, of which one that can't be looked at keeps none from the others."""

    def check() -> Iterator[Finding]:
        for part in parts:
            try:
                yield from part()
            except ApiError as error:
                yield Finding(check=name, level=Level.unknown, what=str(error))

    return check


def _daemons(there: Installation) -> Iterator[Finding]:
    found = [(each, there.cluster.pods(each)) for each in there.daemon_sets()]
    publishes = any(each.driver == there.cluster.driver for each in there.cluster.slices())
    return installed.daemons(found, publishes=publishes)


def _webhook(there: Installation) -> Iterator[Finding]:
    if (webhook := there.webhook()) is not None:
        finding = configuration.of_webhook
        yield from installed.workload(
            webhook, there.cluster.pods(webhook), finding, "without it, pods that name nvidia.com/gpu are refused"
        )


def _rules(there: Installation) -> Iterator[Finding]:
    return configuration.rules(there.entries(), there.variables(), there.cluster.driver, there.namespace)


def _versions(there: Installation) -> Iterator[Finding]:
    webhook = there.webhook()
    return installed.versions([*there.daemon_sets(), *([webhook] if webhook else [])])


def _templates(there: Installation) -> Iterator[Finding]:
    given = there.variables()
    most, lifetime = (
        float(given.get(f"HAMI_{option.upper()}") or WebhookSettings.model_fields[option].default)
        for option in ("max_namespace_templates", "template_lifetime")
    )
    return templates.templates(there.cluster.each_template(), datetime.now(UTC), most=int(most), lifetime=lifetime)


def _addresses(there: Installation) -> Iterator[Finding]:
    found = {configuration.called(entry) for entry in there.entries().values()}
    for where in sorted(each for each in found if each.service):
        labels = {"kubernetes.io/service-name": where.service}
        slices = there.cluster.all("endpointslices", where.namespace, labels)
        yield from service.addresses(where, there.cluster.get("services", where.service, where.namespace), slices)


def _replicas(there: Installation) -> Iterator[Finding]:
    return service.replicas(there.webhook(), there.cluster.all("poddisruptionbudgets", there.namespace))


def _tried(namespace: str, try_out: TryOut, there: Installation) -> Iterator[Finding]:
    resource = there.variables().get("HAMI_RESOURCE_COUNT_NAME") or names.GPU_COUNT
    if not there.entries():
        return  # said already
    try:
        yield probe.judged(namespace, try_out(probe.call(namespace), probe.pod(namespace, resource)))
    except ApiError as error:
        yield probe.judged(namespace, error)


def _policies(there: Installation) -> Iterator[Finding]:
    found = policies.ours(*map(there.cluster.all, ("validatingadmissionpolicies", "validatingadmissionpolicybindings")))
    return policies.policies(found, policies.Who(there.users(), there.cluster.driver, there.namespace))


def _our_nodes(there: Installation) -> set[str]:
    published = {each.node for each in there.cluster.slices() if each.driver == there.cluster.driver}
    return published | {str(fields.at(pod, "spec", "nodeName")) for pod in there.daemon_pods()}


def _node_names(cluster: Cluster) -> set[str] | None:
    try:
        return set(cluster.nodes())
    except ApiForbidden:
        return None  # told by the check `nodes`, where that is one


def _control_plane(component: str, cluster: Cluster) -> Iterator[Finding]:
    return rates.control_plane(component, cluster.all("pods", "kube-system", {"component": component}))


def _kubelet(there: Installation) -> Iterator[Finding]:
    node = min((each.node for each in there.cluster.slices() if each.driver == there.cluster.driver), default="")
    if not node:
        return iter(())
    try:
        found = there.cluster.path(f"/api/v1/nodes/{node}/proxy/configz", "nodes/proxy", "kubeletconfig")
    except ApiError:
        found = None  # few may, and little hangs on it
    return rates.kubelet(found)


def _reached(there: Installation) -> Iterator[Finding]:
    entry = there.entries().get(configuration.PODS)
    return iter(()) if entry is None else reach.reach(entry)
