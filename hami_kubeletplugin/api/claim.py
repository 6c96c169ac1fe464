"""The few words that the kubelet's side and the claims' side share.

Contract: k8s.io/kubelet pkg/apis/dra/v1/api.proto.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hami_kubeletplugin.api.errors import ClaimError, HamiError

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label, as requests have for a name, and claims in their pod."""
UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
"""What a claim's UID looks like: nothing that leads out of a directory."""


def checked_uid(uid: str) -> str:
    """The UID, if it is fit to be a part of a path.

    Raises:
        ClaimError: It is not.
    """
    if not UID.fullmatch(uid):
        raise ClaimError(f"claim UID {uid!r} is not a UID")
    return uid


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"claim {self.full_name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device of a prepared claim, as the kubelet wants it.

    Attributes:
        requests: Names of the requests that it serves, without their subrequest part.
        pool: The pool of its ResourceSlice.
        device: Its name in there.
        cdi_ids: Qualified CDI devices to inject, e.g. `k8s.gpu.hami.io/claim=claim-…`.
        share_id: UUID of the share; None for a device that is not shared.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


class ClaimService(Protocol):
    """Prepares and unprepares claims. Both block, are idempotent, and answer for every claim that was named."""

    def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """Make what was allocated ready for containers. Keyed by claim UID; an error concerns that claim alone."""

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """Take it away again. Needs no API server. None = gone, or was never there."""
