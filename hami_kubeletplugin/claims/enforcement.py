"""What keeps containers to their limits, as the rest of `claims` sees it: edits for them, and files on the host.

Which one keeps a use's limits stands in the plan (`Use.enforced_by`). HAMi-core is one (`hamicore.enforcement`); nothing is the
other, for containers that have nothing to be held to. Everything here blocks: called in threads.
"""

from collections.abc import Mapping
from typing import Protocol

from hami_kubeletplugin.api.cdi import ContainerEdits
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.claims.numbering import numbered, numbering_variables
from hami_kubeletplugin.claims.prepared import EnforcedBy, Prepared, PreparedShare
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu


class Enforced(Protocol):
    """How the limits of one claim are kept. It concerns itself with uses that it enforces alone.

    A prepare calls `clear` before the claim's record is written, and `create` after that, before the CDI spec with the `edits`.
    """

    @property
    def claim(self) -> Prepared:
        """The claim, with what its record should tell of the enforcement."""

    def edits(self, share: PreparedShare) -> ContainerEdits:
        """What containers get with a share, beside the driver's edits. Who sees one share of a use sees all of them."""

    def clear(self, former: Prepared | None, *, has_spec: bool) -> None:
        """Remove what containers of before left and later ones must not meet.

        Args:
            former: The claim's record, None if there is no good one.
            has_spec: The claim has a CDI spec.

        Raises:
            StorageError: It is still there.
        """

    def create(self) -> None:
        """Make the files that the edits name. Does nothing where they are right already.

        Raises:
            StorageError: They are not there.
        """


class Enforcement(Protocol):
    """One way to keep limits, on this node."""

    def enforce(self, claim: Prepared, *, gpus: Mapping[str, Gpu], edits: DriverEdits) -> Enforced:
        """How it is done for a claim. Writes nothing of the claim's.

        Args:
            claim: The plan.
            gpus: The node's GPUs by UUID.
            edits: The driver's edits.

        Raises:
            ClaimError: It can't be done for this claim.
            StorageError: It can't be done on this node now.
        """

    def revive(self, former: Prepared) -> None:
        """Have again what `clear` removed, since a prepare failed and the claim stays as `former` says.

        Raises:
            StorageError: It is not there.
        """

    def remove(self, uid: str) -> None:
        """Remove everything of a claim, known or not. Nothing there is fine.

        Raises:
            StorageError: Some of it is still there.
        """


Enforcements = Mapping[EnforcedBy, Enforcement]
"""All that there are on this node."""


class NoEnforcement:
    """For containers that are not limited: they have adminAccess, which consumes nothing, or all that their GPUs have."""

    def enforce(self, claim: Prepared, *, gpus: Mapping[str, Gpu], edits: DriverEdits) -> Enforced:
        """See `Enforcement`. A whole GPU is of no use without the driver's library; who has adminAccess may only look at it."""
        whole = [use for use in claim.uses if use.is_whole]
        for use in whole:
            numbered(use, gpus)
        if whole and edits.no_libcuda is not None:
            raise ClaimError(f"{claim.ref}: no program of the container would find its GPU. {edits.no_libcuda}")
        return _NotEnforced(claim)

    def revive(self, former: Prepared) -> None:
        """Nothing was removed."""

    def remove(self, uid: str) -> None:
        """There is nothing."""


class _NotEnforced:
    def __init__(self, claim: Prepared) -> None:
        self.claim = claim

    def edits(self, share: PreparedShare) -> ContainerEdits:
        use = self.claim.uses[share.use]
        if use.admin:
            return {}
        return {"env": [f"{name}={value}" for name, value in numbering_variables(len(use.gpus)).items()]}

    def clear(self, former: Prepared | None, *, has_spec: bool) -> None:
        pass

    def create(self) -> None:
        pass
