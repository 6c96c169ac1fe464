"""A webhook that answers the API server alone, which shows a certificate: the example of docs/security.md."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import REPOSITORY, Cluster, KubectlFailed
from tests.e2e.webhook.objects import dry_run, gpu_pod, wanting
from tests.e2e.webhook.process import ADDRESS, Webhook
from tests.waiting import wait_for

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
FOLDER = "/etc/kubernetes/pki/hami"
"""Where the files are, by that page."""


def shown(what: str) -> str:
    """The YAML of that page that has this in it."""
    [found] = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if what in block]
    return str(found)


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """A CA, and a client's certificate of it, made as the page says."""
    [commands] = re.findall(r"(?:^    .*\n)+", PAGE[PAGE.index("    openssl req -x509") :], re.MULTILINE)[:1]
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True, capture_output=True, timeout=30)
    return tmp_path


@pytest.fixture
def closed(webhook: Webhook, pki: Path) -> Iterator[Webhook]:
    """The webhook, for that client only."""
    assert webhook.replace("--client-ca", str(pki / "ca.crt"), "--client-name", "kube-apiserver") == 0
    yield webhook
    webhook.replace()


@pytest.fixture
def admission(cluster: Cluster) -> Iterator[Path]:
    """Where the API server's AdmissionConfiguration is, if there is one at its start."""
    path = cluster.directory / "admission.yaml"
    yield path
    path.unlink(missing_ok=True)
    cluster.control("restart", "apiserver")


def test_only_the_api_server_may_ask(cluster: Cluster, closed: Webhook, pki: Path, admission: Path) -> None:
    """Without its certificate the pod is refused, and who creates it reads why; with it the pod is converted."""
    with pytest.raises(KubectlFailed, match=r'failed calling webhook "pods\.hami\.io".*reviews are for clients with'):
        dry_run(cluster, gpu_pod("stranger", wanting(gpu=1)))
    assert closed.metric("hami_webhook_reviews_total", result="stranger") > 0
    assert closed.get("/healthz") == "ok\n"

    kubeconfig = shown("client-certificate: ").replace("hami-webhook.hami-system.svc", f"{ADDRESS}:{closed.port}")
    (pki / "kubeconfig").write_text(kubeconfig.replace(FOLDER, str(pki)))
    admission.write_text(shown("AdmissionConfiguration\n").replace(FOLDER, str(pki)))
    cluster.control("restart", "apiserver")

    def converted() -> bool:
        return "resourceClaims" in dry_run(cluster, gpu_pod("known", wanting(gpu=1)))["spec"]

    wait_for("the API server to show its certificate", converted)
