"""Which container of a pod sees which request of which claim. Pure.

Contract: core/v1 PodSpec.resourceClaims and Container.resources.claims, PodStatus.resourceClaimStatuses and
.extendedResourceClaimStatus (KEP-5004); the kubelet injects the same way (pkg/kubelet/cm/dra/manager.go GetResources).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from hami_kubeletplugin.claims.allocation import PodRef

Kind = Literal["init", "sidecar", "app"]
_NAMED: Final = 10
"""Pods, and containers, that a line of the log names."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod.

    Attributes:
        name: Its name.
        kind: `init` runs to its end before the next one, `sidecar` is a restartable init container, `app` all others.
        order: Its place among the pod's init containers; app containers come after all of them.
        claims: (ResourceClaim name, request or None for all of the claim), as the kubelet injects them.
        privileged: It has all devices of the node, whatever is injected.
    """

    name: str
    kind: Kind
    order: int
    claims: tuple[tuple[str, str | None], ...]
    privileged: bool = False

    def overlaps(self, other: "Container") -> bool:
        """Whether both of one pod can run at the same time: a plain init container only meets sidecars before it."""
        return min(self, other, key=lambda c: c.order).kind != "init"

    def sees(self, claim: str, request: str) -> bool:
        """Whether the kubelet injects the devices of that request into this container."""
        return any(name == claim and wanted in (None, request) for name, wanted in self.claims)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as far as claims go.

    Attributes:
        ref: The pod.
        finished: It has ended for good.
        claim_names: Names of all its ResourceClaims, used by a container or not.
        containers: Init containers in order, then the others.
    """

    ref: PodRef
    finished: bool
    claim_names: frozenset[str]
    containers: tuple[Container, ...]


def read_pod(pod: Mapping[str, Any]) -> Pod:
    """Take out of a Pod what decides who sees which device."""
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status") or {}
    claim_of = {entry["name"]: entry.get("resourceClaimName") for entry in spec.get("resourceClaims") or []}
    claim_of |= {s["name"]: s.get("resourceClaimName") for s in status.get("resourceClaimStatuses") or []}
    extended = status.get("extendedResourceClaimStatus") or {}
    inits = spec.get("initContainers") or []
    containers = [
        Container(
            c["name"],
            "sidecar" if c.get("restartPolicy") == "Always" else "init",
            order,
            _claims(c, claim_of, extended),
            _privileged(c),
        )
        for order, c in enumerate(inits)
    ]
    containers += [
        Container(c["name"], "app", len(inits), _claims(c, claim_of, extended), _privileged(c))
        for c in spec.get("containers") or []
    ]
    ref = PodRef(meta["namespace"], meta["name"], meta["uid"])
    names = frozenset(name for name in (*claim_of.values(), extended.get("resourceClaimName")) if name)
    return Pod(ref, status.get("phase") in ("Succeeded", "Failed"), names, tuple(containers))


def users(claim: str, pods: Iterable[Pod]) -> dict[str, list[str]]:
    """Who uses a claim, for the log: pods as `namespace/name`, containers as `pod/container`. The first few."""
    those = list(islice(pods, _NAMED))
    containers = (
        f"{pod.ref.name}/{container.name}"
        for pod in those
        for container in pod.containers
        if any(name == claim for name, _ in container.claims)
    )
    return {
        "pods": [f"{pod.ref.namespace}/{pod.ref.name}" for pod in those],
        "containers": list(islice(containers, _NAMED)),
    }


def _privileged(container: Mapping[str, Any]) -> bool:
    return (container.get("securityContext") or {}).get("privileged") is True


def _claims(
    container: Mapping[str, Any], claim_of: Mapping[str, str | None], extended: Mapping[str, Any]
) -> tuple[tuple[str, str | None], ...]:
    entries: Iterable[Mapping[str, Any]] = (container.get("resources") or {}).get("claims") or []
    used = [(claim_of.get(entry["name"]), entry.get("request") or None) for entry in entries]
    used += [
        (extended.get("resourceClaimName"), mapping.get("requestName"))
        for mapping in extended.get("requestMappings") or []
        if mapping.get("containerName") == container["name"]
    ]
    return tuple((name, request) for name, request in used if name)
