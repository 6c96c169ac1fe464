"""What the API server admits, refuses and keeps when the webhook is asked. Nothing has to run, so nearly all is a dry run."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.e2e.cluster import NAMESPACE, Cluster, KubectlFailed
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import claim, config, container, pod, request, template
from tests.e2e.webhook.objects import dry_run, gpu_pod, templates, wanting
from tests.e2e.webhook.process import Webhook
from tests.unit.webhook.pods import OURS, pods

ACCOUNT = "system:serviceaccount:hami-system:hami-webhook"


@pytest.fixture(scope="module", autouse=True)
def published(session_daemon: Daemon, cluster: Cluster) -> Iterator[None]:
    """The node's GPUs, for percentages and slots."""
    if not session_daemon.is_running:
        session_daemon.start()
    yield
    clean(cluster, session_daemon)


def refusal(cluster: Cluster, made: Any) -> str:
    """What a person reads who creates this."""
    with pytest.raises(KubectlFailed) as refused:
        dry_run(cluster, made)
    return str(refused.value)


def fields(made: Any) -> tuple[Any, Any]:
    """Resources of the first container and claims of a pod."""
    return made["spec"]["containers"][0]["resources"], made["spec"].get("resourceClaims")


PRIVILEGED = {"securityContext": {"privileged": True}}
SCRATCH = [{"name": "scratch", "emptyDir": {}}]


def mounting(path: str) -> Any:
    """A GPU container with a volume there."""
    return {**wanting(gpu=1), "volumeMounts": [{"name": "scratch", "mountPath": path}]}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (gpu_pod("p", {**wanting(gpu=1), **PRIVILEGED}), ["spec.containers[0].securityContext.privileged", "every GPU"]),
        (
            gpu_pod("p", wanting(gpu=1), {**container("other"), **PRIVILEGED}),
            ["spec.containers[1].securityContext.privileged"],
        ),
        (
            gpu_pod("p", mounting("/overrideEnv"), volumes=SCRATCH),
            ["spec.containers[0].volumeMounts[0].mountPath", "could lift the limit"],
        ),
        (
            gpu_pod("p", mounting("/etc/ld.so.preload/x"), volumes=SCRATCH),
            ["spec.containers[0].volumeMounts[0].mountPath", "could not start"],
        ),
        (gpu_pod("p", wanting(gpu=1), nodeName="node-1"), ["spec.nodeName", "kubernetes.io/hostname"]),
        (gpu_pod("p", wanting(gpu=17)), ["spec.containers[0].resources.limits[nvidia.com/gpu]", "'17'", "0 to 16"]),
        (gpu_pod("p", wanting(gpu=-1)), ["limits[nvidia.com/gpu]", "'-1'"]),
        (gpu_pod("p", wanting(gpu="500m")), ["limits[nvidia.com/gpu]", "'500m'"]),
        (gpu_pod("p", wanting(gpu=1, gpumem="4Gi")), ["limits[nvidia.com/gpumem]", "'4Gi'", "write 4096"]),
        (gpu_pod("p", wanting(gpu=1, gpumem="4M")), ["limits[nvidia.com/gpumem]", "'4M'", "write 4"]),
        (gpu_pod("p", wanting(gpu=1, gpumem="4000000")), ["limits[nvidia.com/gpumem]", "'4M'", "write 4"]),
        (gpu_pod("p", wanting(gpu=1), annotations={"gpumem": "4000"}), ["annotations[nvidia.com/gpumem]", "resources.limits"]),
        (gpu_pod("p", wanting(gpumem_percentage=101)), ["limits[nvidia.com/gpumem-percentage]", "'101'"]),
        (gpu_pod("p", wanting(gpumem=1, gpumemory=2)), ["gpumem and nvidia.com/gpumemory", "differ"]),
        (
            gpu_pod("p", wanting(gpu=1), initContainers=[wanting("first", gpucores=-5)]),
            ["spec.initContainers[0].resources.limits[nvidia.com/gpucores]"],
        ),
        (gpu_pod("p", wanting(gpu=1), annotations={"numa-bind": "ture"}), ["annotations[nvidia.com/numa-bind]", "'ture'"]),
        (gpu_pod("p", wanting(gpu=1), annotations={"vgpu-mode": "mig"}), ["annotations[nvidia.com/vgpu-mode]"]),
        (
            gpu_pod("p", wanting(gpumem_percentage=50), annotations={"use-gputype": "h100"}),
            ["gpumem-percentage", "no GPU that the annotations allow"],
        ),
        (
            gpu_pod("p", wanting(gpu=1), annotations={"use-gpuuuid": ",".join(f"GPU-{n:04d}" + "é" * 40 for n in range(99))}),
            ["metadata.annotations", "characters of CEL"],
        ),
    ],
)  # fmt: skip
def test_what_cant_be_kept_is_refused(cluster: Cluster, webhook: Webhook, made: Any, words: Sequence[str]) -> None:
    """A pod that could not have what it asks for is refused with the field's path and what to do."""
    message = refusal(cluster, made)
    assert 'admission webhook "pods.hami.io" denied the request' in message
    assert all(word in message for word in words), message


