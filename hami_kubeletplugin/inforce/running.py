"""How many processes of each claim's containers have HAMi-core loaded now, for people."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.hamicore.claim_dir import use_name
from hami_kubeletplugin.hamicore.loaded import count, our_mappings
from hami_kubeletplugin.hamicore.processes import PROC, UseKey, look
from hami_kubeletplugin.hamicore.storage import stored


class Loaded(NamedTuple):
    """How many processes a container has, and how many of them have HAMi-core loaded."""

    processes: int
    loaded: int


def loaded_now(claims: Iterable[Prepared], hami_dir: Path, proc: Path = PROC) -> Mapping[tuple[str, str, int], Loaded]:
    """What runs of the uses of these claims, by namespace, name and index of use; only what can be seen. Blocks.

    A container that uses several claims has the files of one of them; it is shown for all.
    """
    found, ours = look(hami_dir, proc).processes, our_mappings(hami_dir, proc)
    counts = {key: Loaded(len(all_), count(all_, ours, proc).loaded) for key, all_ in found.items()}
    known = list(claims)
    own = {key: use for claim in known for key, use in uses_with_files(claim).items() if key in counts}
    shared = {(key.claim_uid, use.containers): counts[key] for key, use in own.items() if use.containers}
    return {
        (claim.ref.namespace, claim.ref.name, index): loaded
        for claim in known
        for index, use in enumerate(claim.uses)
        if (loaded := counts.get(UseKey(claim.uid, use_name(index))) or shared.get((use.owner, use.containers)))
    }


def uses_with_files(claim: Prepared) -> dict[UseKey, Use]:
    """The uses that have files of this claim mounted."""
    uses = {**stored(claim, "region"), **stored(claim, "directory")}
    return {UseKey(claim.uid, name): use for name, use in uses.items()}
