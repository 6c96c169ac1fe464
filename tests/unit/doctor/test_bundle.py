"""The support bundle: what a bug report needs, bounded, and without secrets."""

import json
import shutil
import stat
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin import redaction
from hami_kubeletplugin.api.errors import ApiUnavailable, StorageError
from hami_kubeletplugin.doctor import bundle
from hami_kubeletplugin.doctor.cluster import Answers
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from tests.unit.doctor.objects import place

FOUND = [Finding(check="cdi", level=Level.ok, what="CDI is on")]
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ing0In0.eyJpc3MiOiJTRUNSRVQifQ.SECRETc2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nSECRETabc\n-----END RSA PRIVATE KEY-----\n"
CONTAINERD = f"""
version = 2
imports = ["/etc/containerd/more/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example".auth]
username = "robot"
password = "SECRETpassword"
auth = "SECRETauth"
identitytoken = "SECRETidentity"
[plugins."io.containerd.grpc.v1.cri".registry.headers]
Authorization = ["Basic SECRETbasic"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://robot:SECRETurl@mirror.example"]
[proxy_plugins]
env = ["HTTPS_PROXY=http://u:SECRETproxy@proxy", "NGC_API_KEY=nvapi-SECRETkey", "X={JWT}"]
args = ["--registry-token", "SECRETword", "--password=SECRETargument"]
[proxy_plugins."https://u:SECRETname@x"]
http = "http://u:SECRETat@SECRETsign@x --token SECREToption"
"""
KUBELET = f"""
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, x509: {{clientCAFile: /etc/ca.crt}}}}
staticPodURL: https://u:SECRETstatic@pods.example
staticPodURLHeader: {{Authorization: [Bearer SECRETheader]}}
providerToken: SECRETprovider
note: |
  {PEM.replace(chr(10), chr(10) + "  ")}
"""


class Known:
    """A `Cluster` of which one object says too much."""

    def answers(self) -> Answers:
        """What it said."""
        message = f"image pull failed: https://robot:SECRETpull@registry {JWT}"
        node = {
            "metadata": {"name": "n1", "annotations": {"note": "SECRETnote"}},
            "status": {"conditions": [{"message": message}]},
        }
        attributes = {"x": {"string": f"token=SECRETattribute {JWT}"}}
        device = {"name": "d", "attributes": attributes, "taints": [{"key": "gpu.hami.io/lost", "effect": "None"}]}
        slice_ = {"metadata": {"name": "s", "annotations": {"note": "SECRETnote"}}, "spec": {"devices": [device]}}
        return Answers("https://api", (1, 37), 0.0, node, [slice_], {}, [])


class Gone:
    """A `Cluster` that can't be asked."""

    def answers(self) -> Answers:
        """Nothing."""
        raise ApiUnavailable(f"no answer; sent {JWT}")