def test_stray_variables_and_volumes_are_warned_about(cluster: Cluster, webhook: Webhook) -> None:
    """Who creates a pod with variables or volumes that meet HAMi-core's own reads what becomes of them."""
    env = [{"name": name, "value": "1"} for name in ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")]
    made = json.dumps(gpu_pod("p", {**mounting("/tmp"), "env": env}, volumes=SCRATCH))
    with pytest.raises(KubectlFailed) as warned:
        cluster.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=made)
    lines = str(warned.value).splitlines()
    for path, words in (
        ("env[0]: 'CUDA_VISIBLE_DEVICES'", "the driver's own value wins"),
        ("env[1]: 'LD_PRELOAD'", "loaded before HAMi-core"),
        ("volumeMounts[0].mountPath: '/tmp'", "the limit holds"),
    ):
        assert any(f"Warning: spec.containers[0].{path}" in line and words in line for line in lines), lines


def test_a_dry_run_leaves_nothing(cluster: Cluster, webhook: Webhook) -> None:
    """`kubectl apply --dry-run=server` shows the claim that the real pod would have, and creates no template for it."""
    made = gpu_pod("dry", wanting(gpu=1, gpumem=1234))
    _, claims = fields(dry_run(cluster, made))
    cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(made))
    [name] = [entry["resourceClaimTemplateName"] for entry in claims]
    assert name not in templates(cluster)
    created = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(made)))
    assert fields(created)[1] == claims
    assert name in templates(cluster)


def test_a_second_pass_changes_nothing(cluster: Cluster, webhook: Webhook) -> None:
    """What was converted stays as it is when it is created again, as after `kubectl get -o yaml`."""
    once = dry_run(cluster, gpu_pod("p", wanting(gpu=2, gpumem=100), initContainers=[wanting("first", gpumem=50)]))
    for field in ("uid", "creationTimestamp"):
        del once["metadata"][field]
    assert dry_run(cluster, once)["spec"] == once["spec"]


def test_others_resources_stay(cluster: Cluster, webhook: Webhook) -> None:
    """Limits and requests that are not ours, extended ones too, stay beside the claim."""
    mixed = wanting(gpu=1)
    mixed["resources"]["limits"] |= {"cpu": "1", "example.com/fpga": "1"}
    mixed["resources"]["requests"] = {"cpu": "500m", "nvidia.com/gpu": "1"}
    resources, _ = fields(dry_run(cluster, gpu_pod("p", mixed)))
    assert resources == {
        "limits": {"cpu": "1", "example.com/fpga": "1"},
        "requests": {"cpu": "500m", "example.com/fpga": "1"},
        "claims": [{"name": "gpu-main"}],
    }


@pytest.fixture
def ignored_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace with the label."""
    name = "e2e-ignored"
    cluster.make_namespace(name, {"hami.io/webhook": "ignore"})
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_who_is_left_alone(cluster: Cluster, webhook: Webhook, ignored_namespace: str) -> None:
    """Pods with the label `hami.io/webhook: ignore`, and those in namespaces with it or of the system, stay as they are."""
    alone = [
        gpu_pod("p", wanting(gpu=1), labels={"hami.io/webhook": "ignore"}),
        *(gpu_pod("p", wanting(gpu=1), namespace=name) for name in (ignored_namespace, "kube-system", "hami-system")),
    ]
    for made in alone:
        resources, claims = fields(dry_run(cluster, made))
        assert (resources["limits"], claims) == ({"nvidia.com/gpu": "1"}, None), made["metadata"]


def test_only_pods_with_gpus_are_reviewed(cluster: Cluster, webhook: Webhook) -> None:
    """The API server asks about pods that name our resources, or what looks so, in any container, and about no other."""

    def asks(made: Any) -> bool:
        before = webhook.metric("hami_webhook_reviews_total", endpoint="/mutate")
        with contextlib.suppress(KubectlFailed):  # a priority alone is no GPU, and then a resource without a limit
            dry_run(cluster, made)
        return webhook.metric("hami_webhook_reviews_total", endpoint="/mutate") > before

    requested = {**container(), "resources": {"requests": {"nvidia.com/gpucores": "1"}}}
    for amount in ("gpu", "gpumem", "gpumemory", "gpumem_percentage", "gpucores", "priority"):
        amounts: dict[str, Any] = {amount: 1}
        assert asks(gpu_pod("p", container("first"), wanting(**amounts))), amount
    assert asks(gpu_pod("p", requested))
    assert asks(gpu_pod("p", container(), initContainers=[wanting("first", gpu=1)]))
    assert asks(gpu_pod("p", {**container(), "resources": {"limits": {"nvidia.com/gpu.shared": "1"}}}))
    other = {**container(), "resources": {"limits": {"cpu": "1", "nvidia.com/hostdev": "1", "amd.com/gpu": "1"}}}
    assert not asks(gpu_pod("p", other, annotations={"use-gputype": "A100"}))
    assert not asks(pod("p", {"name": "bare", "image": "x"}))


@pytest.mark.parametrize(
    ("devices", "path", "words"),
    [
        ({"config": [config(corePolicy="sometimes")]}, "config[0].opaque.parameters.corePolicy", "'sometimes'"),
        ({"config": [config(corPolicy="force")]}, "config[0].opaque.parameters.corPolicy", "unknown field"),
        ({"capacity": {"shares": "1500"}}, "requests[0].exactly.capacity.requests[shares]", "the whole GPU"),
        ({"capacity": {"memory": "1000000000"}}, "requests[0].exactly.capacity.requests[memory]", "954Mi"),
    ],
)
@pytest.mark.parametrize("make", [claim, template])
def test_wrong_claims_are_refused(
    cluster: Cluster, webhook: Webhook, make: Any, devices: Any, path: str, words: str
) -> None:
    """A claim, or template, that could not be kept is refused when it is created, with its field's path."""
    asked = request()
    if "capacity" in devices:
        asked["exactly"]["capacity"] = {"requests": devices["capacity"]}
    made = make("c", asked, **({"config": devices["config"]} if "config" in devices else {}))
    message = refusal(cluster, made)
    assert 'admission webhook "claims.hami.io" denied the request' in message
    assert f"{'spec.spec' if make is template else 'spec'}.devices.{path}" in message
    assert words in message


