"""The chart as a release of the cluster, and what runs of it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.cluster import NODE, REPOSITORY, Cluster, Json
from tests.waiting import wait_for

SYSTEM, NAME = "hami-system", "hami-dra"
CHART = REPOSITORY / "charts" / NAME
SECOND = "node-2"
NODES = (NODE, SECOND)
DAEMON, WEBHOOK = ("app.kubernetes.io/name=hami-kubeletplugin", "app.kubernetes.io/name=hami-webhook")
GPUS = {NODE: "mixed", SECOND: "a100x2"}
"""What each node's daemon simulates."""


def values(version: str, **more: Any) -> Json:
    """Values for nodes without GPUs, `more` of them beside.

    Args:
        version: The image's tag.
        more: Values of `kubeletPlugin`.
    """
    return {
        "image": {"repository": "localhost/hami-dra", "tag": version, "pullPolicy": "Never"},
        "kubeletPlugin": {"driverEdits": "none", "options": {"simulate": GPUS[NODE]}, **more},
        "nodeProfiles": {
            "second": {"nodeSelector": {"kubernetes.io/hostname": SECOND}, "options": {"simulate": GPUS[SECOND]}}
        },
    }


class Release:
    """What `helm` knows of this cluster.

    Args:
        cluster: Where it is installed.
        helm: The program.
        folder: For helm's own files.
    """

    def __init__(self, cluster: Cluster, helm: Path, folder: Path) -> None:
        self._cluster, self._helm, self._folder = cluster, helm, folder

    def helm(self, *words: str | Path, values: Json | None = None) -> str:
        """Run helm in our namespace; it waits for what it changes.

        Raises:
            AssertionError: It failed; carries what it said.
        """
        command: list[str | Path] = [self._helm, *words, "--namespace", SYSTEM]
        if values is not None:
            file = self._folder / "values.json"
            file.write_text(json.dumps(values))
            command += ["--values", file]
        done = subprocess.run(
            command,
            env={**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig), "HOME": str(self._folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, (
            f"helm {' '.join(map(str, words))}: {done.stderr or done.stdout}\n{self.log_tail()}"
        )
        return done.stdout

    def pods(self, label: str) -> list[Json]:
        """Its pods of one kind that are not about to go."""
        found = self._cluster.all("pods", SYSTEM, "-l", label)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def daemon(self, node: str) -> Json:
        """The daemon's pod on a node, once it is ready."""

        def probe() -> Json | None:
            for pod in self.pods(DAEMON):
                status = pod["status"].get("containerStatuses", [{}])[0]
                if pod["spec"].get("nodeName") == node and status.get("ready"):
                    return pod
            raise AssertionError(self.log_tail())

        return wait_for(f"the daemon of {node} to be ready", probe, timeout=90)

    def published(self, node: str) -> list[Json]:
        """The devices that a node has in slices."""
        slices = self._cluster.all("resourceslices")
        return [device for each in slices if each["spec"].get("nodeName") == node for device in each["spec"]["devices"]]

    def log_tail(self) -> str:
        """Its pods and the ends of their logs, for messages."""
        told = []
        for words in (
            ("get", "pods", "-o", "wide"),
            (
                "get",
                "events",
                "--field-selector",
                "type=Warning",
                "-o",
                "custom-columns=O:.involvedObject.name,M:.message",
            ),
            *(("logs", "-l", label, "--prefix", "--tail=20") for label in (DAEMON, WEBHOOK)),
        ):
            try:
                told.append(self._cluster.kubectl("-n", SYSTEM, *words))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                told.append(str(error))
        return "\n".join(told)
