"""How a prepared claim stands in its record file: names that stay, whatever the program calls things. Pure.

A field that old records lack gets a default and needs no new version; fields that are unknown are ignored, since a newer program
of the same version may have written them. What old programs would read wrongly is a new version: a step in `UPGRADES`, and golden
records of the version before in the tests.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.gpuconfig import CorePolicy, Policy, Priority
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare, Use

Json = dict[str, Any]
Upgrade = Callable[[Json], Json]

UPGRADES: Final[Sequence[Upgrade]] = ()
"""`UPGRADES[n - 1]` makes data of version n + 1 out of data of version n."""
VERSION: Final = len(UPGRADES) + 1


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Pod(_Stored):
    namespace: str
    name: str
    uid: str


class _Limit(_Stored):
    uuid: str
    memory_mib: int
    cores: int


class _Use(_Stored):
    """`cache` is `none` where nothing is enforced, `private` where containers may run at the same time, else `own`."""

    containers: tuple[str, ...]
    gpus: tuple[_Limit, ...]
    admin: bool
    core_policy: CorePolicy | None
    priority: Priority | None
    log_level: int | None
    cache: Literal["own", "private", "none"]
    owner: str


class _Share(_Stored):
    request: str
    subrequest: str | None
    pool: str
    device: str
    share_id: str | None
    uuid: str
    memory_mib: int
    cores: int
    use: int
    slots: int = 0


class _Claim(_Stored):
    namespace: str
    name: str
    uid: str
    pods: tuple[_Pod, ...]
    boot_id: str
    driver: str
    shares: tuple[_Share, ...]
    uses: tuple[_Use, ...]
    library: str | None = None
    regions: bool = False
    in_pod: str | None = None


def upgraded(data: Json, version: int, steps: Sequence[Upgrade] = UPGRADES) -> Json:
    """Data of an older version, brought to the newest one step by step."""
    for step in steps[version - 1 :]:
        data = step(data)
    return data


def dump(claim: Prepared) -> Json:
    """A claim as `VERSION` has it, in JSON's types."""
    return {
        "namespace": claim.ref.namespace,
        "name": claim.ref.name,
        "uid": claim.ref.uid,
        "pods": [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in claim.pods],
        "boot_id": claim.boot_id,
        "driver": claim.driver,
        "shares": [_share(share) for share in claim.shares],
        "uses": [_use(use) for use in claim.uses],
        "library": claim.library,
        "regions": claim.regions,
        **({"in_pod": claim.in_pod} if claim.in_pod is not None else {}),
    }


def load(data: Json) -> Prepared:
    """The claim that data of `VERSION` tells of.

    Raises:
        pydantic.ValidationError, ValueError: It is not such data.
    """
    stored = _Claim.model_validate(data)
    if any(not 0 <= share.use < len(stored.uses) for share in stored.shares):
        raise ValueError("a share names a use that isn't there")
    return Prepared(
        ref=ClaimRef(stored.namespace, stored.name, stored.uid),
        pods=tuple(PodRef(pod.namespace, pod.name, pod.uid) for pod in stored.pods),
        boot_id=stored.boot_id,
        driver=stored.driver,
        shares=tuple(_loaded_share(share) for share in stored.shares),
        uses=tuple(_loaded_use(use) for use in stored.uses),
        library=stored.library,
        regions=stored.regions,
        in_pod=stored.in_pod,
    )


def _share(share: PreparedShare) -> Json:
    return {
        "request": share.request,
        "subrequest": share.subrequest,
        "pool": share.pool,
        "device": share.device,
        "share_id": share.share_id,
        "uuid": share.uuid,
        "memory_mib": share.limit.memory_mib,
        "cores": share.limit.cores,
        "use": share.use,
        **({"slots": share.slots} if share.slots else {}),
    }


def _use(use: Use) -> Json:
    limits = [{"uuid": u, "memory_mib": limit.memory_mib, "cores": limit.cores} for u, limit in use.gpus.items()]
    return {
        "containers": list(use.containers),
        "gpus": limits,
        "admin": use.admin,
        "core_policy": use.policy.core_policy,
        "priority": use.policy.priority,
        "log_level": use.policy.log_level,
        "cache": "none" if use.enforced_by == "none" else "private" if use.concurrent else "own",
        "owner": use.owner,
    }


def _loaded_share(share: _Share) -> PreparedShare:
    return PreparedShare(
        request=share.request,
        subrequest=share.subrequest,
        pool=share.pool,
        device=share.device,
        share_id=share.share_id,
        uuid=share.uuid,
        limit=Limit(share.memory_mib, share.cores),
        use=share.use,
        slots=share.slots,
    )


def _loaded_use(use: _Use) -> Use:
    return Use(
        containers=use.containers,
        gpus={limit.uuid: Limit(limit.memory_mib, limit.cores) for limit in use.gpus},
        admin=use.admin,
        policy=Policy(use.core_policy, use.priority, use.log_level),
        enforced_by="none" if use.cache == "none" else "hami-core",
        concurrent=use.cache == "private",
        owner=use.owner,
    )
