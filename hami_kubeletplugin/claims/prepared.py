"""What a prepared claim is: the plan that was made for it.

It holds everything that the CDI spec is made of, except what may change over a reboot (bus order, device nodes, the library's
version): that is looked up again by GPU UUID. How it stands on the disk is `record_schema`'s concern alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.claims.allocation import PodRef

EnforcedBy = Literal["hami-core", "none"]
"""What keeps the limits of a container."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a set of containers sees together: limits are numbered per container, so the plan is made for all of it.

    Attributes:
        containers: `pod/container` of each container that sees exactly this, sorted; empty = no container uses it.
        gpus: Limits by GPU UUID, in no particular order: for each GPU the sum of the shares that the container holds of it.
        admin: Admin access: devices visible, no limit.
        policy: From the GpuConfigs.
        enforced_by: What keeps the limits; `none`: nothing is limited, with admin access or as every GPU is wholly its own.
        concurrent: Several containers may have it at the same time, each with the whole limit.
        owner: UID of the claim whose files on the host the containers get, when a container uses several claims.
    """

    containers: tuple[str, ...]
    gpus: Mapping[str, Limit]
    admin: bool
    policy: Policy
    enforced_by: EnforcedBy
    concurrent: bool
    owner: str

    @property
    def is_whole(self) -> bool:
        """Whether every GPU is wholly its own, so that there is nothing to limit."""
        return self.enforced_by == "none" and not self.admin

    @property
    def one_at_a_time(self) -> bool:
        """Whether its limit is one container's at a time."""
        return self.enforced_by != "none" and not self.concurrent


@dataclass(frozen=True, slots=True)
class PreparedShare:
    """One share of the claim: the allocation result, its GPU and its place in a use.

    Attributes:
        slots: Sharing slots that it consumes; 0 if the allocation, or a record of version 0.1.0, doesn't say.
        use: Index of its use.
    """

    request: str
    subrequest: str | None
    pool: str
    device: str
    share_id: str | None
    uuid: str
    limit: Limit
    use: int
    slots: int = 0

    @property
    def result_name(self) -> str:
        """Tells the results of one claim apart. None of the parts holds a dot or an underscore (DNS labels, UUIDs)."""
        request = f"{self.request}_{self.subrequest}" if self.subrequest else self.request
        return f"{request}.{self.device}.{self.share_id or 'admin'}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared claim.

    Attributes:
        ref: The claim.
        pods: Its consumers.
        boot_id: Of the kernel that it was prepared under.
        driver: Our driver name.
        shares: The allocation results, in their order.
        uses: What its containers see together.
        library: Version of HAMi-core, None if unknown or not looked up yet; for people.
        regions: Whether this library's regions are made by us; else the library makes them from variables.
        in_pod: What its pod calls it, if it was made from a template; empty for one that pods name themselves; None if a version
            prepared it that didn't ask.
    """

    ref: ClaimRef
    pods: tuple[PodRef, ...]
    boot_id: str
    driver: str
    shares: tuple[PreparedShare, ...]
    uses: tuple[Use, ...]
    library: str | None = None
    regions: bool = False
    in_pod: str | None = None

    @property
    def uid(self) -> str:
        """The claim's UID, which all its files are named by."""
        return self.ref.uid

    def cdi_device(self, share: PreparedShare) -> str:
        """Name of a share's CDI device: unique on the node, first a letter (a leading digit needs CDI 0.5.0)."""
        return f"claim-{self.uid}.{share.result_name}"

    def devices(self, cdi_kind: str) -> tuple[PreparedDevice, ...]:
        """The answer to the kubelet: always the same, since it keeps the CDI IDs of an earlier answer beside ours."""
        return tuple(
            PreparedDevice((s.request,), s.pool, s.device, (f"{cdi_kind}={self.cdi_device(s)}",), s.share_id)
            for s in self.shares
        )
