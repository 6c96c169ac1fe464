"""`--try`: a container-like process through our own edits, to see the limit in force.

As a prepare would, a region and edits are made for a made-up claim on the first GPU, in a folder of their own; the region is
soiled, and the hook run as a container runtime runs it; then a process starts with the mounts and variables of the edits. All of
it goes when it ends; what a killed one left is removed by the next one.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.cdi import ContainerEdits
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare, Use
from hami_kubeletplugin.doctor import sandbox
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.doctor.programs import Ran, ran
from hami_kubeletplugin.doctor.scratch import folder_below
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.libcuda import LIBCUDA, find_libcuda
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore.contract import CONTAINER_LIBRARY, CONTAINER_REGION
from hami_kubeletplugin.hamicore.differences import differences, limits
from hami_kubeletplugin.hamicore.enforcement import HamiCore
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.hamicore.reading import read_region
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.hamicore.storage import storage

_UID: Final = "00000000-0000-4000-8000-646f63746f72"
_POD: Final = PodRef(names.WEBHOOK_NAMESPACE, "doctor", _UID)
_LIMIT: Final = Limit(1000, 30)
_SOIL: Final = b"\xff" * 4096
_WHY: Final = "Containers with a limit would run without it, or not start."


@dataclass(frozen=True, slots=True)
class Tried:
    """What the process said.

    Attributes:
        loaded: Whether it has our library mapped, from where containers have it.
        region: Whether it has our region mapped.
        total: Bytes that CUDA says there are; None: CUDA could not be asked.
        no_cuda: Why there is none.
        failed: What of CUDA failed.
    """

    loaded: bool
    region: bool
    total: int | None = None
    no_cuda: str | None = None
    failed: str | None = None


def trial(place: Place, environment: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Try it.

    Args:
        place: This node.
        environment: More variables for the process.

    Raises:
        StorageError: There is no room for it, or no library.
    """
    gpu = min(place.gpus().values(), key=lambda each: each.bus_order, default=None)
    if gpu is None:
        yield Finding(check="try", level=Level.unknown, what="this node has no GPU to try it with")
        return
    with folder_below(place.settings.hami_dir) as folder:
        yield from _tried(place, gpu, folder, environment or {})


