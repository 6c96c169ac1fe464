"""`python -m bench PART... [--kubeconfig FILE] [--programs FOLDER] [--json FILE]`; `hack/bench` brings cluster and programs."""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import admission, figures, kinds, pods, prepare, rates, scale, scrape, unschedulable, way
from bench.process import Places
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.observe.log import configure

PARTS: Final = {
    "daemon": prepare.measure,
    "scrape": scrape.measure,
    "admission": admission.measure,
    "pods": pods.measure,
    "crowds": pods.measure_crowds,
    "way": way.measure,
}
"""On the cluster of --kubeconfig."""
ALONE: Final = {
    "scale": scale.measure,
    "rates": rates.measure,
    "unschedulable": unschedulable.measure,
    "kinds": kinds.measure,
}
"""On a control plane that they start, out of --programs."""
DRAWINGS: Final = {"rates": rates.drawing}
"""Which parts have one."""


async def version_of(kubeconfig: Path) -> str:
    """The API server's, e.g. 1.37."""
    async with KubeClient(from_kubeconfig(kubeconfig)) as api:
        return ".".join(map(str, await api.server_version()))


def conditions(kubernetes: str, places: Places) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kubernetes": kubernetes,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "records on": file_system(places.disk),
        "CDI specs on": file_system(places.memory),
    }


def file_system(path: Path) -> str:
    """Its type, e.g. ext4: that of the longest mount point above."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    above = [(len(words[1]), words[2]) for words in mounts if path.is_relative_to(words[1])]
    return max(above)[1]


@asynccontextmanager
async def folders() -> AsyncIterator[Places]:
    """One on a disk and one in memory, removed at the end. Short paths, since a socket's may have 107 bytes."""
    disk, memory = (Path(tempfile.mkdtemp(prefix="hami-bench-", dir=base)) for base in ("/var/tmp", "/dev/shm"))
    try:
        yield Places(disk, memory)
    finally:
        for folder in (disk, memory):
            await asyncio.to_thread(shutil.rmtree, folder)


async def main() -> None:
    """Run, print the table on stderr and the JSON on stdout or into a file."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parts = [*PARTS, *ALONE]
    parser.add_argument("parts", nargs="+", choices=parts, metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--kubeconfig", type=Path, help=f"an administrator's; for {', '.join(PARTS)}")
    parser.add_argument(
        "--programs",
        type=lambda given: Path(given).absolute(),
        help=f"folder of Kubernetes' programs; for {', '.join(ALONE)}",
    )
    parser.add_argument("--json", type=Path, help="where the JSON goes, to what is there already; default: stdout")
    options = parser.parse_args()
    for option, given, its in (
        ("--kubeconfig", options.kubeconfig, [*PARTS]),
        ("--programs", options.programs, [*ALONE]),
    ):
        if given is None and (lacking := [part for part in options.parts if part in its]):
            parser.error(f"{option} is needed for {', '.join(lacking)}")
    configure("console", "error")
    results: dict[str, Any] = {}
    for part in options.parts:
        async with folders() as places:
            if part in ALONE:
                around = conditions(options.programs.name, places)
                found = await ALONE[part](options.programs, places)
            else:
                around = conditions(await version_of(options.kubeconfig), places)
                found = await PARTS[part](options.kubeconfig, places)
        around["load at the end"] = os.getloadavg()
        results[part] = figures.document(around, found)
        print(f"\n{part}\n{figures.table(found)}\n", file=sys.stderr)
        if part in DRAWINGS and options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.with_suffix(f".{part}.svg").write_text(DRAWINGS[part](found))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(f"{json.dumps(earlier | results, indent=2)}\n")
    else:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
