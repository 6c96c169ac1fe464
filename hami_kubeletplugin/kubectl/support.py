"""What a bug report needs of a cluster: our objects, what our pods say, what was found; and nobody's secrets.

Secrets are not read. Of what people may have put beside ours (other containers, variables, annotations) only names stay, and of
their pods names and resources.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from hami_kubeletplugin import __version__, redaction
from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.findings import Finding, as_json
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.people import PeoplesClient
from hami_kubeletplugin.kubectl.cluster import listed
from hami_kubeletplugin.webhook.doctor import policies
from hami_kubeletplugin.webhook.doctor.configuration import entries
from hami_kubeletplugin.webhook.doctor.installation import Installation

Json = Mapping[str, Any]
_CUT: Final = "(cut)"
_OWN_VARIABLES: Final = ("HAMI_", "NVIDIA_", names.NODE_NAME)
_OWN_ANNOTATIONS: Final = (names.TAINT, "hami.io/", "deployment.kubernetes.io/", "deprecated.daemonset.")
_MAY_HOLD_TOKENS: Final = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
"""In headers."""
_MOST: Final = 500
"""Objects of a list."""
_LARGEST: Final = 8 * 2**20
"""Characters of a list, one object more or less."""
_MOST_PODS: Final = 40
"""Whose logs are taken."""
_LINES: Final = 2000
_LOG_BYTES: Final = 2**20


def collect(there: Installation, client: PeoplesClient, found: Iterable[Finding], seconds: float) -> dict[str, bytes]:
    """By file, what goes into the bundle. What can't be read, or comes after so many seconds, is a file that says so."""
    until = time.monotonic() + seconds
    files = {"findings.json": redaction.text(as_json(found)), "version.txt": f"kubectl-hami {__version__}\n"}
    for name, read in _sources(there, client).items():
        if time.monotonic() > until:
            files[name] = f"# not read: {seconds:g} s were over\n"
            continue
        try:
            files[name] = _dumped(read(), until)
        except ApiError as error:
            files[name] = f"# {error}\n"
    for name, text in ({"events.yaml": files["events.yaml"]} | _logs(there, client, until)).items():
        files[name] = redaction.text(text)
    return {name: text.encode(errors="replace") for name, text in files.items()}


def _dumped(objects: Iterable[Object], until: float) -> str:
    """As YAML, each by itself, since a large cluster's take minutes: as many as there is time and room for."""
    made, size = [], 0
    for number, obj in enumerate(objects):
        if number == _MOST or size > _LARGEST or time.monotonic() > until:
            made.append(f"# cut after {number} of them\n")
            break
        made.append(f"---\n{yaml.safe_dump(obj, sort_keys=False)}")
        size += len(made[-1])
    return "".join(made)


def _sources(there: Installation, client: PeoplesClient) -> dict[str, Callable[[], Iterable[Object]]]:
    cluster, namespace = there.cluster, _namespace(there)

    def every(resource: str, path: str, **query: str) -> Iterable[Object]:
        return client.all(listed(resource, path, **query))

    def policies_of(kind: int) -> Iterable[Object]:
        found = policies.ours(*map(cluster.all, ("validatingadmissionpolicies", "validatingadmissionpolicybindings")))
        return (clean(each) for pair in found.values() if (each := pair[kind]))

    def ours(kind: str) -> Iterable[Object]:
        return (clean(each) for each in there.configurations(kind) if entries([each]))

    def own(resource: str) -> Iterable[Object]:
        return map(clean, cluster.all(resource, namespace))

    waiting = {"fieldSelector": "status.phase=Pending"}
    return {
        "kubernetes.yaml": lambda: filter(None, [cluster.path("/version", "version", "gitVersion")]),
        "daemonsets.yaml": lambda: map(clean, there.daemon_sets()),
        "webhook.yaml": lambda: map(clean, filter(None, [there.webhook()])),
        "pods.yaml": lambda: map(clean, _own_pods(there)),
        "services.yaml": lambda: own("services"),
        "endpointslices.yaml": lambda: own("endpointslices"),
        "mutating.yaml": lambda: ours("mutatingwebhookconfigurations"),
        "validating.yaml": lambda: ours("validatingwebhookconfigurations"),
        "policies.yaml": lambda: policies_of(0),
        "bindings.yaml": lambda: policies_of(1),
        "deviceclasses.yaml": lambda: map(clean, cluster.all("deviceclasses")),
        "slices.yaml": lambda: map(
            clean, every("resourceslices.resource.k8s.io", "/apis/resource.k8s.io/v1/resourceslices")
        ),
        "events.yaml": lambda: map(clean, every("events", f"/api/v1/namespaces/{namespace}/events")),
        "waiting.yaml": lambda: (
            _peoples(pod)
            for pod in every("pods", "/api/v1/pods", **waiting)
            if fields.at(pod, "spec", "resourceClaims")
        ),
    }