def _tried(place: Place, gpu: Gpu, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    settings = place.settings
    shipped = Shipped(
        settings.hami_core, settings.hami_core_version, settings.glibc_floor, region_hook=settings.region_hook
    )
    host = HostFiles(shipped, folder / "vgpu", "disk")
    claim = made_up(gpu, settings.driver_name)
    enforced = HamiCore(host, folder / "vgpu").enforce(claim, gpus={gpu.uuid: gpu}, edits=DriverEdits())
    enforced.create()
    edits = enforced.edits(claim.shares[0])
    region = next(
        (Path(each["hostPath"]) for each in edits["mounts"] if each["containerPath"] == CONTAINER_REGION), None
    )
    if region is None or storage(enforced.claim, enforced.claim.uses[0]) != "region":
        yield Finding(
            check="try",
            level=Level.warning,
            what="no region can be made for this library, so there is none to try: see hami-core",
            why="Limits are in variables only: a process without its environment is unlimited.",
        )
        return
    region.write_bytes(_SOIL)
    yield (renewed := renewal_judged(_hooked(edits), region, claim))
    if renewed.level is not Level.ok:
        return
    scratch = folder / "scratch"
    scratch.mkdir()
    libcuda = find_libcuda(settings.driver_root)
    variables = {**_variables(edits), **({"LD_LIBRARY_PATH": str(libcuda.parent)} if libcuda else {}), **environment}
    files = [CONTAINER_LIBRARY, CONTAINER_REGION]
    work = sandbox.job([dict(each) for each in edits["mounts"]], variables, scratch, files)
    answer = ran([sys.executable, "-I", "-S", sandbox.__file__], stdin=work, within=place.timeout)
    tried = said(answer)
    yield from (_not_run(answer),) if tried is None else judged(tried, claim)
    if tried is not None:
        yield from _after(region, claim)


def made_up(gpu: Gpu, driver: str) -> Prepared:
    """A claim that nobody made, of a part of a GPU. Pure."""
    use = Use(
        ("doctor/doctor",),
        {gpu.uuid: _LIMIT},
        admin=False,
        policy=Policy(),
        enforced_by="hami-core",
        concurrent=False,
        owner=_UID,
    )
    share = PreparedShare("gpu", None, "doctor", gpu.device_name, "doctor", gpu.uuid, _LIMIT, 0)
    return Prepared(ClaimRef(names.WEBHOOK_NAMESPACE, "doctor", _UID), (_POD,), "doctor", driver, (share,), (use,))


def renewal_judged(answer: Ran, region: Path, claim: Prepared) -> Finding:
    """Whether the hook, run as a runtime runs it, has made the region what the claim was given."""
    if answer.status != 0:
        return Finding(
            check="try",
            level=Level.error,
            what=f"the hook refuses to renew a region: {answer.said or f'status {answer.status}'}",
            why="Each start of a container with a limit runs it, and fails if it does.",
            mend=f"ls -lZ {region.parent}; findmnt -T {region.parent}",
        )
    wrong = _differences(region, claim)
    if wrong:
        return Finding(
            check="try",
            level=Level.error,
            what=f"the hook ran, and the region is not what the claim was given: {'; '.join(wrong)}",
            why=_WHY,
            mend="hami-kubeletplugin doctor --support-bundle doctor.tar.gz  # and report it",
        )
    (limit,) = claim.uses[0].gpus.values()
    what = (
        f"the hook has made a soiled region new, with {limit.memory_mib} MiB and {limit.cores} % as the claim was given"
    )
    return Finding(check="try", level=Level.ok, what=what)


def judged(tried: Tried, claim: Prepared) -> Iterator[Finding]:
    """What the process said. Pure."""
    (limit,) = claim.uses[0].gpus.values()
    if not tried.loaded:
        yield Finding(
            check="try",
            level=Level.error,
            what="the loader has not taken the library by ld.so.preload: the process has it not mapped",
            why=_WHY,
            mend="hami-kubeletplugin doctor --support-bundle doctor.tar.gz  # and report it",
        )
        return
    yield Finding(check="try", level=Level.ok, what=f"the loader takes {CONTAINER_LIBRARY} by our preload file")
    if tried.total is None:
        reason = tried.failed or f"{tried.no_cuda}"
        yield Finding(
            check="try",
            level=Level.unknown if tried.failed else Level.hint,
            what=f"CUDA can't be asked what its limit is: {reason}",
            why="That programs are held to the region shows with a driver only; run it in the daemon's pod on a node with GPUs.",
        )
    elif tried.total != limit.memory_mib * MIB:
        yield Finding(
            check="try",
            level=Level.error,
            what=f"CUDA says that there are {tried.total // MIB} MiB, and the limit is {limit.memory_mib} MiB",
            why="The limit is not in force.",
            mend="hami-kubeletplugin doctor --support-bundle doctor.tar.gz  # and report it",
        )
    else:
        region = "; the process has its region mapped" if tried.region else ""
        yield Finding(
            check="try",
            level=Level.ok,
            what=f"CUDA says that there are {limit.memory_mib} MiB, which is the limit{region}",
        )


def said(answer: Ran) -> Tried | None:
    """The process's own words among what its libraries print; None if there are none. Pure."""
    for line in answer.said.splitlines():
        if line.startswith("doctor:"):
            found: dict[str, Any] = json.loads(line.removeprefix("doctor:"))
            mapped = found["mapped"]
            return Tried(
                CONTAINER_LIBRARY in mapped,
                CONTAINER_REGION in mapped,
                found.get("total"),
                found.get("no_cuda"),
                found.get("failed"),
            )
    return None


def _not_run(answer: Ran) -> Finding:
    if f"{LIBCUDA}: cannot open" in answer.said:
        return Finding(
            check="try",
            level=Level.unknown,
            what=f"there is no {LIBCUDA} here, without which no program can load HAMi-core",
            why="That programs are held to their limit shows with a driver only.",
            mend="# run it in the daemon's pod on a node with GPUs, or set HAMI_DRIVER_ROOT",
        )
    refused = "not permitted" in answer.said
    return Finding(
        check="try",
        level=Level.unknown if refused else Level.error,
        what=f"the process with our edits did not come to its end: {answer.said[-600:] or f'status {answer.status}'}",
        why="It needs root with CAP_SYS_ADMIN, for a mount name space of its own." if refused else _WHY,
        mend="" if refused else "hami-kubeletplugin doctor --support-bundle doctor.tar.gz  # and report it",
    )


def _after(region: Path, claim: Prepared) -> Iterator[Finding]:
    """Whether the limits in the region are still those that were given, after a process has used it.

    Which GPUs it saw is no matter: no container runtime has kept those of others from it.
    """
    given = claim.uses[0].gpus
    content = read_region(region, layout=None, gpus=len(given), pids=None)
    if content is None or limits(content, given) != tuple(given.values()):
        yield Finding(
            check="try",
            level=Level.error,
            what="after a process the region has other limits than the claim was given",
            why=_WHY,
            mend="hami-kubeletplugin doctor --support-bundle doctor.tar.gz  # and report it",
        )


def _differences(region: Path, claim: Prepared) -> tuple[str, ...]:
    use = claim.uses[0]
    try:
        content = read_region(region, layout=None, gpus=len(use.gpus), pids=None)
    except StorageError as error:
        return (str(error),)
    return ("it is empty",) if content is None else differences(content, use.gpus, use.policy)


def _hooked(edits: ContainerEdits) -> Ran:
    (hook,) = edits["hooks"]
    state = {
        "ociVersion": "1.0.2",
        "id": "doctor",
        "status": "created",
        "pid": 1,
        "bundle": "/",
        "annotations": {"io.kubernetes.cri.sandbox-uid": _POD.uid},
    }
    return ran([hook["path"], *hook["args"][1:]], stdin=json.dumps(state).encode(), within=float(hook["timeout"]))


def _variables(edits: ContainerEdits) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in edits["env"])
