"""Privileged containers: what is injected into them says nothing of what they see. Pure."""

from collections.abc import Sequence

from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.claims.allocation import AllocatedClaim
from hami_kubeletplugin.claims.pods import Pod


def refuse_privileged(claim: AllocatedClaim, pods: Sequence[Pod]) -> None:
    """Refuse a claim with a limit if any container of its pods is privileged, whether it uses the claim or not.

    The container runtime gives it all devices of the node: its GPU 0 is the node's first one, whoever has that, and no limit
    holds for it. The webhook refuses the same pods, in the same words. Ephemeral containers come later and can't be seen here.

    Raises:
        ClaimError: Names the container.
    """
    if all(share.admin for share in claim.shares):
        return
    for pod in pods:
        for container in pod.containers:
            if container.privileged:
                raise ClaimError(
                    f"{pod.ref}, container {container.name}: securityContext.privileged: a privileged container sees every GPU "
                    f"of its node, so no limit would hold; take it out of this pod, or let no claim of the pod but one with "
                    f"adminAccess have our GPUs ({claim.ref} has a limit)"
                )
