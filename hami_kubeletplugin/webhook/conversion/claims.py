"""Which container gets which claim of its pod, and what the pod calls it. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.webhook.conversion.demand import Container, Demand
from hami_kubeletplugin.webhook.conversion.template import Template

_LONGEST_LABEL: Final = 63


class ContainerPath(NamedTuple):
    """Where a container is in its pod."""

    list: str
    """`containers` or `initContainers`."""
    number: int

    @property
    def pointer(self) -> str:
        """JSON pointer, RFC 6901."""
        return f"/spec/{self.list}/{self.number}"


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """One container of ours and the claim that it gets."""

    place: ContainerPath
    container: str
    demand: Demand
    claim: str
    """The pod's name for the claim, as in spec.resourceClaims."""
    template: Template


class Holder(NamedTuple):
    """A container of ours, what it asks for, and the template that this makes."""

    place: ContainerPath
    container: Container
    demand: Demand
    template: Template


def field_path(place: ContainerPath, where: str) -> str:
    """As messages have it; `where` as for `convert`."""
    return f"{where}spec.{place.list}[{place.number}]"


def uses_of(spec: Mapping[str, Any], holders: Sequence[Holder], where: str) -> tuple[ContainerClaim, ...]:
    """Give each container a claim. Init containers that want just what another one wants later get the same claim.

    They run before it and have ended then, so HAMi counts their GPU once, too; a sidecar runs beside the others and has its own.
    """
    existing = fields.checked_sequence(spec.get("resourceClaims"), f"{where}spec.resourceClaims")
    names_given = _ClaimNames(str(claim.get("name")) for _, claim in fields.mappings(existing))
    uses: dict[ContainerPath, ContainerClaim] = {}
    shared: dict[tuple[str, str], str] = {}
    for holder in sorted(holders, key=_runs_to_its_end):
        path = f"{field_path(holder.place, where)}.resources.claims"
        had = fields.checked_sequence(holder.container["resources"].get("claims"), path)
        key = holder.template.name, json.dumps(had, sort_keys=True)
        claim = shared.get(key) if _runs_to_its_end(holder) else None
        if claim is None:
            claim = names_given.take(_called(holder))
        if not _is_sidecar(holder):
            shared.setdefault(key, claim)
        uses[holder.place] = ContainerClaim(holder.place, _called(holder), holder.demand, claim, holder.template)
    return tuple(uses[holder.place] for holder in holders)


def _called(holder: Holder) -> str:
    """Its name; or, where a custom resource lets it have none, its number."""
    prefix = "init-" if holder.place.list == "initContainers" else ""
    return str(holder.container.get("name") or f"{prefix}{holder.place.number}")


def _is_sidecar(holder: Holder) -> bool:
    return holder.place.list == "initContainers" and holder.container.get("restartPolicy") == "Always"


def _runs_to_its_end(holder: Holder) -> bool:
    return holder.place.list == "initContainers" and not _is_sidecar(holder)


class _ClaimNames:
    """The pod's names for claims: DNS labels, each of them given once.

    Args:
        taken: Those that are there already.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """The last one that was tried with a name; all up to it are taken."""

    def take(self, container: str) -> str:
        """A name for the claim of a container."""
        free = name = f"gpu-{container}"
        if len(name) > _LONGEST_LABEL:
            digest = hashlib.sha256(container.encode(errors="replace")).hexdigest()[:8]
            free = name = f"{name[: _LONGEST_LABEL - 9].rstrip('-')}-{digest}"
        short = name[: _LONGEST_LABEL - 4].rstrip("-")
        while free in self._taken:
            number = self._numbers[short] = self._numbers.get(short, 1) + 1
            free = f"{short}-{number}"
        self._taken.add(free)
        return free
