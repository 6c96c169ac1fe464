"""Does the API server call the webhook, for what, and does it trust it: both webhook configurations. Pure."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.certificate.key_pair import Certificate, read_certificates
from hami_kubeletplugin.webhook.doctor.expected import differences, manifests, resources
from hami_kubeletplugin.webhook.doctor.installed import few

APPLY: Final = "helm upgrade hami-dra charts/hami-dra -n hami-system   # without helm: kubectl apply -f webhook.yaml"
PODS: Final = "pods.hami.io"
_SOON: Final = timedelta(days=7)
"""The webhook renews its own a month before its end, cert-manager after two thirds of its life."""
_OPTIONS: Final = {
    f"HAMI_{part}_NAME": default
    for part, default in {
        "RESOURCE_COUNT": names.GPU_COUNT,
        "RESOURCE_MEMORY": names.GPU_MEMORY,
        "RESOURCE_MEMORY_PERCENTAGE": names.GPU_MEMORY_PERCENTAGE,
        "RESOURCE_CORE": names.GPU_CORES,
        "RESOURCE_PRIORITY": names.GPU_PRIORITY,
    }.items()
} | {"HAMI_RESOURCE_MEMORY_ALIAS": names.GPU_MEMORY_ALIAS}
Json = Mapping[str, Any]
of_webhook = partial(Finding, check="webhook")
_trust = partial(Finding, check="certificate")


class Called(NamedTuple):
    """Where the API server calls the webhook.

    Attributes:
        host: The name that the certificate must have.
        namespace: Of the Service; empty: it is called by a URL.
        service: The Service.
    """

    host: str
    namespace: str
    service: str


def entries(configurations: Sequence[Json]) -> dict[str, Json]:
    """Our webhooks in them, by name."""
    found = {}
    for configuration in configurations:
        for _, entry in fields.mappings(configuration.get("webhooks")):
            if entry.get("name") in names.WEBHOOKS:
                found[str(entry["name"])] = entry
    return found


def called(entry: Json) -> Called:
    """See `Called`; k8s.io/apiserver pkg/util/webhook/client.go."""
    service = fields.mapping(fields.at(entry, "clientConfig", "service"))
    if service:
        namespace, name = str(service.get("namespace")), str(service.get("name"))
        return Called(f"{name}.{namespace}.svc", namespace, name)
    return Called(urlsplit(str(fields.at(entry, "clientConfig", "url") or "")).hostname or "", "", "")


def rules(found: Mapping[str, Json], environment: Mapping[str, str], driver: str, namespace: str) -> Iterator[Finding]:
    """Whether the webhooks are there, and as this version has them.

    Args:
        found: As from `entries`.
        environment: The webhook's variables, as far as they are known.
        driver: The driver's name.
        namespace: The webhook's.
    """
    if not found:
        yield of_webhook(
            level=Level.error,
            what="no webhook configuration names pods.hami.io",
            why="pods that name nvidia.com/gpu are created as they are, and wait for ever, or get a GPU of a device plugin",
            mend=APPLY,
        )
        return
    problems = [
        *_missing(found),
        *(problem for name, entry in found.items() for problem in _changed(name, entry, driver, namespace)),
        *_other_names(found, environment),
    ]
    yield from problems
    if not problems:
        yield of_webhook(level=Level.ok, what=f"{few(found)}: rules and conditions are those of this version")
    if url := next((str(url) for entry in found.values() if (url := fields.at(entry, "clientConfig", "url"))), ""):
        yield of_webhook(
            level=Level.hint,
            what=f"the API server calls it by a URL, {url}, and not by a Service: who serves that isn't looked at",
        )


def _missing(found: Mapping[str, Json]) -> Iterator[Finding]:
    for name in names.WEBHOOKS:
        if name not in found:
            needed = name == PODS
            yield of_webhook(
                level=Level.error if needed else Level.warning,
                what=f"the webhook {name} is in no configuration",
                why="pods that name nvidia.com/gpu aren't converted"
                if needed
                else "mistakes are told late, by the pod's event",
                mend=APPLY,
            )


def _changed(name: str, entry: Json, driver: str, namespace: str) -> Iterator[Finding]:
    if name == PODS and entry.get("failurePolicy") != "Fail":
        yield of_webhook(
            level=Level.warning,
            what=f"{name}: failurePolicy is {entry.get('failurePolicy')}",
            why="while the webhook is away, GPU pods are created unconverted: they wait for ever, or run beside DRA's on one GPU",
            mend=APPLY,
        )
    wanted = {key: value for key, value in manifests()["webhooks"][name].items() if key != "failurePolicy"}
    if differ := differences(wanted, entry, driver=driver, called={namespace: names.WEBHOOK_NAMESPACE}):
        yield of_webhook(
            level=Level.warning,
            what=f"{name}: {', '.join(differ)} differ from webhook.yaml of this version",
            why="if nobody changed it on purpose, it is of another version: pods may be passed over that should be converted",
            mend=f"kubectl diff -f webhook.yaml\n{APPLY}",
        )


def _other_names(found: Mapping[str, Json], environment: Mapping[str, str]) -> Iterator[Finding]:
    conditions = fields.at(found.get(PODS), "matchConditions")
    # Of a variable that is set from elsewhere only the name is known here.
    if PODS not in found or any(environment.get(variable) == "" for variable in _OPTIONS):
        return
    named, ours = resources(conditions), {environment.get(variable, default) for variable, default in _OPTIONS.items()}
    if conditions and (lacking := ours - named):
        yield of_webhook(
            level=Level.error,
            what=f"{PODS}: its conditions don't name {few(lacking)}, which the webhook takes for its own",
            why="pods that name nothing else of ours are not converted",
            mend="kubectl edit mutatingwebhookconfiguration zz-webhook.gpu.hami.io   # or set the chart's values of these names",
        )
    elif more := named - ours if conditions else set():
        yield of_webhook(
            level=Level.warning,
            what=f"{PODS}: its conditions name {few(more)}, which the webhook does not know",
            why="such pods depend on the webhook, and are not converted",
            mend="kubectl edit mutatingwebhookconfiguration zz-webhook.gpu.hami.io",
        )


def trust(found: Mapping[str, Json], now: datetime) -> Iterator[Finding]:
    """Whether each `caBundle` can be the reason for trust in somebody. Whether it is the server's own only a call shows."""
    good = []
    for name, entry in found.items():
        problem = _fault(name, entry, now)
        if problem is None:
            good.append(name)
        else:
            yield problem
    if good:
        yield _trust(
            level=Level.ok, what=f"caBundle of {few(good)} has certificates that are valid, for the right name"
        )


