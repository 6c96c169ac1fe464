"""Running containers that have the library not loaded, or another limit than their claim."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.hamicore.processes import UseKey
from hami_kubeletplugin.inforce.differing import Differing, differing
from hami_kubeletplugin.inforce.running import uses_with_files
from hami_kubeletplugin.inforce.unlimited import Seen, look_again
from hami_kubeletplugin.usage.service import HANGS, UsageOfNode

_PAUSE: Final = 0.5
"""Seconds between two looks: at the first a program may be just about to start."""


def containers(place: Place) -> Iterator[Finding]:
    """Those that have files of ours."""
    settings = place.settings
    prepared = place.prepared()
    if not prepared:
        yield Finding(check="containers", level=Level.ok, what="no claim is prepared, so no container has a limit")
        return
    seen = look_again(Seen(), settings.hami_dir, place.proc)
    if seen.unlimited:
        time.sleep(_PAUSE)
        seen = look_again(seen, settings.hami_dir, place.proc)
    gpus = place.gpus()
    usage = UsageOfNode(
        records=place.records,
        hami_dir=settings.hami_dir,
        gpus=lambda: gpus,
        sessions=None,
        patience=HANGS,
        proc=place.proc,
    )
    different = differing(usage.found(), gpus)
    yield from judged(prepared, seen, different)


def judged(prepared: Sequence[Prepared], seen: Seen, different: Mapping[UseKey, Differing]) -> Iterator[Finding]:
    """Which of them run without their limit. Pure."""
    if not seen.others:
        yield Finding(
            check="containers",
            level=Level.unknown,
            what="other containers' processes can't be seen",
            why="Whether limits are in force in running containers is not known. It takes hostPID and root.",
            mend="# hostPID: true in the DaemonSet, as in daemonset.yaml",
        )
        return
    of = {key: (claim, use.containers) for claim in prepared for key, use in uses_with_files(claim).items()}
    for key in seen.overdue:
        names = ", ".join(f"{each.name} (PID {each.pid})" for each in seen.unlimited[key].processes[:3])
        yield Finding(
            check="containers",
            level=Level.error,
            what=f"no process of {_container(key, of)} has HAMi-core loaded: {names}",
            why="It runs without its limits. Static programs, and images without glibc, don't read ld.so.preload.",
            mend="# use an image with glibc, or give it whole GPUs (docs/limits.md)",
        )
    for key, each in different.items():
        yield Finding(
            check="containers",
            level=Level.error,
            what=f"{_container(key, of)} has other limits than its claim: {'; '.join(each.differences[:3])}",
            why="Something in it has written to its region. The limits are as allocated again when it is started again.",
            mend=f"kubectl -n {each.claim.ref.namespace} delete pod {' '.join(pod.name for pod in each.claim.pods)}",
        )
    if not seen.overdue and not different:
        what = f"{len(seen.loaded)} running containers have HAMi-core loaded, and the limits of their claims"
        yield Finding(check="containers", level=Level.ok, what=what)


def _container(key: UseKey, of: Mapping[UseKey, tuple[Prepared, Collection[str]]]) -> str:
    if key not in of:
        return f"a container of claim UID {key.claim_uid}"
    claim, names = of[key]
    return f"container {' or '.join(names) or '?'} of {claim.ref}"
