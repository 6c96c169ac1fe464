"""A sound installation, made from the manifests, that tests break; and a reader of it that is no server."""

import base64
import copy
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from hami_kubeletplugin.api.errors import ApiForbidden, ApiNotFound
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.webhook.certificate.key_pair import make
from tests import REPOSITORY
from tests.unit.kubectl.objects import a100s, slice_

Json = dict[str, Any]
HOST = "hami-webhook.hami-system.svc"
NODES = ("n1", "n2")
_RESOURCES = {
    "GPUCluster": "gpuclusters",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


def resource(kind: str) -> str:
    """As it stands in paths."""
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    return _RESOURCES.get(kind, plural)


def bundle(*, host: str = HOST, age: timedelta = timedelta()) -> str:
    """`caBundle` of a certificate that was made so long ago."""
    return base64.b64encode(make([host], datetime.now(UTC) - age).chain.encode()).decode()


class World:
    """Objects by resource, as a `Reader`; those whose resource is in `forbidden` may not be read."""

    def __init__(self, objects: dict[str, list[Json]]) -> None:
        self.objects = objects
        self.forbidden: set[str] = set()
        self.versions = ["v1"]
        self.version = ("1", "37")
        self.answer: Json | Exception = {"spec": {"resourceClaims": [{"name": "gpu"}]}}
        self.asked: list[Call] = []

    def get(self, call: Call) -> Json:
        """See `Reader`."""
        self._check(call)
        if call.path == "/version":
            major, minor = self.version
            return {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.2"}
        if call.path == "/apis/resource.k8s.io":
            return {"kind": "APIGroup", "versions": [{"version": each} for each in self.versions]}
        for each in self.objects.get(call.resource.partition(".")[0], ()):
            if call.path.endswith(f"/{each['metadata']['name']}"):
                return each
        raise ApiNotFound(f"{call} failed: not found (404)")

    def all(self, call: Call) -> Iterator[Json]:
        """See `Reader`."""
        self._check(call)
        for each in self.objects.get(call.resource.partition(".")[0], ()):
            if not call.name or each["metadata"].get("namespace") == call.name:
                yield each

    def try_out(self, call: Call, body: Json) -> Json:
        """As `PeoplesClient` has it."""
        self._check(call)
        assert body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def one(self, kind: str, name: str = "") -> Json:
        """An object, to be changed."""
        found = [each for each in self.objects[resource(kind)] if not name or each["metadata"]["name"] == name]
        assert len(found) == 1, (kind, name, len(found))
        return found[0]

    def hook(self, name: str) -> Json:
        """An entry of a webhook configuration."""
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            for entry in self.one(kind, "zz-webhook.gpu.hami.io")["webhooks"]:
                if entry["name"] == name:
                    found: Json = entry
                    return found
        raise AssertionError(name)

    def remove(self, kind: str, name: str = "") -> None:
        """Delete one."""
        self.objects[resource(kind)].remove(self.one(kind, name))

    def put(self, kind: str, obj: Json) -> Json:
        """Create one."""
        self.objects.setdefault(resource(kind), []).append(obj)
        return obj

    def _check(self, call: Call) -> None:
        self.asked.append(call)
        if call.resource.partition(".")[0] in self.forbidden:
            raise ApiForbidden(
                f"{call} failed: forbidden (403); allow verb {call.verb} on {call.resource} in the ClusterRole"
            )


def _pods(workload: Json) -> Iterator[Json]:
    template, about = workload["spec"]["template"], workload["metadata"]
    for node in NODES:
        yield {
            "metadata": {"name": f"{about['name']}-{node}", "namespace": about["namespace"], **template["metadata"]},
            "spec": {**template["spec"], "nodeName": node},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c", "restartCount": 0}],
            },
        }


def manifests() -> Iterator[Json]:
    """All of daemonset.yaml and webhook.yaml."""
    for file in ("daemonset.yaml", "webhook.yaml"):
        yield from yaml.safe_load_all((REPOSITORY / file).read_text())


def world(items: Iterable[Json] | None = None, driver: str = "gpu.hami.io") -> World:
    """Two nodes with GPUs, an installation in them, and what a control plane of kubeadm has.

    Args:
        items: The installation; None: the manifests.
        driver: Its driver.
    """
    objects: dict[str, list[Json]] = {}
    found = World(objects)
    for item in manifests() if items is None else items:
        found.put(item["kind"], copy.deepcopy(item))
    daemon_set, deployment = found.one("DaemonSet"), found.one("Deployment")
    namespace, service = daemon_set["metadata"]["namespace"], found.one("Service")["metadata"]["name"]
    trust = bundle(host=f"{service}.{namespace}.svc")
    for name in ("names.hami.io", "pods.hami.io", "claims.hami.io"):
        found.hook(name)["clientConfig"]["caBundle"] = trust
    daemon_set["status"] = {"desiredNumberScheduled": 2}
    objects["pods"] = [*_pods(daemon_set), *_pods(deployment)]
    objects["nodes"] = [
        {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
            "status": {"allocatable": {"cpu": "8"}},
        }
        for name in NODES
    ]
    objects["resourceslices"] = [slice_(name, *a100s(2), driver=driver) for name in NODES]
    about = {"namespace": namespace, "name": "w", "labels": {"kubernetes.io/service-name": service}}
    found.put("EndpointSlice", {"metadata": about, "endpoints": [{"conditions": {"ready": True}}] * 2})
    for component in ("kube-controller-manager", "kube-scheduler"):
        made = {"name": component, "namespace": "kube-system", "labels": {"component": component}}
        found.put("Pod", {"metadata": made, "spec": {"containers": [{"command": [component, "--kube-api-qps=200"]}]}})
    return found


Break = Callable[[World], object]
