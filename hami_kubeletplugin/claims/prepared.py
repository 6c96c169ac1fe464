"""What a prepared claim is: the plan that was made for it, as kept in its record file.

It holds everything that the CDI spec is made of, except what may change over a reboot (bus order, device nodes, library
version): that is looked up again by GPU UUID.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.gpuconfig import CorePolicy, Priority
from hami_kubeletplugin.claims.allocation import PodRef

Cache = Literal["own", "private", "none"]
Storage = Literal["region", "directory", "tmpfs", "none"]


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
        cache: `own`: one on the host, made for this use alone. `private`: a tmpfs of each container, for uses that several
            containers may have at the same time, since they must not share a region file (HAMi-core tells processes apart by
            pid). `none`: nothing is limited.
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
    """A prepared claim.

    Attributes:
        namespace, name, uid: The claim.
        pods: Its consumers.
        boot_id: Of the kernel that it was prepared under.
        driver: Our driver name.
        shares: The allocation results, in their order.
        uses: What its containers see together.
        library: Version of HAMi-core, None if unknown or not looked up yet; for people.
        regions: Whether this library's regions are made by us; else the library makes them from variables.
    """

    namespace: str
    name: str
    uid: str
    pods: tuple[PodRef, ...]
    boot_id: str
    driver: str
    shares: tuple[PreparedShare, ...]
    uses: tuple[Use, ...]
    library: str | None = None
    regions: bool = False

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

    def storage(self, use: Use) -> Storage:
        """Where a use's shared region is.

        `region`: a file that we make, fresh at each start of a container, so that containers one after the other may have it.
        `directory`: one on the host in which the library makes the file. It keeps what an ended process held, so containers
        that follow each other get a `tmpfs` each instead. `none`: there is no region, since nothing is limited.
        """
        if use.cache == "none":
            return "none"
        if use.cache == "private":
            return "tmpfs"
        if self.regions:
            return "region"
        return "directory" if len(use.containers) < 2 else "tmpfs"

    def stored(self, storage: Storage) -> dict[str, Use]:
        """Uses of this kind whose files belong to this claim, by the name of their files."""
        own = ((i, use) for i, use in enumerate(self.uses) if use.owner == self.uid)
        return {use_name(i): use for i, use in own if self.storage(use) == storage}

    def needs_fresh_caches(self, former: "Prepared") -> bool:
        """Whether files that the library made in directories for `former` must go.

        The first limit in one stays for ever (HAMi-core multiprocess_memory_limit.c:1119); but they are left alone while a
        container that may have one open can still run. Regions of our own are made fresh by their hook instead.
        """
        if self.regions:
            return False
        if former.boot_id != self.boot_id or not {p.uid for p in former.pods} & {p.uid for p in self.pods}:
            return True
        return [use.gpus for use in former.uses] != [use.gpus for use in self.uses]


def use_name(index: int) -> str:
    """Name of the files of a claim's use."""
    return f"use-{index}"
