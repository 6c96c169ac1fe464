"""A pod that asks for a GPU, tried out: whether the API server would have it converted. Pure."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import ApiDenied, ApiError, ApiForbidden
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.resource_api import segment

_conversion = partial(Finding, check="conversion")
_CALL_FAILED: Final = "failed calling webhook"
_LOGS: Final = "kubectl -n hami-system logs deploy/hami-webhook\nkubectl -n hami-system get endpointslices,pods -o wide"


def call(namespace: str) -> Call:
    """The request that tries it."""
    return Call("create", "pods", f"/api/v1/namespaces/{segment(namespace)}/pods", namespace)


def pod(namespace: str, resource: str = names.GPU_COUNT) -> Object:
    """A pod that Pod Security's strictest standard takes. It is never created, and could not run."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "main",
        "image": "doctor.invalid/never:run",
        "resources": {"limits": {resource: "1", "cpu": "1m", "memory": "1Mi"}},
        "securityContext": restricted,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "hami-doctor-", "namespace": namespace},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def judged(namespace: str, answer: Mapping[str, Any] | ApiError) -> Finding:
    """What came of it."""
    where = f"a pod in {namespace} that names nvidia.com/gpu (dry run)"
    if isinstance(answer, ApiError):
        return _refused(where, namespace, answer)
    if fields.sequence(fields.at(answer, "spec", "resourceClaims")):
        return _conversion(level=Level.ok, what=f"{where} gets a ResourceClaim")
    return _conversion(
        level=Level.error,
        what=f"{where} is not converted",
        why="such pods wait for ever, or get a GPU of a device plugin beside what claims have",
        mend=f"kubectl get namespace {namespace} --show-labels   # hami.io/webhook=ignore?\n"
        "kubectl get mutatingwebhookconfiguration zz-webhook.gpu.hami.io -o yaml",
    )


def _refused(where: str, namespace: str, error: ApiError) -> Finding:
    said = str(error)
    if _CALL_FAILED in said:
        return _conversion(
            level=Level.error,
            what=f"{where} is refused, since the API server could not call a webhook: {said}",
            why="no such pod can be created until it answers",
            mend=_LOGS,
        )
    if "admission webhook" in said and any(f'"{name}"' in said for name in names.WEBHOOKS):
        return _conversion(level=Level.warning, what=f"{where} is refused by the webhook itself: {said}")
    if isinstance(error, ApiForbidden) and not isinstance(error, ApiDenied) and "cannot create" in said:
        return _conversion(
            level=Level.unknown,
            what=f"whether pods are converted was not tried: {said}",
            mend=f"kubectl auth can-i create pods -n {namespace}   # or name another namespace with -n",
        )
    return _conversion(level=Level.unknown, what=f"{where} is refused by somebody else: {said}")
