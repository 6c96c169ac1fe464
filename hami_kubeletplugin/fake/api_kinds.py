"""What the fake API server serves: kinds, their groups, and the forms of older API versions. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Object = dict[str, Any]

GROUP: Final = "resource.k8s.io"
"""The one group whose served versions can be chosen; of the others there is `v1`."""
_ADMISSION: Final = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind that is served."""

    kind: str
    group: str = ""
    namespaced: bool = True


RESOURCES: Final[Mapping[str, Resource]] = {
    "namespaces": Resource("Namespace", namespaced=False),
    "nodes": Resource("Node", namespaced=False),
    "pods": Resource("Pod"),
    "events": Resource("Event"),
    "secrets": Resource("Secret"),
    "services": Resource("Service"),
    "resourcequotas": Resource("ResourceQuota"),
    "replicationcontrollers": Resource("ReplicationController"),
    "deployments": Resource("Deployment", "apps"),
    "statefulsets": Resource("StatefulSet", "apps"),
    "daemonsets": Resource("DaemonSet", "apps"),
    "replicasets": Resource("ReplicaSet", "apps"),
    "jobs": Resource("Job", "batch"),
    "cronjobs": Resource("CronJob", "batch"),
    "leases": Resource("Lease", "coordination.k8s.io"),
    "mutatingwebhookconfigurations": Resource("MutatingWebhookConfiguration", _ADMISSION, namespaced=False),
    "validatingwebhookconfigurations": Resource("ValidatingWebhookConfiguration", _ADMISSION, namespaced=False),
    "validatingadmissionpolicies": Resource("ValidatingAdmissionPolicy", _ADMISSION, namespaced=False),
    "validatingadmissionpolicybindings": Resource("ValidatingAdmissionPolicyBinding", _ADMISSION, namespaced=False),
    "endpointslices": Resource("EndpointSlice", "discovery.k8s.io"),
    "poddisruptionbudgets": Resource("PodDisruptionBudget", "policy"),
    "resourceclaims": Resource("ResourceClaim", GROUP),
    "resourceclaimtemplates": Resource("ResourceClaimTemplate", GROUP),
    "resourceslices": Resource("ResourceSlice", GROUP, namespaced=False),
    "deviceclasses": Resource("DeviceClass", GROUP, namespaced=False),
    "devicetaintrules": Resource("DeviceTaintRule", GROUP, namespaced=False),
}


def api_version(resource: str, version: str) -> str:
    """The `apiVersion` of a resource's objects."""
    group = RESOURCES[resource].group
    return f"{group}/{version}" if group else version


def served(resource: str, version: str, obj: Object) -> Object:
    """An object in the form of an API version; only slices differ: v1beta1 wraps a device's fields below `basic`."""
    out = obj | {"apiVersion": api_version(resource, version), "kind": RESOURCES[resource].kind}
    if resource == "resourceslices" and version == "v1beta1":
        out["spec"] = out["spec"] | {
            "devices": [
                {"name": d["name"], "basic": {k: v for k, v in d.items() if k != "name"}}
                for d in out["spec"].get("devices", [])
            ]
        }
    return out


def stored(resource: str, version: str, obj: Object) -> Object:
    """The opposite of `served`."""
    if resource == "resourceslices" and version == "v1beta1":
        devices = [{"name": d["name"], **d.get("basic", {})} for d in obj["spec"].get("devices", [])]
        return obj | {"spec": obj["spec"] | {"devices": devices}}
    return obj