def planted(root: Path) -> Place:
    """A node where each source has secrets."""
    here = place(root)
    for path, text in {
        "host/etc/containerd/config.toml": CONTAINERD,
        "host/etc/containerd/more/a.toml": '[debug]\ntoken = "SECRETimported"\n',
        "host/var/lib/kubelet/config.yaml": KUBELET,
        "plugin/claims/11111111-1111-4111-8111-111111111111.json": f'{{"damaged": "password=SECRETrecord {JWT}"}}',
        "plugin/conditions.json": json.dumps({"by_source": {"message": f"Bearer SECRETcondition {JWT}"}}),
        "cdi/k8s.gpu.hami.io-claim_1-1.json": json.dumps({"devices": [{"env": ["DB_PASSWORD=SECRETenv", "A=b"]}]}),
        "proc/self/mountinfo": "1 0 0:1 / /usr/local/vgpu rw - cifs //u:x rw,password=SECRETmount\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return here


def unpacked(file: Path) -> dict[str, str]:
    """What is in it."""
    with tarfile.open(file) as archive:
        members = {each.name.removeprefix("b/"): archive.extractfile(each) for each in archive}
        return {name: member.read().decode() for name, member in members.items() if member}


def write(root: Path, here: Place, cluster: Any) -> dict[str, str]:
    """Write it, and read it."""
    bundle.write(root / "b.tar.gz", here, cluster, FOUND)
    return unpacked(root / "b.tar.gz")


def test_no_secret_gets_into_it(tmp_path: Path) -> None:
    """Whatever source has one: what is worth knowing beside it stays."""
    parts = write(tmp_path, planted(tmp_path), Known())
    for name, content in parts.items():
        assert "SECRET" not in content, name
        assert "eyJhbG" not in content, name
    assert json.loads(parts["doctor.json"])[0]["what"] == "CDI is on"
    runtime = parts["runtime/containerd.json"]
    for kept in ('"enable_cdi": true', "@mirror.example", "more/*.toml"):
        assert kept in runtime
    assert "clientCAFile" in parts["kubelet/config.yaml.json"]
    assert '"A=b"' in parts["cdi/k8s.gpu.hami.io-claim_1-1.json"]
    assert "gpu.hami.io/lost" in parts["slices.json"]
    assert "records/11111111-1111-4111-8111-111111111111.json" in parts


def test_the_manifest_says_what_each_part_is(tmp_path: Path) -> None:
    """And what could not be had, and why, without a secret. Only its owner can read the file."""
    parts = write(tmp_path, planted(tmp_path), Gone())
    manifest = parts.pop("MANIFEST")
    assert "SECRET" not in manifest
    assert "slices.json: left out: no answer" in manifest
    assert all(f"{name}: " in manifest for name in parts)
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


def test_its_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is larger than one may be is cut, and the manifest says so."""
    here = planted(tmp_path)
    monkeypatch.setattr(bundle, "LARGEST", 100)
    parts = write(tmp_path, here, Known())
    assert all(len(content) <= 100 for name, content in parts.items() if name != "MANIFEST")
    assert "the first 100 of" in parts["MANIFEST"]


WORDS = [
    "password",
    "dbPassword",
    "identitytoken",
    "auth",
    "client_secret",
    "Authorization",
    "api_key",
    "accessKey",
    "client-key-data",
]
ANYTHING = st.recursive(
    st.just("SECRET"), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3)
)


@given(ANYTHING, st.sampled_from(WORDS), st.integers(0, 40))
def test_what_sounds_like_a_credential_goes_with_all_below_it(value: object, name: str, depth: int) -> None:
    """Whatever is in it, and however deep it is."""
    wrapped: object = {name: value}
    for _ in range(depth):
        wrapped = [{"a": wrapped}]
    assert "SECRET" not in redaction.as_json(wrapped).decode()


def test_a_folder_that_cant_be_read_costs_only_what_is_in_it(tmp_path: Path) -> None:
    """As where a disk is broken, when the rest of a report is needed most."""
    here = planted(tmp_path)
    shutil.rmtree(tmp_path / "plugin")
    (tmp_path / "plugin").write_text("no folder")
    shutil.rmtree(tmp_path / "cdi")
    (tmp_path / "cdi").symlink_to("cdi")
    parts = write(tmp_path, here, Known())
    assert "cdi: left out: " in parts["MANIFEST"]
    assert {"doctor.json", "slices.json", "runtime/containerd.json"} <= parts.keys()


def test_it_overwrites_nothing(tmp_path: Path) -> None:
    """Nor what a link leads to: it is written by root, and its path is typed by hand."""
    taken = tmp_path / "b.tar.gz"
    taken.symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("x")
    with pytest.raises(StorageError, match=r"b\.tar\.gz can't be written: File exists; name a new file"):
        bundle.write(taken, planted(tmp_path), Known(), FOUND)  # type: ignore[arg-type]
    assert (tmp_path / "precious").read_text() == "x"


@pytest.mark.parametrize(
    "word", ["ey-ey", "pass", "a.a-", "://", "--token", "LS0tLS1CRUdJTi", "-----BEGIN A", "basic "]
)
def test_no_text_takes_longer_than_twice_for_twice_as_much(word: str) -> None:
    """Whatever somebody had written into a log: the search for credentials can't be interrupted."""

    def seconds(times: int) -> float:
        content = word * times
        begun = time.process_time()
        redaction.text(content)
        return time.process_time() - begun

    once = min(seconds(5_000) for _ in range(3))
    assert min(seconds(40_000) for _ in range(3)) < 24 * once + 0.01
