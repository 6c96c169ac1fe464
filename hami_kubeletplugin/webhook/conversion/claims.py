"""Which container gets which claim of its pod, and what the pod calls it. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
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
    """Its own."""
    claim: str
    """The pod's name for the claim, as in spec.resourceClaims."""
    template: Template
    given: Demand
    """What the claim holds: as much, or more, for containers that use it before or after."""
    was_there: bool = False
    """The pod has the claim already."""


class Holder(NamedTuple):
    """A container of ours, and what it asks for."""

    place: ContainerPath
    container: Container
    demand: Demand

    @property
    def name(self) -> str:
        """The container's; or, where a custom resource lets it have none, its number."""
        prefix = "init-" if self.place.list == "initContainers" else ""
        return str(self.container.get("name") or f"{prefix}{self.place.number}")


class Sharing(NamedTuple):
    """The containers that use one claim, one after the other."""

    owner: Holder
    """The last of them, after which the claim is called."""
    guests: tuple[Holder, ...]
    """Init containers that have ended when it starts."""
    demand: Demand
    """What there has to be room for."""

    @property
    def users(self) -> tuple[Holder, ...]:
        """All of them."""
        return (self.owner, *self.guests)


class Claim(NamedTuple):
    """A claim of a pod."""

    name: str
    template: Template
    """Without a spec if it is one that was made before, of other sizes of GPUs."""
    was_there: bool


def field_path(place: ContainerPath, where: str) -> str:
    """As messages have it; `where` as for `convert`."""
    return f"{where}spec.{place.list}[{place.number}]"


def names_used(container: Any) -> Iterator[str]:
    """The pod's names for the claims that a container names."""
    return (str(used.get("name")) for _, used in fields.mappings(fields.at(container, "resources", "claims")))


def uses_of(sharings: Sequence[Sharing], claims: Sequence[Claim]) -> tuple[ContainerClaim, ...]:
    """What each container has, in the order in which they start, from the claims of those who share them."""
    uses = [
        ContainerClaim(
            user.place,
            user.name,
            user.demand,
            claim.name,
            claim.template,
            sharing.demand,
            claim.was_there,
        )
        for sharing, claim in zip(sharings, claims, strict=True)
        for user in sharing.users
    ]
    return tuple(sorted(uses, key=lambda use: (use.place.list == "containers", use.place.number)))


class ClaimNames:
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
