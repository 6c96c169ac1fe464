"""HAMi-core as what keeps limits; implements `claims.enforcement.Enforcement`.

A container gets the library, a file that has the loader preload it, variables with its limits, and where we can make it the
region in which the same limits stand, renewed by a hook at each start.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.cdi import ContainerEdits, Hook, Mount
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.claims.numbering import numbered
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare, Use
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore import contract, lock_dir
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir, use_name
from hami_kubeletplugin.hamicore.host import HostFiles, Installed
from hami_kubeletplugin.hamicore.region import Region, region
from hami_kubeletplugin.hamicore.regions import create_regions
from hami_kubeletplugin.hamicore.storage import needs_fresh_caches, storage, stored
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

_READ_ONLY: Final = ["ro", "nosuid", "nodev", "bind"]
_WRITABLE: Final = ["rw", "nosuid", "nodev", "noexec", "bind"]
_PRIVATE_CACHE: Final = ["nosuid", "nodev", "noexec", "mode=1777", "size=8m", "nr_inodes=64"]
_PRIVATE_LOCK: Final = ["nosuid", "nodev", "noexec", "mode=1777", "size=64k", "nr_inodes=64"]
_HOOK_ENVIRONMENT: Final = ["PATH="]
"""Something, or runtimes hand their own environment down, or the container's (runc 1.1 with createContainer)."""
HOOK_SECONDS: Final = 10


class HamiCore:
    """HAMi-core on this node.

    Args:
        host: Its files.
        hami_dir: Where they are; the claims' directories too.
    """

    def __init__(self, host: HostFiles, hami_dir: Path) -> None:
        self._host, self._hami_dir = host, hami_dir
        self._said = Once[str]()

    def enforce(self, claim: Prepared, *, gpus: Mapping[str, Gpu], edits: DriverEdits) -> "HamiCoreEnforced":
        """See `Enforcement`."""
        installed = self._host.check()
        if edits.no_libcuda is not None:
            raise ClaimError(
                f"{claim.ref}: without libcuda and with HAMi-core's preload file every program of the container would die. "
                f"{edits.no_libcuda}"
            )
        self._warn_of_several(claim, installed)
        recorded = replace(claim, library=installed.version, regions=installed.renewal is not None)
        folder = ClaimDir(self._hami_dir, claim.uid, installed.in_memory)
        return HamiCoreEnforced(recorded, gpus=gpus, installed=installed, folder=folder)

    def revive(self, former: Prepared) -> None:
        """See `Enforcement`."""
        installed = self._host.installed
        _create_caches(former, ClaimDir(self._hami_dir, former.uid, installed is not None and installed.in_memory))

    def _warn_of_several(self, claim: Prepared, installed: Installed) -> None:
        """Say once of each library that it does not keep what a container with several GPUs was promised."""
        several = any(use.enforced_by == "hami-core" and len(use.gpus) > 1 for use in claim.uses)
        if several and not installed.maps_gpus and self._said.is_new("several GPUs", installed.digest):
            log.warning(
                "a container has several limited GPUs, and with this HAMi-core their limits only hold for programs that leave "
                "CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER alone: one that sets them, as launchers do for their workers, can "
                "get all of a GPU. Build the image with HAMi-core from its source, as it is by default (docs/limits.md), or "
                "give such containers one GPU each, or whole GPUs",
                claim=claim.ref.full_name,
                claim_uid=claim.uid,
                library=installed.version or f"unknown (SHA-256 {installed.digest})",
            )

    def remove(self, uid: str) -> None:
        """See `Enforcement`."""
        ClaimDir(self._hami_dir, uid).remove()
        if (installed := self._host.installed) and installed.lock_dir is not None:
            # If it resists, the next prepare says so, which needs it; this claim has no part in it any more.
            with suppress(OSError):
                lock_dir.tidy(installed.lock_dir)


