"""From allocated claims and the pods that use them to a plan that keeps every limit, or a refusal. Pure.

HAMi-core numbers limits by the order of the GPUs that a container sees, while CDI edits belong to an allocation result.
Both fit as long as each share belongs to one set of shares that containers see together (a use): then the edits of each
share carry the variables of the whole use. What does not fit is refused here, with the containers' names.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import combinations
from typing import Any, NamedTuple

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.gpuconfig import GpuConfig, Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.claims.allocation import AllocatedClaim, Share
from hami_kubeletplugin.claims.pods import Container, Pod
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare, Use
from hami_kubeletplugin.claims.privileged import refuse_privileged
from hami_kubeletplugin.gpu.model import Gpu


class Held(NamedTuple):
    """A share and the claim it belongs to."""

    claim: AllocatedClaim
    share: Share

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Tells shares of all claims apart, and sorts them."""
        share = self.share
        return self.claim.ref.uid, share.request, share.subrequest or "", share.device, share.share_id or ""


class Viewer(NamedTuple):
    """A container that sees some of the shares."""

    pod: Pod
    container: Container

    def __str__(self) -> str:
        return f"{self.pod.ref.name}/{self.container.name}"

    def overlaps(self, other: "Viewer") -> bool:
        """Whether both can run at the same time."""
        return self.pod.ref != other.pod.ref or self.container.overlaps(other.container)


def plan(
    claim: AllocatedClaim,
    *,
    pods: Sequence[Pod],
    neighbours: Collection[AllocatedClaim],
    gpus: Mapping[str, Gpu],
    boot_id: str,
    driver: str,
) -> Prepared:
    """Plan one claim.

    Args:
        claim: The claim to prepare.
        pods: Its consumers that have not finished.
        neighbours: All other claims with devices of ours that containers of these pods use.
        gpus: The GPUs of this node by device name.
        boot_id: Of the running kernel.
        driver: Our driver name.

    Raises:
        ClaimError: No plan keeps the limits; the message names containers or devices.
    """
    _refuse_strangers(claim, pods)
    refuse_privileged(claim, pods)
    known = {c.ref.name: c for c in (*neighbours, claim)}
    viewers_of: dict[tuple[Held, ...], list[Viewer]] = defaultdict(list)
    for pod in pods:
        for container in pod.containers:
            view = _view(container, known)
            if any(held.claim is claim for held in view):
                viewers_of[view].append(Viewer(pod, container))
    _refuse_overlapping_views(viewers_of)
    seen = {held.key for view in viewers_of for held in view}
    for held in (Held(claim, share) for share in claim.shares):
        if held.key not in seen:
            viewers_of[(held,)] = []  # reserved, but no container asks for it: nothing will be injected
    views = sorted(viewers_of, key=lambda view: [held.key for held in view])
    use_of = {held.key: index for index, view in enumerate(views) for held in view}
    return Prepared(
        ref=claim.ref,
        pods=tuple(sorted((pod.ref for pod in pods), key=lambda ref: ref.uid)),
        boot_id=boot_id,
        driver=driver,
        shares=tuple(_prepared(share, use_of[Held(claim, share).key], gpus) for share in claim.shares),
        uses=tuple(_use(view, viewers_of[view], gpus) for view in views),
        in_pod=claim.in_pod,
    )


def _view(container: Container, known: Mapping[str, AllocatedClaim]) -> tuple[Held, ...]:
    """Every share of ours that a container sees, in an order that depends on nothing but the shares."""
    held = [
        Held(claim, share)
        for name, claim in known.items()
        for share in claim.shares
        if container.sees(name, share.request)
    ]
    return tuple(sorted(held, key=lambda h: h.key))


def _refuse_strangers(claim: AllocatedClaim, pods: Sequence[Pod]) -> None:
    """Who sees which GPU is unknown if the pod gets the claim in a way that we don't know."""
    for pod in pods:
        if claim.ref.name not in pod.claim_names:
            raise ClaimError(
                f"{claim.ref} is reserved for {pod.ref}, which names it neither in spec.resourceClaims nor in its status; "
                "limits are numbered per container, so name the claim there"
            )


def _refuse_overlapping_views(viewers_of: Mapping[tuple[Held, ...], Sequence[Viewer]]) -> None:
    """A share in two different views would need two numberings in one CDI device."""
    for (view, viewers), (other, others) in combinations(viewers_of.items(), 2):
        shared = {h.key for h in view} & {h.key for h in other}
        if shared:
            request = min(key[1] for key in shared)
            raise ClaimError(
                f"containers {_list(viewers)} and {_list(others)} both use request {request!r}, but not the same set of "
                "GPUs; limits are numbered per container, so let them name the same requests, or give each its own"
            )