def test_right_claims_are_admitted(cluster: Cluster, webhook: Webhook) -> None:
    """Claims that the devices can satisfy, and those for other drivers, are admitted."""
    right = request(memory="4000Mi", cores=30)
    right["exactly"]["capacity"]["requests"]["shares"] = "10k"
    dry_run(cluster, claim("c", right, config=[config(corePolicy="force")]))
    other = {"opaque": {"driver": "nic.example.com", "parameters": {"any": "thing"}}}
    dry_run(cluster, claim("c", request("nic", device_class="nic.example.com", memory="1"), config=[other]))


def test_claims_from_templates_are_not_reviewed(cluster: Cluster, webhook: Webhook) -> None:
    """For a pod's own claim, and its template that the webhook makes, nobody asks the webhook: they were looked at already."""

    def asked() -> float:
        return webhook.metric("hami_webhook_reviews_total", endpoint="/validate")

    before = asked()
    cluster.apply(gpu_pod("unreviewed", wanting(gpu=1, gpumem=4321)))
    cluster.running("unreviewed")
    assert asked() == before
    dry_run(cluster, claim("c", request(memory="1Mi")))
    assert asked() == before + 1


def test_random_pods_are_accepted(cluster: Cluster, webhook: Webhook) -> None:
    """The API server's validation accepts what becomes of a hundred random pods, and nothing of ours is left in them."""
    made: list[Any] = []

    @settings(
        max_examples=100,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(pods())
    def collect(one: Any) -> None:
        metadata = {**one["metadata"], "namespace": NAMESPACE}
        metadata.pop("generateName", None)
        made.append({**one, "metadata": metadata | {"name": f"random-{len(made)}"}})

    collect()
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    words = ("create", "--dry-run=server", "-f", "-", "-o", 'jsonpath={.spec}{"\\n"}')
    webhook.replace("--max-placements", "0")  # some of them want more than is harmless to the scheduler
    try:
        kept = [json.loads(line) for line in cluster.kubectl(*words, stdin=text, timeout=120).splitlines()]
    finally:
        webhook.replace()
    assert len(kept) == len(made) >= 100
    for spec in kept:
        for one in [*spec.get("initContainers", ()), *spec["containers"]]:
            amounts = {**one["resources"].get("limits", {}), **one["resources"].get("requests", {})}
            assert not amounts.keys() & set(OURS), one


def test_the_webhook_may_write_its_own_templates_only(cluster: Cluster, webhook: Webhook) -> None:
    """With the webhook's rights nobody can touch other templates, read Secrets, or make pods."""
    theirs = template("theirs", request(memory="1000Mi"))
    cluster.apply(theirs)
    as_webhook = ("--as", ACCOUNT, "--as-group", "system:serviceaccounts")
    for words in (
        ("delete", "resourceclaimtemplate", "theirs"),
        ("annotate", "resourceclaimtemplate", "theirs", "a=b"),
    ):
        with pytest.raises(KubectlFailed, match="the webhook may write ResourceClaimTemplates hami-gpu-"):
            cluster.kubectl(*words, "-n", NAMESPACE, *as_webhook)
    for asked in (
        ("get", "secrets"),
        ("create", "pods"),
        ("create", "secrets"),
        ("update", "mutatingwebhookconfigurations"),
        ("patch", "mutatingwebhookconfigurations/another"),
        ("get", "secrets/another"),
        ("delete", "resourceclaims"),
    ):
        with pytest.raises(KubectlFailed):
            cluster.kubectl("auth", "can-i", *asked, "-n", "hami-system", *as_webhook)