class HamiCoreEnforced:
    """How HAMi-core keeps the limits of one claim; implements `claims.enforcement.Enforced`.

    Args:
        claim: As it will be recorded.
        gpus: The node's GPUs by UUID.
        installed: HAMi-core's files on the host.
        folder: The claim's.

    Raises:
        ClaimError: A GPU is gone.
    """

    def __init__(self, claim: Prepared, *, gpus: Mapping[str, Gpu], installed: Installed, folder: ClaimDir) -> None:
        self.claim = claim
        self._gpus, self._installed, self._folder = gpus, installed, folder
        # One run of the hook is enough, and whoever sees one share of a use sees all of them.
        self._first = {share.use: share for share in reversed(claim.shares)}
        self._regions: dict[str, Region] = {}
        if installed.renewal is not None:
            layout = installed.renewal.layout
            self._regions = {
                name: region(layout, numbered(use, gpus), use.policy) for name, use in stored(claim, "region").items()
            }

    def edits(self, share: PreparedShare) -> ContainerEdits:
        """See `Enforced`."""
        use = self.claim.uses[share.use]
        ours = storage(self.claim, use) == "region"
        variables = contract.variables(
            list(numbered(use, self._gpus).values()),
            region=contract.CONTAINER_REGION if ours else f"{contract.CONTAINER_CACHE_DIR}/{contract.CACHE_FILE}",
            policy=use.policy,
        )
        made: ContainerEdits = {
            "env": [f"{name}={value}" for name, value in variables.items()],
            "mounts": self._mounts(use, use_name(share.use)),
        }
        # A container may use several claims together; the one that has its files has its hook, too.
        if self._installed.renewal and self._first[share.use] is share and use.owner == self.claim.uid:
            made["hooks"] = [self._hook(self._installed.renewal.hook, use_name(share.use))]
        return made

    def clear(self, former: Prepared | None, *, has_spec: bool) -> None:
        """See `Enforced`."""
        # Without a good record, a spec is what tells that a container may be running: a reboot empties its directory.
        fresh = needs_fresh_caches(self.claim, former) if former is not None else not (has_spec or self.claim.regions)
        if fresh:
            self._folder.remove()

    def create(self) -> None:
        """See `Enforced`."""
        if self._installed.lock_dir is not None:
            lock_dir.make(self._installed.lock_dir, in_memory=self._installed.in_memory)
        _create_caches(self.claim, self._folder)
        create_regions(self._folder, self._regions)

    def _mounts(self, use: Use, name: str) -> list[Mount]:
        def bind(host: Path, container: str, options: list[str]) -> Mount:
            return {"hostPath": str(host), "containerPath": container, "options": options}

        def private(container: str, options: list[str]) -> Mount:
            return {"hostPath": "tmpfs", "containerPath": container, "type": "tmpfs", "options": options}

        lock = self._installed.lock_dir
        mounts = [
            bind(self._installed.library, contract.CONTAINER_LIBRARY, _READ_ONLY),
            bind(self._installed.preload, contract.CONTAINER_PRELOAD, _READ_ONLY),
            bind(lock, contract.CONTAINER_LOCK_DIR, _WRITABLE)
            if lock
            else private(contract.CONTAINER_LOCK_DIR, _PRIVATE_LOCK),
        ]
        kind = storage(self.claim, use)
        if kind == "tmpfs":
            mounts.append(private(contract.CONTAINER_CACHE_DIR, _PRIVATE_CACHE))
        elif name in self._regions:
            mounts.append(bind(self._folder.region(name), contract.CONTAINER_REGION, _WRITABLE))
        elif kind == "directory" and use.owner == self.claim.uid:
            mounts.append(bind(self._folder.cache(name), contract.CONTAINER_CACHE_DIR, _WRITABLE))
        return mounts

    def _hook(self, program: Path, name: str) -> Hook:
        """Run in the host's name space at each start, before the container's program; its failure fails the start.

        It renews the region, for the claim's pods alone; without a region, containers that may run at the same time are of any
        pod. It refuses the start if the files that containers get are not as they were installed.
        """
        region: list[object] = []
        pods: list[str] = []
        if renewed := self._regions.get(name):
            region = ["--region", self._folder.region(name), "--size", renewed.size]
            region += [word for at, data in renewed.pieces for word in ("--content", f"{at}:{data.hex()}")]
            pods = [word for pod in self.claim.pods for word in ("--pod", pod.uid)]
        files = [word for each in self._installed.checked for word in ("--file", each)]
        return {
            "hookName": "createRuntime",
            "path": str(program),
            "args": [str(each) for each in (program, *region, *files, "--claim", self.claim.ref.full_name, *pods)],
            "env": _HOOK_ENVIRONMENT,
            "timeout": HOOK_SECONDS,
        }


def _create_caches(claim: Prepared, folder: ClaimDir) -> None:
    for use in stored(claim, "directory"):
        folder.make_cache(use)