def _use(view: tuple[Held, ...], viewers: Sequence[Viewer], gpus: Mapping[str, Gpu]) -> Use:
    shares = [held.share for held in view]
    _refuse_foreign_sharing(view, viewers)
    admin = all(share.admin for share in shares)
    if not admin and any(share.admin for share in shares):
        raise ClaimError(
            f"container {_list(viewers)} uses GPUs with and without adminAccess; HAMi-core limits all GPUs of a container "
            "or none, so use two containers"
        )
    shareable = all(share.config.allow_shared_containers for share in shares)
    concurrent = next(((a, b) for a, b in combinations(viewers, 2) if a.overlaps(b)), None)
    if concurrent and not shareable and not admin:
        requests = ", ".join(sorted({share.request for share in shares}))
        raise ClaimError(
            f"containers {concurrent[0]} and {concurrent[1]} would both get the whole limit of request {requests}; "
            "give each its own request, or set allowSharedContainers: true in a GpuConfig to accept that"
        )
    limits = _limits(shares, gpus)
    enforced = not admin and not _wholly_its_own(shares, limits, gpus)
    if enforced and len(limits) > names.MAX_GPUS_PER_CONTAINER:
        raise ClaimError(
            f"container {_list(viewers)} uses {len(limits)} GPUs; HAMi-core limits at most {names.MAX_GPUS_PER_CONTAINER} in one"
        )
    return Use(
        containers=tuple(sorted(map(str, viewers))),
        gpus=limits,
        admin=admin,
        policy=_policy(shares, viewers),
        enforced_by="hami-core" if enforced else "none",
        # Pods that come later to a claim that may be shared are not told to us: the kubelet holds it for prepared.
        concurrent=shareable and enforced,
        owner=min(held.claim.ref.uid for held in view),
    )


def _refuse_foreign_sharing(view: tuple[Held, ...], viewers: Sequence[Viewer]) -> None:
    """Of claims that one container uses together, none may serve another pod: that pod's numbering would be another."""
    claims = {held.claim.ref.uid: held.claim for held in view}
    if len(claims) < 2:
        return
    users = {viewer.pod.ref.uid for viewer in viewers}
    for claim in claims.values():
        others = [str(pod) for pod in claim.consumers if pod.uid not in users]
        if others:
            raise ClaimError(
                f"container {_list(viewers)} uses {claim.ref} together with other claims, but {', '.join(others)} holds it "
                "too; limits are numbered per container, so give each pod its own claim"
            )


def _limits(shares: Iterable[Share], gpus: Mapping[str, Gpu]) -> Mapping[str, Limit]:
    """By GPU: the sum of the shares that the container holds of it."""
    limits: dict[str, Limit] = defaultdict(lambda: Limit(0))
    for share in shares:
        limits[_gpu(share, gpus).uuid] += share.limit
    return dict(sorted(limits.items()))


def _wholly_its_own(shares: Iterable[Share], limits: Mapping[str, Limit], gpus: Mapping[str, Gpu]) -> bool:
    """Whether there is nothing to limit: nobody else is on these GPUs, and the limits are what the hardware has anyway.

    With memory scaling the limit of a whole GPU is another than its memory, so it has to be kept. HAMi-core limits all GPUs of
    a container or none, so one GPU that is shared has the others limited, too.
    """
    slots: dict[str, int] = defaultdict(int)
    for share in shares:
        if share.config.enforcement == "always":
            return False
        slots[_gpu(share, gpus).uuid] += share.slots
    memory = {gpu.uuid: gpu.memory_bytes // names.MIB for gpu in gpus.values()}
    return all(
        slots[uuid] >= names.SHARES_TOTAL
        and limit.memory_mib == memory[uuid]
        and (not limit.cores or limit.cores >= 100)
        for uuid, limit in limits.items()
    )


def _prepared(share: Share, use: int, gpus: Mapping[str, Gpu]) -> PreparedShare:
    return PreparedShare(
        request=share.request,
        subrequest=share.subrequest,
        pool=share.pool,
        device=share.device,
        share_id=share.share_id,
        uuid=_gpu(share, gpus).uuid,
        limit=share.limit,
        use=use,
        slots=share.slots,
    )


def _gpu(share: Share, gpus: Mapping[str, Gpu]) -> Gpu:
    gpu = gpus.get(share.device)
    if gpu is None:
        there = ", ".join(sorted(gpus)) or "none"
        raise ClaimError(
            f"request {share.request!r}: device {share.device} is not on this node now (there: {there}); if the GPU failed or "
            "was taken out, delete the pod so that another is allocated"
        )
    return gpu


def _policy(shares: Sequence[Share], viewers: Sequence[Viewer]) -> Policy:
    """One value of each field for the container; requests that say nothing go along with those that do."""
    policies = [(share.request, share.config.policy) for share in shares]
    agreed: dict[str, Any] = {}
    for field in fields(Policy):
        said = [(request, value) for request, policy in policies if (value := getattr(policy, field.name)) is not None]
        for (request, value), (other, different) in combinations(said, 2):
            if value != different:
                raise ClaimError(
                    f"container {_list(viewers)}: GpuConfig {GpuConfig.model_fields[field.name].alias or field.name} is "
                    f"{value!r} for request {request!r} and {different!r} for request {other!r}; HAMi-core knows one per "
                    "container"
                )
        agreed[field.name] = said[0][1] if said else None
    return Policy(**agreed)


def _list(viewers: Sequence[Viewer]) -> str:
    return ", ".join(sorted(map(str, viewers))) or "(none)"