def _fault(name: str, entry: Json, now: datetime) -> Finding | None:
    text = fields.at(entry, "clientConfig", "caBundle")
    wrong = partial(
        _trust,
        level=Level.error,
        why="the API server trusts nobody there: GPU pods are refused"
        if name == PODS
        else "the API server trusts nobody there, and goes on without it: mistakes are told late",
        mend="kubectl -n hami-system rollout restart deployment hami-webhook   # it writes caBundle; with cert-manager look at "
        "cert-manager.io/inject-ca-from",
    )
    if not text:
        return wrong(what=f"{name}: caBundle is empty")
    try:
        certificates = read_certificates(base64.b64decode(str(text), validate=True))
    except (binascii.Error, CertificateError, ValueError) as error:
        return wrong(what=f"{name}: caBundle can't be read: {error}")
    if not certificates:
        return wrong(what=f"{name}: caBundle has no certificate")
    valid = [each for each in certificates if each.valid(now)]
    if not valid:
        last = max(each.not_after for each in certificates)
        return wrong(what=f"{name}: each certificate of caBundle has expired, the last one at {last:%Y-%m-%d %H:%M}Z")
    host = called(entry).host
    if not any(each.authority or host in each.hosts for each in valid):
        return wrong(what=f"{name}: no certificate of caBundle is for {host}, as which the API server calls it")
    return _soon(name, valid, now)


def _soon(name: str, valid: Sequence[Certificate], now: datetime) -> Finding | None:
    last = max(each.not_after for each in valid)
    if last - now >= _SOON:
        return None
    return _trust(
        level=Level.warning,
        what=f"{name}: caBundle is good until {last:%Y-%m-%d %H:%M}Z only",
        why="it should have been renewed by now; afterwards GPU pods are refused",
        mend="kubectl -n hami-system exec deploy/hami-webhook -- hami-webhook certs",
    )
