"""The doctors of the cluster on the real one. They say that daemon and webhook are processes here, and called by a URL."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import yaml

from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.people import PeoplesClient
from tests import CHECKOUT
from tests.e2e.cluster import NAMESPACE, REPOSITORY, Cluster, Json
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import container, pod
from tests.e2e.test_kubectl import hami
from tests.e2e.webhook.process import ADDRESS, Webhook
from tests.unit.webhook.doctor.sound import bundle
from tests.waiting import wait_for

HERE = {("daemon", "warning"), ("webhook", "hint"), ("rates", "hint")}
"""What is said of a cluster without DaemonSet, Service and pods of the control plane."""


def doctor(cluster: Cluster, *words: str, kubeconfig: Path | None = None) -> tuple[int, list[Json]]:
    """Its exit code and what it found, without what is as it should be or as it is here."""
    done = hami(cluster, "doctor", "-n", NAMESPACE, "-o", "json", *words, kubeconfig=kubeconfig)
    assert done.stdout, done.stderr
    found = [each for each in json.loads(done.stdout) if each["level"] != "ok"]
    return done.returncode, [each for each in found if (each["check"], each["level"]) not in HERE]


def told(cluster: Cluster, check: str, *words: str) -> Json:
    """The error of a check, once it is told; others may be told beside it. Exit code 1."""

    def probe() -> Json:
        code, found = doctor(cluster)
        errors = [each for each in found if (each["check"], each["level"]) == (check, "error")]
        assert errors, found
        assert code == 1
        assert all(word in errors[0]["what"] for word in words), errors
        return errors[0]

    return wait_for(f"kubectl hami doctor: {check}", probe, timeout=30)


def healthy(cluster: Cluster) -> bool:
    """Nothing is found."""
    assert doctor(cluster) == (0, [])
    return True


def patched(cluster: Cluster, text: str) -> None:
    """Put another caBundle into the configuration."""
    patch = [{"op": "replace", "path": "/webhooks/1/clientConfig/caBundle", "value": text}]
    words = ("patch", "mutatingwebhookconfiguration", "zz-webhook.gpu.hami.io", "--type=json", "-p", json.dumps(patch))
    cluster.kubectl(*words)


def test_found_and_mended(daemon: Daemon, webhook: Webhook, cluster: Cluster) -> None:
    """All is well, until trust, a policy or a label is broken: each is found with exit code 1, and gone when it is mended."""
    wait_for("a healthy cluster", lambda: healthy(cluster), timeout=60)

    configuration = json.loads(
        cluster.kubectl("get", "mutatingwebhookconfiguration", "zz-webhook.gpu.hami.io", "-o", "json")
    )
    before = configuration["webhooks"][1]["clientConfig"]["caBundle"]
    patched(cluster, bundle(host=ADDRESS))
    try:  # until the webhook itself mends it, within a minute
        assert "x509" in told(cluster, "conversion", "could not call a webhook")["what"]
    finally:
        patched(cluster, before)

    name = "hami-kubeletplugin-own-events"
    cluster.kubectl("delete", "validatingadmissionpolicybinding", name)
    try:
        mend = told(cluster, "policies", name, "is not in force")["mend"]
    finally:
        items = yaml.safe_load_all((REPOSITORY / "daemonset.yaml").read_text())
        cluster.apply(*(each for each in items if each["metadata"]["name"] == name))
    assert mend.endswith("kubectl apply -f daemonset.yaml")

    cluster.kubectl("label", "namespace", NAMESPACE, "hami.io/webhook=ignore")
    try:
        told(cluster, "conversion", "is not converted")
        assert any(each["check"] == "order" and NAMESPACE in each["what"] for each in doctor(cluster)[1])
    finally:
        cluster.kubectl("label", "namespace", NAMESPACE, "hami.io/webhook-")
    wait_for("a healthy cluster", lambda: healthy(cluster), timeout=60)


def test_rights_and_bundle(daemon: Daemon, webhook: Webhook, cluster: Cluster, tmp_path: Path) -> None:
    """The ClusterRole of docs/kubectl.md is enough for all checks and the bundle; a pod's log comes as it is."""
    page = (REPOSITORY / "docs" / "kubectl.md").read_text()
    role = yaml.safe_load(page.rpartition("```yaml\n")[2].partition("```")[0])
    person = cluster.kubeconfig_for(cluster.node_token(NAMESPACE, "default"), tmp_path / "kubeconfig")
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}
    chosen = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]}
    about = {"apiVersion": role["apiVersion"], "kind": "ClusterRoleBinding", "metadata": role["metadata"]}
    cluster.apply(role, about | {"roleRef": chosen, "subjects": [subject]}, pod("talks", container(script="echo said")))
    cluster.running("talks")
    archive = tmp_path / "bundle.tar.gz"
    try:

        def allowed() -> bool:
            assert doctor(cluster, kubeconfig=person) == (0, [])
            return True

        wait_for("the rights to be known", allowed, timeout=60)
        assert doctor(cluster, "--support-bundle", str(archive), kubeconfig=person) == (0, [])
        with PeoplesClient.of(str(person)) as client:
            call = Call("get", "pods/log", f"/api/v1/namespaces/{NAMESPACE}/pods/talks/log", "talks")
            assert wait_for("its log", lambda: client.text(call, 100)) == "said\n"
    finally:
        cluster.delete("clusterrolebinding,clusterrole", role["metadata"]["name"])
    with tarfile.open(archive) as files:
        texts = {member.name: (files.extractfile(member) or sys.exit()).read().decode() for member in files}
    refused = {name: text for name, text in texts.items() if "forbidden" in text}
    assert refused == {}
    assert "hami-webhook-own-certificate" in texts["bundle/policies.yaml"]


def test_in_the_pod(daemon: Daemon, webhook: Webhook, cluster: Cluster) -> None:
    """`hami-webhook doctor` with the webhook's own token finds nothing wrong, and asks for nothing that it may not read."""
    done = subprocess.run(
        [Path(sys.executable).parent / "hami-webhook", "doctor", "--tls-hosts", ADDRESS, "-o", "json"],
        env={
            **CHECKOUT,
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(cluster.directory / "e2e-webhook" / "kubeconfig"),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    levels = {(each["check"], each["level"]) for each in json.loads(done.stdout) if each["level"] != "ok"}
    assert levels == {("daemon", "warning"), ("webhook", "hint"), ("rest", "hint")}
