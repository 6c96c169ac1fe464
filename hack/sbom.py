"""Print what a release consists of, as CycloneDX: `hack/sbom.py VERSION`. From the locked requirements and HAMi-core's commit."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def packages(lock: str) -> Iterator[dict[str, Any]]:
    """The packages of a requirements file with hashes."""
    for name, version, hashes in re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:\w+)+)", lock, re.MULTILINE):
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"pkg:pypi/{name}@{version}",
                    "hashes": [{"alg": "SHA-256", "content": each} for each in re.findall(r"sha256:(\w+)", hashes)],
                }
            ],
        }


def hami_core(build: str) -> dict[str, Any]:
    """HAMi-core as native/hami-core/build builds it."""
    facts = dict(re.findall(r"^(commit|version|patch)=(\S+)", build, re.MULTILINE))
    return {
        "type": "library",
        "bom-ref": "hami-core",
        "name": "HAMi-core",
        "version": f"{facts['version']}-{facts['patch']}",
        "purl": f"pkg:github/project-hami/hami-core@{facts['commit']}",
    }


def main(version: str) -> None:
    """Print it."""
    components = [
        *packages((ROOT / "requirements/run.txt").read_text()),
        hami_core((ROOT / "native/hami-core/build").read_text()),
    ]
    own = {"type": "application", "bom-ref": "hami-dra", "name": "hami-dra", "version": version}
    licence = {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own | licence},
        "components": components,
        "dependencies": [{"ref": "hami-dra", "dependsOn": [each["bom-ref"] for each in components]}],
    }
    json.dump(bom, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
