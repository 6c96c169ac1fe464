"""The cluster of hack/cluster, and kubectl as a few functions that speak JSON."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "hack" / "cluster"
NODE = "node-1"
NAMESPACE = "e2e"

Json = dict[str, Any]


class KubectlFailed(AssertionError):
    """kubectl said no; the message is what it wrote."""


@dataclass(frozen=True)
class Cluster:
    """One cluster: a Kubernetes version in a folder."""

    version: str
    directory: Path

    # --- the machine ---

    def build(self) -> None:
        """Have the programs; minutes on a machine that never did it."""
        self._script("build", self.version, timeout=7200)

    def up(self) -> None:
        """Start it."""
        self._script("up", self.version, timeout=240)

    def down(self) -> None:
        """Stop it and leave nothing behind."""
        self._script("down", "--wipe", timeout=120)

    def control(self, *words: str) -> str:
        """What `hack/cluster/control` prints, e.g. of `control("restart", "kubelet")`."""
        return self._script("control", *words, timeout=120)

    def enter(self, node: str, *command: str) -> str:
        """What a command prints that sees a node's network and mounts."""
        return self._script("control", "enter", node, *command, timeout=30)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "kubeconfig"

    def _script(self, name: str, *words: str, timeout: float) -> str:
        done = subprocess.run(
            [SCRIPTS / name, *words],
            env={**os.environ, "CLUSTER_DIR": str(self.directory)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"hack/cluster/{name} {' '.join(words)} failed:\n{done.stdout}"
        return done.stdout

    # --- kubectl ---

    def kubectl(self, *words: str, stdin: str | None = None, timeout: float = 30) -> str:
        """What `kubectl` prints.

        Raises:
            KubectlFailed: It returned an error.
        """
        done = subprocess.run(
            [self.directory / "bin" / self.version / "kubectl", "--kubeconfig", self.kubeconfig, *words],
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or update objects."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def make_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace in which pods can be: the API server refuses them until their service account is there."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
        wait_for(f"the service account of {name}", lambda: self.get("serviceaccount", "default", name))

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Json | None:
        """One object, or None."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        found: Json | None = json.loads(text) if text else None
        return found

    def all(self, kind: str, namespace: str = NAMESPACE, *words: str) -> list[Json]:
        """All objects of a kind in a namespace (or of the cluster, for kinds without)."""
        items: list[Json] = json.loads(self.kubectl("get", kind, "-n", namespace, "-o", "json", *words))["items"]
        return items

    def delete(self, kind: str, *names: str, namespace: str = NAMESPACE, timeout: float = 60) -> None:
        """Delete objects and wait until they are gone."""
        limit = f"--timeout={timeout:g}s"
        self.kubectl("delete", kind, *names, "-n", namespace, "--ignore-not-found", limit, timeout=timeout + 30)

    # --- pods ---

    def running(self, *pods: str, timeout: float = 60) -> list[Json]:
        """Wait until all containers of these pods run; returns the pods."""

        def probe() -> list[Json] | None:
            found = {pod["metadata"]["name"]: pod for pod in self.all("pods")}
            for name in pods:
                status = found.get(name, {}).get("status", {})
                statuses = status.get("containerStatuses", [])
                running = statuses and all(s["ready"] and "running" in s["state"] for s in statuses)
                assert running, f"pod {name}: {json.dumps(status)}; events: {self.events(name)}"
            return [found[name] for name in pods]

        return wait_for(f"pods {', '.join(pods)} to run", probe, timeout=timeout)

    def logs(self, pod: str, container: str) -> str:
        """What a container wrote."""
        return self.kubectl("logs", pod, "-n", NAMESPACE, "-c", container)

    def run_in(self, pod: str, container: str, *command: str) -> str:
        """Run a command in a container and return its output."""
        return self.kubectl("exec", pod, "-n", NAMESPACE, "-c", container, "--", *command)

    def kill_container(self, container_id: str, node: str = NODE) -> None:
        """Kill a container's first process, as the kernel's OOM killer would."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container_id.removeprefix("containerd://"), node=node)

    def import_image(self, archive: Path, node: str) -> None:
        """Have a node know the images of an archive."""
        self._ctr("images", "import", "--local", str(archive), node=node)

    def tag_image(self, image: str, tag: str) -> None:
        """Give an image of the node another name."""
        self._ctr("images", "tag", "--force", image, tag)

    def forget_image(self, tag: str) -> None:
        """Take a name of an image away."""
        self._ctr("images", "rm", tag)

    def _ctr(self, *words: str, node: str = NODE) -> None:
        ctr = self.directory / "bin" / self.version / "ctr"
        socket = self.directory / ("" if node == NODE else node) / "containerd.sock"
        subprocess.run([ctr, "-a", socket, "-n", "k8s.io", *words], check=True, capture_output=True, timeout=90)

    def events(self, pod: str, reason: str | None = None) -> list[str]:
        """Messages of a pod's events."""
        selector = f"involvedObject.name={pod}" + (f",reason={reason}" if reason else "")
        return [event["message"] for event in self.all("events", NAMESPACE, "--field-selector", selector)]

    # --- identities ---

    def node_token(self, namespace: str, account: str) -> str:
        """A service account's token that is bound to our node, as a DaemonSet's pod has one."""
        uid = self.kubectl("get", "node", NODE, "-o", "jsonpath={.metadata.uid}")
        bound = ("--bound-object-kind", "Node", "--bound-object-name", NODE, "--bound-object-uid", uid)
        return self.kubectl("create", "token", account, "-n", namespace, *bound, "--duration", "24h").strip()

    def kubeconfig_for(self, token: str, path: Path) -> Path:
        """Write a kubeconfig that uses a token."""
        admin = json.loads(self.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
        admin["users"] = [{"name": admin["users"][0]["name"], "user": {"token": token}}]
        path.touch(0o600)
        path.write_text(json.dumps(admin))
        return path

    def may(self, kubeconfig: Path, verb: str, resource: str, namespace: str = NAMESPACE) -> bool:
        """Whether RBAC lets these credentials do that in a namespace."""
        words = ("--kubeconfig", str(kubeconfig), "auth", "can-i", verb, resource, "-n", namespace, "--quiet")
        try:
            self.kubectl(*words)
        except KubectlFailed:
            return False
        return True

    def purge(self, namespace: str, kinds: Iterable[str]) -> None:
        """Delete everything of these kinds in a namespace, wait until it is gone, and forget the events."""
        listed = ",".join(kinds)
        # Not kubectl's own waiting, which takes a second for each six objects.
        self.kubectl("delete", listed, "--all", "-n", namespace, "--wait=false", timeout=60)

        def gone() -> bool:
            left = self.kubectl("get", listed, "-n", namespace, "-o", "name")
            assert not left, left
            return True

        wait_for(f"all {listed} in {namespace} to be gone", gone, timeout=90)
        # One request for all, while `--all` takes one for each.
        self.kubectl("delete", "--raw", f"/api/v1/namespaces/{namespace}/events")
