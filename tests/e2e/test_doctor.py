"""`hami-kubeletplugin doctor` on a real node: beside a daemon that serves, and when something is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import container, pod, request, template

PROGRAM = Path(sys.executable).parent / "hami-kubeletplugin"


def doctor(daemon: Daemon, library: Path, *more: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Its exit status and findings by check, with the daemon's options and token."""
    options = {
        "--simulate": daemon.simulate,
        "--driver-edits": "none",
        "--hami-dir": daemon.hami_dir,
        "--boot-id-file": daemon.boot_id_file,
        "--hami-core": library,
        "--region-hook": library.with_name("hami-region-hook"),
        "--kubeconfig": daemon.folder / "daemon.kubeconfig",
        "--node-name": NODE,
    }
    done = subprocess.run(
        [PROGRAM, "doctor", "-o", "json", *(str(word) for pair in options.items() for word in pair), *more],
        env={"PATH": os.environ["PATH"], **CHECKOUT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    by_check: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout):
        by_check.setdefault(each["check"], []).append(each)
    return done.returncode, by_check


def worse(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """What is neither well nor a hint: by check, the first of it."""
    bad = {name: [each["what"] for each in all_ if each["level"] not in {"ok", "hint"}] for name, all_ in found.items()}
    return {name: what[0] for name, what in bad.items() if what}


def test_a_node_that_works_and_what_breaks_it(daemon: Daemon, cluster: Cluster, library: Path) -> None:
    """All is well beside the daemon, with a pod that runs, and --try agrees; each thing that is broken is found, and mended."""
    cluster.apply(template("t", request(memory="1000Mi")), pod("p", container(claims=["gpu"]), templates={"gpu": "t"}))
    cluster.running("p")
    status, found = doctor(daemon, library, "--try")
    assert (status, worse(found)) == (0, {})
    assert "has CDI on and reads /var/run/cdi" in found["cdi"][0]["what"]
    assert found["containers"][0]["what"].startswith("1 running containers have HAMi-core loaded")
    assert found["rbac"][0]["level"] == "ok"
    assert "the loader takes" in found["try"][1]["what"]

    (hook,) = daemon.hami_dir.glob("lib/hami-region-hook.*")
    (spec,) = Path("/var/run/cdi").glob("*.json")
    content = spec.read_bytes()
    assert daemon.stop() == 0
    hook.chmod(0o644)
    spec.unlink()
    try:
        status, found = doctor(daemon, library, "--cdi-dir", "/var/run/elsewhere")
        assert status == 1
        assert worse(found).keys() >= {"cdi", "sockets", "region-hook", "claims"}
        assert "has mode 0644 instead of 0755" in worse(found)["hami-core"]
        assert found["region-hook"][0]["mend"].startswith(f"chmod 755 {hook}")
        assert any("and not in /var/run/elsewhere" in each["what"] for each in found["cdi"])
    finally:
        spec.write_bytes(content)
        hook.chmod(0o755)
        daemon.start()
    assert doctor(daemon, library)[0] == 0
