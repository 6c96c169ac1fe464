"""From a pod to the templates it needs and the patch that makes it use them. Pure.

    made = convert(pod, rules, sizes)
    made.templates   -> have to exist in the pod's namespace before the pod does
    made.patch       -> JSON patch, RFC 6902; empty if the pod asks for nothing of ours

What is there stays: other resources, other claims, and a claim that is just what the amounts beside it make. A second pass finds
nothing of ours and changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.annotations import Selection, read_annotations
from hami_kubeletplugin.webhook.conversion.bounds import (
    MOST_WITH_GPUS,
    check_containers,
    check_entries,
)
from hami_kubeletplugin.webhook.conversion.claims import (
    Claim,
    ClaimNames,
    ContainerClaim,
    ContainerPath,
    Holder,
    Sharing,
    field_path,
    names_used,
    uses_of,
)
from hami_kubeletplugin.webhook.conversion.conflicts import conflicts
from hami_kubeletplugin.webhook.conversion.defaults import Defaults, zeroed
from hami_kubeletplugin.webhook.conversion.demand import Amounts, Container, Demand, demand
from hami_kubeletplugin.webhook.conversion.existing import ExistingClaims, note
from hami_kubeletplugin.webhook.conversion.fleet import Fleet, beyond, together, unmatched
from hami_kubeletplugin.webhook.conversion.leftovers import leftovers
from hami_kubeletplugin.webhook.conversion.lookalikes import (
    amounts_among_annotations,
    misplaced,
    refuse_amounts,
    unknown_resources,
)
from hami_kubeletplugin.webhook.conversion.needs import Needs
from hami_kubeletplugin.webhook.conversion.placements import by_difficulty, placements, unlike
from hami_kubeletplugin.webhook.conversion.sharing import notes, shared
from hami_kubeletplugin.webhook.conversion.template import SizeLookup, Template

Pod = Mapping[str, Any]
Operation = dict[str, Any]
"""One operation of a JSON patch."""

IGNORE: Final = "ignore"
DEFAULT_SCHEDULER: Final = "default-scheduler"
_NAMED: Final = 16
"""So many claims are named in an error."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What becomes of a pod.

    Attributes:
        templates: Without repeats.
        patch: What to change.
        warnings: For the person who applies the pod.
        uses: Which container gets what.
        selection: What the annotations say.
    """

    templates: tuple[Template, ...] = ()
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    claims: tuple[ContainerClaim, ...] = ()
    selection: Selection = field(default_factory=Selection)


def convert(
    pod: Pod, rules: Conversion, sizes: SizeLookup, *, where: str = "", fleet: Fleet | None = None
) -> Converted:
    """Convert a pod, or a pod template.

    Args:
        pod: `metadata` and `spec`.
        rules: Names and defaults.
        sizes: Called when a container asks for a percentage of memory.
        where: The field path of `pod`, with a dot at the end, for messages: empty, or `spec.template.`.
        fleet: The GPUs that there are, for warnings about what none of them has; None: not known.

    Raises:
        AdmissionError: The pod can't be converted so that it keeps its meaning.
    """
    metadata, spec = (fields.checked_mapping(pod.get(name), f"{where}{name}") for name in ("metadata", "spec"))
    if fields.checked_mapping(metadata.get("labels"), f"{where}metadata.labels").get(names.IGNORE_LABEL) == IGNORE:
        return Converted()
    places = list(_places(spec, where))
    asking = _asking(places, rules, where)
    unknown = list(unknown_resources(((field_path(place, where), container) for place, container in places), rules))
    if not asking:
        return Converted(warnings=(*unknown, *amounts_among_annotations(metadata, rules, where)))
    if len(asking) > MOST_WITH_GPUS:
        raise AdmissionError(
            f"{where}spec: {len(asking)} containers ask for GPUs, at most {MOST_WITH_GPUS} of a pod can: make more pods of it"
        )
    check_entries(spec, ((field_path(place, where), container) for place, container in asking), where)
    annotations = fields.checked_mapping(metadata.get("annotations"), f"{where}metadata.annotations")
    refuse_amounts(metadata, rules, where)
    chosen = read_annotations(annotations, f"{where}metadata.annotations", rules.driver_name)
    holders: list[Holder] = []
    # What keeps a pod waiting comes first: people see no more than some 4 kB.
    waiting = [*leftovers(spec, rules, where), *unknown, *unmatched(chosen, fleet, where)]
    warnings = [*misplaced(metadata, rules, where), *chosen.notes]
    defaults, filled = Defaults(pod), set[ContainerPath]()
    for place, container in asking:
        path = field_path(place, where)
        if defaults.are_all(place.list, container, list(_amounts(place, container, rules, where).names())):
            filled.add(place)
            continue
        wanted = demand(container, path, rules)
        if wanted is None:
            warnings.append(
                f"{path}: asks for no GPU, so {', '.join(_amounts(place, container, rules, where).names())} is left out"
            )
            continue
        warnings += wanted.notes
        holders.append(Holder(place, container, replace(wanted, notes=())))
    sharings = shared(holders, where)
    warnings += _without_effect(sharings, chosen, where)
    for sharing in sharings:
        waiting += beyond(sharing.demand, chosen, fleet, rules, field_path(sharing.owner.place, where))
    needs = Needs(sharings, chosen, rules, sizes, where)
    if holders:
        _refuse(spec, places, holders, where)
    claims = _claims(spec, places, sharings, needs, where)
    for sharing, claim in zip(sharings, claims, strict=True):
        warnings += [*filter(None, [note(sharing, claim, where)]), *notes(sharing, where)]
    uses = uses_of(sharings, claims)
    _refuse_many(uses, rules, where)
    waiting += together(_held(uses).values(), chosen, fleet, where)
    return Converted(
        templates=tuple({claim.template.name: claim.template for claim in claims if claim.template.spec}.values()),
        patch=tuple(_patch(spec, asking, uses, filled, rules)),
        warnings=(*waiting, *warnings),
        claims=uses,
        selection=chosen,
    )


def _without_effect(sharings: Sequence[Sharing], chosen: Selection, where: str) -> Iterator[str]:
    """Annotations, variables and volumes that do nothing beside the claims that these containers have, in words."""
    if sharings and chosen.same and all(sharing.demand.gpus == 1 for sharing in sharings):
        alike = ", ".join(chosen.same)
        yield f"{where}metadata.annotations: {alike}: has no effect, no container asks for more than one GPU"
    for sharing in sharings:
        given = sharing.demand
        whole = given.memory_percent == 100 and given.cores in {0, 100} and (given.exclusive or chosen.exclusive)
        for user in sharing.users:
            yield from conflicts(user.container, field_path(user.place, where), whole=whole)


def names_ours(pod: Pod, rules: Conversion) -> bool:
    """Whether a container of this pod names one of our resources."""
    return bool(_asking(list(_places(fields.checked_mapping(pod.get("spec"), "spec"), "")), rules, ""))


def _claims(
    spec: Mapping[str, Any],
    places: Sequence[tuple[ContainerPath, Container]],
    sharings: Sequence[Sharing],
    needs: Needs,
    where: str,
) -> list[Claim]:
    """The claim of each, which may be there already."""
    existing = ExistingClaims(spec, (container for _, container in places), where)
    names_given = ClaimNames(existing.names)
    return [
        existing.take(sharing, needs.alike(sharing.demand))
        or Claim(names_given.take(sharing.owner.name), needs.template(sharing.demand), was_there=False)
        for sharing in sharings
    ]


def _asking(
    places: Sequence[tuple[ContainerPath, Container]], rules: Conversion, where: str
) -> list[tuple[ContainerPath, Container]]:
    return [(place, container) for place, container in places if any(_amounts(place, container, rules, where).names())]


def _refuse(
    spec: Mapping[str, Any], places: Sequence[tuple[ContainerPath, Container]], holders: Sequence[Holder], where: str
) -> None:
    for place, container in places:
        if fields.at(container, "securityContext", "privileged") is True:
            raise AdmissionError(
                f"{field_path(place, where)}.securityContext.privileged: a privileged container sees every GPU of "
                f"its node, so no limit would hold; take it out of this pod, or ask for no GPU in {_named(holders)}"
            )
    if spec.get("nodeName"):
        raise AdmissionError(
            f"{where}spec.nodeName: a pod with GPUs has to go through the scheduler, which allocates them; with a node named "
            "here it would wait for ever. Use spec.nodeSelector with kubernetes.io/hostname"
        )


def _refuse_many(uses: Sequence[ContainerClaim], rules: Conversion, where: str) -> None:
    claims, most = list(by_difficulty(_held(uses)).values()), rules.max_placements
    counts = [demand.gpus for demand in claims]
    if rules.separate_requests:
        counts = [1] * sum(counts)
    if most and max(placements(counts, most), unlike(claims, most)) > most:
        gpus = " + ".join(map(str, counts[:_NAMED])) + (" + ..." if len(counts) > _NAMED else "")
        raise AdmissionError(
            f"{where}spec: on a node without room for the GPUs of this pod ({gpus}) the scheduler has more than "
            f"{most} choices to try before it knows, and schedules no other pod of the cluster meanwhile. Ask "
            "for fewer GPUs in one pod, or have an administrator raise --max-placements"
        )


def _held(uses: Sequence[ContainerClaim]) -> dict[str, Demand]:
    return {use.claim: use.given for use in uses}


def _named(holders: Sequence[Holder]) -> str:
    return ", ".join(holder.name for holder in holders)


def _patch(
    spec: Mapping[str, Any],
    asking: Sequence[tuple[ContainerPath, Container]],
    uses: Sequence[ContainerClaim],
    filled: AbstractSet[ContainerPath],
    rules: Conversion,
) -> Iterator[Operation]:
    claim_of = {use.place: use.claim for use in uses}
    for place, container in asking:
        resources = (
            _without(container["resources"], rules) if place not in filled else zeroed(container["resources"], rules)
        )
        if place in claim_of and claim_of[place] not in names_used(container):
            resources["claims"] = [*(resources.get("claims") or ()), {"name": claim_of[place]}]
        yield {"op": "replace", "path": f"{place.pointer}/resources", "value": resources}
    template_of = {use.claim: use.template.name for use in uses if not use.was_there}
    if template_of:
        new = by_difficulty({name: demand for name, demand in _held(uses).items() if name in template_of})
        entries = [{"name": name, "resourceClaimTemplateName": template_of[name]} for name in new]
        yield {"op": "add", "path": "/spec/resourceClaims", "value": [*(spec.get("resourceClaims") or ()), *entries]}
    if uses and rules.replace_scheduler and spec.get("schedulerName") == rules.replace_scheduler:
        yield {"op": "replace", "path": "/spec/schedulerName", "value": DEFAULT_SCHEDULER}


def _without(resources: Mapping[str, Any], rules: Conversion) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    ours = frozenset(rules.resources)
    for name, value in resources.items():
        if name in {"limits", "requests"} and isinstance(value, Mapping):
            rest = {resource: amount for resource, amount in value.items() if resource not in ours}
            if rest:
                kept[name] = rest
        else:
            kept[name] = value
    return kept


def _amounts(place: ContainerPath, container: Container, rules: Conversion, where: str) -> Amounts:
    return Amounts(container, field_path(place, where), rules)


def _places(spec: Mapping[str, Any], where: str) -> Iterator[tuple[ContainerPath, Container]]:
    """Containers in the order in which they start. Ephemeral ones can have no resources."""
    check_containers(spec, where)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(fields.sequence(spec.get(kind))):
            if not isinstance(container, Mapping):
                raise AdmissionError(f"{where}spec.{kind}[{index}]: must be an object")
            yield ContainerPath(kind, index), container
