"""helm template, as objects."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import REPOSITORY

CHART = REPOSITORY / "charts/hami-dra"
OF_HELM = {"app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "app.kubernetes.io/version", "helm.sh/chart"}
"""Labels that every object of the chart has and none of the manifests."""
MONITORING = "monitoring.coreos.com/v1"
CERT_MANAGER = "cert-manager.io/v1"
OPENSHIFT = "security.openshift.io/v1"


class Refused(Exception):
    """Helm refused; its words."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart, rendered by a helm.

    Attributes:
        helm: The program.
        folder: For files of its own.
    """

    helm: Path
    folder: Path

    def text(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        kubernetes: str = "1.37.2",
        apis: Sequence[str] = (),
        namespace: str = "hami-system",
        kubeconfig: Path | None = None,
        release: str = "hami-dra",
    ) -> str:
        """What `helm template` writes; with a kubeconfig helm asks that cluster, as `helm install` does.

        Raises:
            Refused: With what helm says.
        """
        about = [f"--kube-version={kubernetes}", *(f"--api-versions={api}" for api in apis)]
        if kubeconfig:
            about = ["--dry-run=server", f"--kubeconfig={kubeconfig}"]
        return self._run("template", values, namespace, [release, *about])

    def notes(self, values: Mapping[str, Any] | None = None) -> str:
        """What `helm install` says at its end."""
        return self._run("install", values, "hami-system", ["hami-dra", "--dry-run=client"]).partition("\nNOTES:\n")[2]

    def lint(self) -> str:
        """What `helm lint --strict` says."""
        return self._run("lint", {}, "hami-system", ["--strict"])

    def _run(self, command: str, values: Mapping[str, Any] | None, namespace: str, about: Sequence[str]) -> str:
        file = self.folder / "values.yaml"
        file.write_text(json.dumps(values or {}))  # in YAML a `y` that is not quoted is true
        ended: subprocess.CompletedProcess[str] = subprocess.run(
            [self.helm, command, *about, CHART, "-n", namespace, "-f", file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )
        if ended.returncode:
            raise Refused(" ".join((ended.stdout + ended.stderr).split()))
        return ended.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Without anything of whoever runs it, a cluster above all."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(self.folder / "none")}

    def objects(self, values: Mapping[str, Any] | None = None, **more: Any) -> dict[tuple[str, str], Any]:
        """All objects by kind and name, without what only the chart has of labels."""
        found = {}
        for item in yaml.safe_load_all(self.text(values, **more)):
            if item:
                key = item["kind"], item["metadata"]["name"]
                assert key not in found, f"{key} is there twice"
                found[key] = item
        return found

    def refusal(self, values: Mapping[str, Any] | None = None, **more: Any) -> str:
        """What helm says to values that it must not take."""
        try:
            self.text(values, **more)
        except Refused as refused:
            return str(refused)
        raise AssertionError(f"helm took {values}")


def plain(item: Any) -> Any:
    """An object without helm's labels, and with white space in expressions as one space."""
    labels = {key: value for key, value in item["metadata"].get("labels", {}).items() if key not in OF_HELM}
    metadata = {key: value for key, value in item["metadata"].items() if key != "labels"}
    return _folded({**item, "metadata": {**metadata, **({"labels": labels} if labels else {})}})


def _folded(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: _folded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_folded(each) for each in value]
    return value


def pod(item: Any) -> Any:
    """The pod's spec of a DaemonSet or Deployment."""
    return item["spec"]["template"]["spec"]


def env(item: Any) -> dict[str, Any]:
    """Variables of its only container; a field for those that come from one."""
    (container,) = pod(item)["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
