"""Who gives out the same GPUs is seen before anything is installed: helm asks the API server, for which a server here stands."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import Chart

PASSED = "failed to download openapi"
"""What helm looks at once the chart is rendered, and this server doesn't have."""
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.19.0"


def resources(version: str, name: str, kind: str, *, namespaced: bool) -> Any:
    """An APIResourceList with one kind."""
    verbs = ["get", "list"]
    found = [{"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs}]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def group(name: str, version: str) -> Any:
    """An entry of /apis."""
    versions = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [versions], "preferredVersion": versions}


def daemon_set(name: str, image: str, *, nodes: int, command: list[str] | None = None) -> Any:
    """One that runs on so many nodes."""
    container = {"name": "main", "image": image, **({"command": command} if command else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "gpu-operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"desiredNumberScheduled": nodes},
    }


class Cluster:
    """An API server with DaemonSets and GPUClusters, as far as helm asks."""

    def __init__(self, folder: Path) -> None:
        self.daemon_sets: list[Any] = []
        self.gpu_clusters: list[Any] = []
        self.answers: Mapping[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = outer.answer(self.path.partition("?")[0])
                body = json.dumps(answer or {"kind": "Status", "status": "Failure", "code": 404}).encode()
                self.send_response(200 if answer else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        cluster = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}
        context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {"clusters": [cluster], "contexts": [context], "current-context": "x", "users": [{"name": "x"}]}
            )
        )

    def answer(self, path: str) -> Any:
        """To one question; None if there is no such thing."""
        groups = [group("apps", "v1"), *([group("nvidia.com", "v1alpha1")] if self.gpu_clusters else [])]
        answers = {
            "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.2"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": resources("v1", "namespaces", "Namespace", namespaced=False),
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
            "/apis/apps/v1": resources("apps/v1", "daemonsets", "DaemonSet", namespaced=True),
            "/apis/apps/v1/daemonsets": {"kind": "DaemonSetList", "apiVersion": "apps/v1", "items": self.daemon_sets},
        }
        if self.gpu_clusters:
            version = "nvidia.com/v1alpha1"
            answers[f"/apis/{version}"] = resources(version, "gpuclusters", "GPUCluster", namespaced=False)
            answers[f"/apis/{version}/gpuclusters"] = {
                "kind": "GPUClusterList",
                "apiVersion": version,
                "items": self.gpu_clusters,
            }
        return answers.get(path)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """It answers until the test ends."""
    made = Cluster(tmp_path)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.mark.parametrize(
    "found",
    [
        daemon_set("nvidia-device-plugin-daemonset", PLUGIN, nodes=3),
        daemon_set("hami-device-plugin", "projecthami/hami:v2.10.0", nodes=3, command=["nvidia-device-plugin", "-v=5"]),
    ],
    ids=["NVIDIA's", "HAMi's"],
)
def test_a_device_plugin(found: Any, chart: Chart, cluster: Cluster) -> None:
    """It is named, with its nodes and what to do; who has looked can say so."""
    cluster.daemon_sets = [daemon_set("calico", "calico/node:v3", nodes=3), found]
    refusal = chart.refusal(kubeconfig=cluster.kubeconfig)
    assert f"DaemonSet gpu-operator/{found['metadata']['name']} is a device plugin" in refusal
    assert "runs on 3 nodes" in refusal
    assert "set confirm.devicePlugin=true" in refusal
    assert PASSED in chart.refusal({"confirm": {"devicePlugin": True}}, kubeconfig=cluster.kubeconfig)


def test_one_that_runs_nowhere(chart: Chart, cluster: Cluster) -> None:
    """Nobody is asked to remove what gives out nothing, or is no device plugin."""
    discovery = daemon_set("gpu-feature-discovery", PLUGIN, nodes=3, command=["gpu-feature-discovery"])
    calico = daemon_set("calico", "calico/node:v3", nodes=3)
    cluster.daemon_sets = [daemon_set("plugin", PLUGIN, nodes=0), calico, discovery]
    assert PASSED in chart.refusal(kubeconfig=cluster.kubeconfig)


def test_nvidias_gpucluster(chart: Chart, cluster: Cluster) -> None:
    """Its DRA driver always gives out the GPUs."""
    cluster.gpu_clusters = [
        {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}}
    ]
    refusal = chart.refusal(kubeconfig=cluster.kubeconfig)
    assert "there is a GPUCluster gpu-cluster of NVIDIA's GPU operator" in refusal
    assert "set confirm.gpuCluster=true" in refusal
    assert PASSED in chart.refusal({"confirm": {"gpuCluster": True}}, kubeconfig=cluster.kubeconfig)
