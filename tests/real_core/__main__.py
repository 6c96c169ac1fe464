"""Run the cases, and print a table: `hack/hami-core`."""

import argparse
import sys
import tempfile
from pathlib import Path

from hami_kubeletplugin.hamicore.versions import VERSIONS_FILE, read_versions, recognise
from tests.real_core.cases import CASES, Case
from tests.real_core.container import LAYOUT, LIMITS, Built, Container


def run(case: Case, built: Built, folder: Path) -> bool:
    """Whether it went right; a line of the table, and one for each thing that was wrong."""
    container = Container(built, folder, case.cores)
    case.run(container)
    held = "".join(f"{most:>8} / {limit:<5}" for most, limit in zip(container.most, LIMITS, strict=True))
    print(f"{case.name:<32}{held}  {'WRONG' if container.wrong else 'right'}", flush=True)
    for each in container.wrong:
        print(f"    {each}")
    return not container.wrong


def main() -> int:
    """Zero if all is right; of the library without the patches, if what they are for is wrong and nothing else."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="libvgpu.so and versions.json")
    parser.add_argument("--native", type=Path, required=True, help="what hack/native built")
    parser.add_argument("--unpatched", action="store_true")
    parser.add_argument("--only", default="", help="part of the cases' names")
    given = parser.parse_args()
    library = given.folder / "libvgpu.so"
    release = recognise(library.read_bytes(), read_versions((given.folder / VERSIONS_FILE).read_bytes(), VERSIONS_FILE))
    if release.layout != LAYOUT or release.maps_gpus == given.unpatched:
        sys.exit(f"{library} is {release}: not the library that this is for")
    print(f"HAMi-core {release}")
    print(f"{'CUDA_VISIBLE_DEVICES':<32}{'GPU 0: most':<16}{'GPU 1: most':<14}MiB, of the limit")
    cases = [case for case in CASES if given.only in case.name]
    with tempfile.TemporaryDirectory() as folder:
        built = Built(library, given.native)
        right = [run(case, built, Path(folder) / str(at)) for at, case in enumerate(cases)]
    print(f"{sum(right)} of {len(cases)} right")
    wanted = [not (given.unpatched and case.hole) for case in cases]
    return 0 if right == wanted else 1


sys.exit(main())
