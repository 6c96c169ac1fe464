"""Where the shared region of a container use is. Pure."""

from typing import Literal

from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.hamicore.claim_dir import use_name

Storage = Literal["region", "directory", "tmpfs", "none"]


def storage(claim: Prepared, use: Use) -> Storage:
    """Where a use's shared region is.

    `region`: a file that we make, fresh at each start of a container, so that containers one after the other may have it.
    `directory`: one on the host in which the library makes the file. It keeps what an ended process held, so containers
    that follow each other get a `tmpfs` each instead. So do containers that may run at the same time: they must not share a
    region, in which HAMi-core tells processes apart by pid. `none`: there is no region, since nothing is limited.
    """
    if use.enforced_by != "hami-core":
        return "none"
    if use.concurrent:
        return "tmpfs"
    if claim.regions:
        return "region"
    return "directory" if len(use.containers) < 2 else "tmpfs"


def stored(claim: Prepared, kind: Storage) -> dict[str, Use]:
    """Uses of this kind whose files belong to this claim, by the name of their files."""
    own = ((i, use) for i, use in enumerate(claim.uses) if use.owner == claim.uid)
    return {use_name(i): use for i, use in own if storage(claim, use) == kind}


def needs_fresh_caches(claim: Prepared, former: Prepared) -> bool:
    """Whether files that the library made in directories for `former` must go.

    The first limit in one stays for ever (HAMi-core multiprocess_memory_limit.c:1119); but they are left alone while a
    container that may have one open can still run. Regions of our own are made fresh by their hook instead.
    """
    if claim.regions:
        return False
    if former.boot_id != claim.boot_id or not {p.uid for p in former.pods} & {p.uid for p in claim.pods}:
        return True
    return [use.gpus for use in former.uses] != [use.gpus for use in claim.uses]
