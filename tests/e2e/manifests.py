"""Objects that tests give to the cluster, as dictionaries."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e.cluster import NAMESPACE
from tests.e2e.daemon import DRIVER

Json = dict[str, Any]
API = "resource.k8s.io/v1"
IMAGE = "localhost/glibc:1"

LOOK = (
    'echo "## env"; env; echo "## preload"; cat /etc/ld.so.preload; echo "## mounts"; cat /proc/self/mountinfo; '
    'echo "## report"; VGPU_REPORT=1 sleep 0; echo "## end"'
)
"""A shell script that says what a container got; `inside.read` understands it."""


def request(
    name: str = "gpu",
    *,
    memory: str | None = None,
    cores: int | None = None,
    device_class: str = DRIVER,
    selector: str | None = None,
    **more: Any,
) -> Json:
    """One request of a claim for one device."""
    requests = {key: str(value) for key, value in (("memory", memory), ("cores", cores)) if value is not None}
    exactly: Json = {"deviceClassName": device_class, **more}
    if requests:
        exactly["capacity"] = {"requests": requests}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def minor(number: int) -> str:
    """A CEL expression for the GPU with this minor."""
    return f'device.attributes["{DRIVER}"].minor == {number}'


def config(parameters: Mapping[str, Any] | None = None, **fields: Any) -> Json:
    """An opaque GpuConfig: its fields, or the whole of its parameters."""
    whole = parameters or {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GpuConfig", **fields}
    return {"opaque": {"driver": DRIVER, "parameters": whole}}


def claim(name: str, *requests: Json, **devices: Any) -> Json:
    """A ResourceClaim."""
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def template(name: str, *requests: Json, **devices: Any) -> Json:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": list(requests), **devices}}},
    }


def container(
    name: str = "main", *, claims: Sequence[str | tuple[str, str]] = (), script: str = "", **more: Any
) -> Json:
    """A container that runs `script` and then stays.

    Args:
        name: Its name.
        claims: Names of the pod's claims that it uses, or (claim, request).
        script: Shell, run first.
        more: Other fields.
    """
    uses = [{"name": c} if isinstance(c, str) else {"name": c[0], "request": c[1]} for c in claims]
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        # A shell that waits goes at once when it is told to; `sleep` as the first process would not.
        "command": ["sh", "-c", f"{script}\ntrap exit TERM; sleep infinity & wait"],
        "resources": {"claims": uses},
        **more,
    }


def init_container(name: str, *, claims: Sequence[str | tuple[str, str]] = (), script: str = LOOK) -> Json:
    """An init container that runs `script` and ends."""
    return {**container(name, claims=claims), "command": ["sh", "-c", script]}


def pod(
    name: str,
    *containers: Json,
    templates: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod that stops within a second.

    Args:
        name: Its name.
        containers: As `container` makes them.
        templates: The pod's names of claims, to their ResourceClaimTemplates.
        claims: The pod's names of claims, to existing ResourceClaims.
        spec: Other fields of the spec.
    """
    used = [{"name": key, "resourceClaimTemplateName": value} for key, value in (templates or {}).items()]
    used += [{"name": key, "resourceClaimName": value} for key, value in (claims or {}).items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "containers": list(containers),
            "resourceClaims": used,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            **spec,
        },
    }
