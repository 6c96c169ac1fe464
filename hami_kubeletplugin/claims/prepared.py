"""What a prepared claim is: the plan that was made for it, as kept in its record file.

It holds everything that the CDI spec is made of, except what may change over a reboot (bus order, device nodes, library
version): that is looked up again by GPU UUID.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.gpuconfig import CorePolicy, Priority
from hami_kubeletplugin.claims.allocation import PodRef

Cache = Literal["directory", "private", "none"]


class _Stored(BaseModel):
    # Unknown fields are ignored: a newer program of the same record version may have written them.
    model_config = ConfigDict(frozen=True, extra="ignore")


class GpuLimit(_Stored):
    """The limit of one GPU in a container: the sum of the shares that the container holds of it."""

    uuid: str
    memory_mib: int
    cores: int


class Use(_Stored):
    """What a set of containers sees together: HAMi-core numbers limits per container, so the plan is made for all of it.

    Attributes:
        containers: `pod/container` of each container that sees exactly this, sorted; empty = no container uses it.
        gpus: Limits, one per GPU, in no particular order; with admin access the amounts are 0 and nothing is limited.
        admin: Admin access: devices visible, no limit.
        core_policy, priority, log_level: From the GpuConfigs; None = default.
        cache: `directory`: one on the host, made for this use alone. `private`: a tmpfs of each container, for uses that
            several containers have or may come to have, since they must not share a region file (HAMi-core tells processes
            apart by pid). `none`: nothing is limited.
        owner: UID of the claim whose device carries the cache, when a container uses several claims.
    """

    containers: tuple[str, ...]
    gpus: tuple[GpuLimit, ...]
    admin: bool
    core_policy: CorePolicy | None
    priority: Priority | None
    log_level: int | None
    cache: Cache
    owner: str


class PreparedShare(_Stored):
    """One share of the claim: the allocation result, its GPU and its place in a use."""

    request: str
    subrequest: str | None
    pool: str
    device: str
    share_id: str | None
    uuid: str
    memory_mib: int
    cores: int
    use: int

    @property
    def result_name(self) -> str:
        """Tells the results of one claim apart. None of the parts holds a dot or an underscore (DNS labels, UUIDs)."""
        request = f"{self.request}_{self.subrequest}" if self.subrequest else self.request
        return f"{request}.{self.device}.{self.share_id or 'admin'}"


class Prepared(_Stored):
    """A prepared claim."""

    namespace: str
    name: str
    uid: str
    pods: tuple[PodRef, ...]
    boot_id: str
    driver: str
    shares: tuple[PreparedShare, ...]
    uses: tuple[Use, ...]

    @property
    def ref(self) -> ClaimRef:
        """The claim."""
        return ClaimRef(self.namespace, self.name, self.uid)

    def cdi_device(self, share: PreparedShare) -> str:
        """Name of a share's CDI device: unique on the node, first a letter (a leading digit needs CDI 0.5.0)."""
        return f"claim-{self.uid}.{share.result_name}"

    def devices(self, cdi_kind: str) -> tuple[PreparedDevice, ...]:
        """The answer to the kubelet: always the same, since it keeps the CDI IDs of an earlier answer beside ours."""
        return tuple(
            PreparedDevice((s.request,), s.pool, s.device, (f"{cdi_kind}={self.cdi_device(s)}",), s.share_id)
            for s in self.shares
        )

    def cache_uses(self) -> tuple[str, ...]:
        """Names of the cache directories that belong to this claim."""
        return tuple(
            f"use-{i}" for i, use in enumerate(self.uses) if use.cache == "directory" and use.owner == self.uid
        )

    def needs_fresh_caches(self, former: "Prepared") -> bool:
        """Whether region files made for `former` must go.

        The first limit in one stays for ever (HAMi-core multiprocess_memory_limit.c:1119); but they are left alone while a
        container that may have one open can still run.
        """
        if former.boot_id != self.boot_id or not {p.uid for p in former.pods} & {p.uid for p in self.pods}:
            return True
        return [use.gpus for use in former.uses] != [use.gpus for use in self.uses]