def _namespace(there: Installation) -> str:
    """Where it is; the default where what would say it may not be read."""
    try:
        return there.namespace
    except ApiError:
        return names.WEBHOOK_NAMESPACE


def _own_pods(there: Installation) -> list[Object]:
    webhook = there.webhook()
    return [*(there.cluster.pods(webhook) if webhook else ()), *there.daemon_pods()]


def _logs(there: Installation, client: PeoplesClient, until: float) -> dict[str, str]:
    try:
        pods = _own_pods(there)
    except ApiError as error:
        return {"logs/none.txt": f"{error}\n"}
    found: dict[str, str] = {}
    for pod in pods[:_MOST_PODS]:
        namespace, name = (str(fields.at(pod, "metadata", part)) for part in ("namespace", "name"))
        for container in _own_containers(pod):
            for previous in ("false", "true"):
                query = {
                    "container": container,
                    "tailLines": str(_LINES),
                    "limitBytes": str(_LOG_BYTES),
                    "previous": previous,
                }
                path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
                call = Call("get", "pods/log", path, f"{namespace}/{name}", query)
                file = f"logs/{name}.{container}{'.previous' if previous == 'true' else ''}.txt"
                if time.monotonic() > until:
                    return found | {file: "not read: the time was over\n"}
                try:
                    found[file] = client.text(call, _LOG_BYTES)
                except ApiError as error:
                    if previous == "false":  # most have no former one
                        found[file] = f"{error}\n"
    return found


def _own_containers(pod: Json) -> list[str]:
    containers = fields.mappings(fields.at(pod, "spec", "containers"))
    return [str(container.get("name")) for _, container in containers if _is_own(container)]


def clean(obj: Json) -> Object:
    """An object of ours without what people put beside it, or what nobody needs."""
    made = {key: value for key, value in obj.items() if key != "metadata"} | {"metadata": _metadata(obj)}
    template = fields.at(obj, "spec", "template")
    if isinstance(template, Mapping):
        made["spec"] = {**obj["spec"], "template": {"metadata": _metadata(template), "spec": _pod_spec(template)}}
    elif fields.at(obj, "spec", "containers"):
        made["spec"] = _pod_spec(obj)
    return made


def _metadata(obj: Json) -> Object:
    given = fields.mapping(obj.get("metadata"))
    annotations = fields.mapping(given.get("annotations"))
    kept = {key: value if str(key).startswith(_OWN_ANNOTATIONS) else _CUT for key, value in annotations.items()}
    return {key: value for key, value in given.items() if key not in ("managedFields", "annotations")} | (
        {"annotations": kept} if kept else {}
    )


def _pod_spec(obj: Json) -> Object:
    spec = dict(fields.mapping(obj.get("spec")))
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        if kind in spec:
            spec[kind] = [_container(each) for _, each in fields.mappings(spec[kind])]
    return spec


def _container(container: Json) -> Object:
    if not _is_own(container):
        return _named(container)
    kept = {key: value for key, value in container.items() if key not in _MAY_HOLD_TOKENS}
    return {**kept, "env": [_variable(each) for _, each in fields.mappings(container.get("env"))]}


def _is_own(container: Json) -> bool:
    variables = [str(each.get("name")) for _, each in fields.mappings(container.get("env"))]
    return any(name.startswith("HAMI_") for name in variables)


def _named(container: Json) -> Object:
    return {key: container[key] for key in ("name", "image", "resources") if key in container}


def _variable(variable: Json) -> Object:
    kept = str(variable.get("name")).startswith(_OWN_VARIABLES) or "value" not in variable
    return dict(variable) if kept else {"name": variable.get("name"), "value": _CUT}


def _peoples(pod: Json) -> Object:
    """Of somebody's pod names and resources."""
    spec = fields.mapping(pod.get("spec"))
    containers: Sequence[Object] = [_named(each) for _, each in fields.mappings(spec.get("containers"))]
    about = {key: fields.at(pod, "metadata", key) for key in ("namespace", "name", "uid", "creationTimestamp")}
    conditions = [
        {key: each.get(key) for key in ("type", "status", "reason")}
        for _, each in fields.mappings(fields.at(pod, "status", "conditions"))
    ]
    kept = {"containers": containers, "resourceClaims": spec.get("resourceClaims"), "nodeName": spec.get("nodeName")}
    return json.loads(json.dumps({"metadata": about, "spec": kept, "status": {"conditions": conditions}}))  # type: ignore[no-any-return]
