"""What the cluster's doctor says: nothing of a sound installation, and of a broken one what is broken, why and what mends it."""

import json
import runpy
from datetime import timedelta

import pytest

from hami_kubeletplugin.api.errors import ApiDenied, ApiError, ApiForbidden, ApiUnavailable
from hami_kubeletplugin.findings import Finding, Level, exit_code
from hami_kubeletplugin.webhook.doctor import conflicts
from hami_kubeletplugin.webhook.doctor.checks import for_people, found_by
from hami_kubeletplugin.webhook.doctor.cluster import Cluster
from hami_kubeletplugin.webhook.doctor.installation import Installation, driver_of
from tests import REPOSITORY
from tests.unit.kubectl.objects import a100s, slice_
from tests.unit.webhook.doctor.sound import Break, Json, World, bundle, world


def examined(there: World, driver: str = "gpu.hami.io") -> list[Finding]:
    """All that is found."""
    found = Installation(Cluster(there, driver))
    return found_by(found, for_people(found, "shop", there.try_out), 30)


def test_the_manifests_are_what_is_expected() -> None:
    """What the cluster is held against is what this version's manifests have; hack/expected writes it."""
    made = runpy.run_path(str(REPOSITORY / "hack/expected"))
    assert json.loads(made["FILE"].read_text()) == made["expected"](), "run hack/expected"


def test_a_sound_installation() -> None:
    """Nothing is wrong with what the manifests make, each check says so in a line, and nothing is written."""
    there = world()
    found = examined(there)
    assert {finding.level for finding in found} == {Level.ok}, [each for each in found if each.level is not Level.ok]
    assert exit_code(found, strict=True) == 0
    checks = {finding.check for finding in found}
    assert checks == {
        *("kubernetes", "daemon", "slices", "webhook", "versions", "templates", "certificate", "service", "conversion"),
        *("order", "policies", "class", "rates"),
    }
    assert {call.verb for call in there.asked} == {"get", "list", "create"}
    assert [call.resource for call in there.asked if call.verb == "create"] == ["pods"]  # by `try_out`, a dry run


def test_each_list_is_read_once() -> None:
    """Checks share what they read: of a large cluster nothing is asked for twice."""
    there = world()
    examined(there)
    asked = [(call.verb, call.path, *(call.query or {}).items()) for call in there.asked]
    assert len(asked) == len(set(asked))


def _other_names(there: World) -> None:
    env = there.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    env.append({"name": "HAMI_RESOURCE_MEMORY_NAME", "value": "example.com/mem"})


def _bundle(there: World, text: str) -> None:
    there.hook("pods.hami.io")["clientConfig"]["caBundle"] = text


def _pod(there: World, **status: object) -> None:
    pod = next(each for each in there.objects["pods"] if each["metadata"]["name"] == "hami-kubeletplugin-n1")
    pod["status"] |= status


def _one_of_another_profile(there: World) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}, "restartCount": 0}
    _pod(there, conditions=[], containerStatuses=[waiting])
    ready = next(each for each in there.objects["pods"] if each["metadata"]["name"] == "hami-kubeletplugin-n2")
    owner = {"kind": "DaemonSet", "name": "hami-kubeletplugin-old-gpus", "uid": "another"}
    there.objects["pods"].append(ready | {"metadata": ready["metadata"] | {"name": "x", "ownerReferences": [owner]}})


def _other_webhook(name: str, entry: str = "x.example.com", group: str = "") -> Break:
    rule = {"apiGroups": [group], "resources": ["pods"], "operations": ["CREATE"]}
    made = {"metadata": {"name": name}, "webhooks": [{"name": entry, "rules": [rule]}]}
    return lambda there: there.put("MutatingWebhookConfiguration", made)


def _policy(there: World, name: str = "hami-kubeletplugin-own-node") -> Json:
    spec: Json = there.one("ValidatingAdmissionPolicy", name)["spec"]
    return spec


def _more(validation: Json) -> None:
    validation["expression"] = validation["expression"].replace('["names.hami.io"', '["other.io", "names.hami.io"')


def _runs_as(there: World, account: str) -> None:
    there.one("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] = account


def _class(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}


def _set_slices(there: World, *slices: Json) -> None:
    there.objects["resourceslices"] = list(slices)


def _nothing(there: World) -> None:
    there.remove("DaemonSet")
    _set_slices(there)


def _plugin(there: World) -> None:
    there.objects["nodes"][0]["status"]["allocatable"]["nvidia.com/gpu"] = "8"


def _component(there: World, component: str, *words: str) -> None:
    pod = next(each for each in there.objects["pods"] if each["metadata"]["name"] == component)
    pod["spec"]["containers"][0]["command"] = [component, *words]


def _templates(there: World, number: int) -> None:
    labels = {"app.kubernetes.io/managed-by": "hami-webhook"}
    about = {"annotations": {"gpu.hami.io/last-used": "2026-01-01T00:00:00Z"}, "labels": labels, "namespace": "shop"}
    for each in range(number):
        there.put("ResourceClaimTemplate", {"metadata": {"name": f"hami-gpu-{each}", **about}})


def _taint(there: World) -> None:
    taint = {"key": "gpu.hami.io/lost", "effect": "NoSchedule"}
    there.objects["resourceslices"][0]["spec"]["devices"][0]["taints"] = [taint]


def _quota(there: World, *names: str) -> None:
    about = {"name": "q", "namespace": "shop"}
    there.put("ResourceQuota", {"metadata": about, "spec": {"hard": dict.fromkeys(names, "1")}})


_WITHOUT_SHARING = [device | {"allowMultipleAllocations": False} for device in a100s(2)]
_DEVICE_PLUGIN = {
    "metadata": {"name": "nvdp", "namespace": "gpu-operator"},
    "spec": {"template": {"spec": {"containers": [{"image": "nvcr.io/nvidia/k8s-device-plugin:v0.19.0"}]}}},
    "status": {"desiredNumberScheduled": 3},
}
BROKEN: dict[str, tuple[Break, str, Level, str]] = {
    "no daemon": (lambda w: w.remove("DaemonSet"), "daemon", Level.warning, "no DaemonSet of hami-kubeletplugin"),
    "nothing at all": (
        _nothing,
        "daemon",
        Level.error,
        "no DaemonSet of hami-kubeletplugin",
    ),
    "a daemon that isn't ready": (
        lambda w: _pod(
            w,
            conditions=[],
            containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}, "restartCount": 0}],
        ),
        "daemon",
        Level.error,
        "1 of 2 pods are ready; hami-kubeletplugin-n1 on n1: ImagePullBackOff",
    ),
    "a daemon that isn't ready, beside one of another profile": (
        _one_of_another_profile,
        "daemon",
        Level.error,
        "1 of 2 pods are ready; hami-kubeletplugin-n1 on n1: ImagePullBackOff",
    ),
    "restarts": (
        lambda w: _pod(
            w,
            containerStatuses=[
                {"restartCount": 9, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}},
            ],
        ),
        "daemon",
        Level.warning,
        "was restarted 9 times, the last time OOMKilled (exit code 137)",
    ),
    "a node without a daemon": (
        lambda w: w.objects["nodes"].append(
            {"metadata": {"name": "n3", "labels": {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}}}
        ),
        "daemon",
        Level.warning,
        "no daemon is on n3",
    ),
    "two images": (
        lambda w: w.one("Deployment")["spec"]["template"]["spec"]["containers"][0].update(image="hami-dra:0.2.0"),
        "versions",
        Level.warning,
        "different images: hami-dra:0.1.0, hami-dra:0.2.0",
    ),
    "no slices": (_set_slices, "slices", Level.error, "no GPU of driver gpu.hami.io is published"),
    "a node that is gone": (
        lambda w: w.objects["nodes"].pop(),
        "slices",
        Level.warning,
        "nodes that are gone: 00000-n2",
    ),
    "half of a pool": (
        lambda w: _set_slices(w, slice_("n1", *a100s(2), of=2), slice_("n2", *a100s(2))),
        "slices",
        Level.error,
        "pool n1 is incomplete: 1 of 2 slices",
    ),
    "a taint": (
        _taint,
        "slices",
        Level.warning,
        "1 GPUs take nothing new because of gpu.hami.io/lost:NoSchedule: n1/hami-gpu-0",
    ),
    "no webhook configuration": (
        lambda w: w.objects.update(mutatingwebhookconfigurations=[], validatingwebhookconfigurations=[]),
        "webhook",
        Level.error,
        "no webhook configuration names pods.hami.io",
    ),
    "no entry": (
        lambda w: w.one("MutatingWebhookConfiguration")["webhooks"].pop(1),
        "webhook",
        Level.error,
        "the webhook pods.hami.io is in no configuration",
    ),
    "fails open": (
        lambda w: w.hook("pods.hami.io").update(failurePolicy="Ignore"),
        "webhook",
        Level.warning,
        "failurePolicy is Ignore",
    ),
    "another time-out": (
        lambda w: w.hook("pods.hami.io").update(timeoutSeconds=1),
        "webhook",
        Level.warning,
        "pods.hami.io: timeoutSeconds differ from webhook.yaml",
    ),
    "a condition less": (
        lambda w: w.hook("pods.hami.io")["matchConditions"].pop(),
        "webhook",
        Level.warning,
        "matchConditions has 1 entries instead of 2",
    ),
    "other names of resources": (
        _other_names,
        "webhook",
        Level.error,
        "its conditions don't name example.com/mem, which the webhook takes for its own",
    ),
    "called by a URL": (
        lambda w: w.hook("pods.hami.io").update(
            clientConfig={"url": "https://127.0.0.1:1/m", "caBundle": bundle(host="127.0.0.1")}
        ),
        "webhook",
        Level.hint,
        "calls it by a URL, https://127.0.0.1:1/m",
    ),
    "no webhook pods": (
        lambda w: w.one("Deployment")["spec"].update(replicas=0),
        "webhook",
        Level.error,
        "no pod is wanted",
    ),
    "no caBundle": (lambda w: _bundle(w, ""), "certificate", Level.error, "pods.hami.io: caBundle is empty"),
    "a caBundle of something": (lambda w: _bundle(w, "AAAA"), "certificate", Level.error, "caBundle"),
    "no base64": (lambda w: _bundle(w, "-"), "certificate", Level.error, "caBundle can't be read"),
    "expired": (
        lambda w: _bundle(w, bundle(age=timedelta(days=91))),
        "certificate",
        Level.error,
        "each certificate of caBundle has expired",
    ),
    "expires soon": (
        lambda w: _bundle(w, bundle(age=timedelta(days=85))),
        "certificate",
        Level.warning,
        "is good until",
    ),
    "another name": (
        lambda w: _bundle(w, bundle(host="elsewhere.svc")),
        "certificate",
        Level.error,
        "no certificate of caBundle is for hami-webhook.hami-system.svc",
    ),
    "no Service": (
        lambda w: w.remove("Service"),
        "service",
        Level.error,
        "Service hami-system/hami-webhook does not exist",
    ),
    "nobody behind the Service": (
        lambda w: w.one("EndpointSlice").update(endpoints=[{"conditions": {"ready": False}}]),
        "service",
        Level.error,
        "leads to no pod that is ready, of 1",
    ),
    "one replica": (lambda w: w.one("Deployment")["spec"].update(replicas=1), "service", Level.hint, "has one replica"),
    "no budget": (lambda w: w.remove("PodDisruptionBudget"), "service", Level.hint, "has no PodDisruptionBudget"),
    "called too late": (
        _other_webhook("zzz"),
        "order",
        Level.warning,
        "zzz are called for pods after zz-webhook.gpu.hami.io",
    ),
    "HAMi's webhook": (_other_webhook("hami", "vgpu.hami.io"), "conflicts", Level.warning, "HAMi's own webhook, hami,"),
    "an ignored namespace": (
        lambda w: w.put("Namespace", {"metadata": {"name": "shop", "labels": {"hami.io/webhook": "ignore"}}}),
        "order",
        Level.hint,
        "pods of shop are not converted",
    ),
    "no policy": (
        lambda w: w.remove("ValidatingAdmissionPolicy", "hami-kubeletplugin-own-node"),
        "policies",
        Level.error,
        "ValidatingAdmissionPolicy hami-kubeletplugin-own-node does not exist",
    ),
    "no binding": (
        lambda w: w.remove("ValidatingAdmissionPolicyBinding", "hami-webhook-own-templates"),
        "policies",
        Level.error,
        "so the policy of that name is not in force",
    ),
    "only audited": (
        lambda w: w.one("ValidatingAdmissionPolicyBinding", "hami-webhook-own-templates")["spec"].update(
            validationActions=["Audit"]
        ),
        "policies",
        Level.error,
        "does not deny what the policy forbids",
    ),
    "another expression": (
        lambda w: _policy(w)["validations"][0].update(expression="true"),
        "policies",
        Level.warning,
        "spec.validations[0].expression differ from daemonset.yaml",
    ),
    "a webhook more": (
        lambda w: _more(_policy(w, "hami-webhook-own-certificate")["validations"][3]),
        "policies",
        Level.warning,
        "hami-webhook-own-certificate: spec.validations[3].expression differ from webhook.yaml",
    ),
    "for somebody else": (
        lambda w: _runs_as(w, "gpu-daemon"),
        "policies",
        Level.error,
        "is for ServiceAccount hami-system/hami-kubeletplugin, and the daemon runs as ServiceAccount hami-system/gpu-daemon",
    ),
    "no class": (lambda w: w.remove("DeviceClass"), "class", Level.error, "DeviceClass gpu.hami.io does not exist"),
    "a class of others": (
        lambda w: w.one("DeviceClass")["spec"].update(selectors=[{"cel": {"expression": 'device.driver == "x"'}}]),
        "class",
        Level.error,
        "does not select the driver gpu.hami.io",
    ),
    "two classes of one resource": (
        lambda w: [w.put("DeviceClass", _class(name)) for name in ("a", "b")],
        "class",
        Level.warning,
        "DeviceClasses a, b all have extendedResourceName nvidia.com/gpu",
    ),
    "a gate that is off": (
        lambda w: w.put("DeviceClass", {"metadata": {"name": "gpu.hami.io-extended"}, "spec": {}}),
        "class",
        Level.error,
        "has no extendedResourceName, which the API server dropped",
    ),
    "many templates": (
        lambda w: _templates(w, 401),
        "templates",
        Level.warning,
        "nearly 500 templates, or so many: shop (401)",
    ),
    "old templates": (lambda w: _templates(w, 3), "templates", Level.hint, "3 templates are unused for 7 lifetimes"),
    "1.34": (lambda w: setattr(w, "version", ("1", "34")), "kubernetes", Level.error, "v1.34.2 is too old"),
    "1.35": (lambda w: setattr(w, "version", ("1", "35+")), "kubernetes", Level.hint, "needs the feature gate"),
    "no API": (lambda w: w.versions.clear(), "kubernetes", Level.error, "does not serve resource.k8s.io/v1"),
    "no sharing": (
        lambda w: _set_slices(w, slice_("n1", *_WITHOUT_SHARING)),
        "kubernetes",
        Level.error,
        "DRAConsumableCapacity is off",
    ),
    "a device plugin beside": (_plugin, "conflicts", Level.error, "a device plugin serves nvidia.com/gpu on n1"),
    "a device plugin elsewhere": (
        lambda w: w.put("DaemonSet", _DEVICE_PLUGIN),
        "conflicts",
        Level.hint,
        "NVIDIA's device plugin runs on 3 nodes: DaemonSet gpu-operator/nvdp",
    ),
    "NVIDIA's driver beside": (
        lambda w: w.objects["resourceslices"].append(slice_("n2", *a100s(1), name="x", driver="gpu.nvidia.com")),
        "conflicts",
        Level.error,
        "n2: gpu.nvidia.com publishes GPUs there",
    ),
    "GPUCluster": (
        lambda w: w.put("GPUCluster", {"metadata": {"name": "gpu-cluster"}}),
        "conflicts",
        Level.error,
        "GPUCluster gpu-cluster",
    ),
    "ClusterPolicy": (
        lambda w: w.objects.update(
            clusterpolicies=[{"metadata": {"name": "cp"}, "spec": {"devicePlugin": {"enabled": True}}}]
        ),
        "conflicts",
        Level.warning,
        "ClusterPolicy cp has the GPU operator install its device plugin",
    ),
    "a quota of nothing": (
        lambda w: _quota(w, "requests.nvidia.com/gpu", "limits.nvidia.com/gpumem"),
        "quotas",
        Level.warning,
        "ResourceQuotas shop/q name nvidia.com/gpu and the like only",
    ),
    "slow controllers": (
        lambda w: _component(w, "kube-controller-manager"),
        "rates",
        Level.hint,
        "kube-controller-manager may send 20 requests a second, enough for 10 GPU pods a second",
    ),
    "a scheduler with a file": (
        lambda w: _component(w, "kube-scheduler", "--config=/etc/s.yaml"),
        "rates",
        Level.hint,
        "kube-scheduler may send stands in a file on its node; by default 50 a second, enough for 12.5 GPU pods",
    ),
    "controllers elsewhere": (
        lambda w: w.objects.update(
            pods=[each for each in w.objects["pods"] if each["metadata"]["namespace"] != "kube-system"]
        ),
        "rates",
        Level.hint,
        "kube-controller-manager may send can't be seen",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found(what: str) -> None:
    """Each fault is told by its check, as bad as it is, with the reason and the command wherever something is to be mended."""
    break_it, check, level, words = BROKEN[what]
    there = world()
    break_it(there)
    found = examined(there)
    told = [finding for finding in found if finding.check == check and words in finding.what]
    assert told, found
    assert told[0].level is level
    assert all(
        each.why and each.mend
        for each in found
        if each.level in (Level.error, Level.warning) and each.check != "kubernetes"
    )
    assert not [each for each in found if each.level is Level.unknown]


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        ({"spec": {}}, Level.error, "is not converted"),
        (
            ApiUnavailable(
                'create pods shop failed: failed calling webhook "pods.hami.io": x509: unknown authority (500)'
            ),
            Level.error,
            "could not call a webhook: create pods shop failed: failed calling webhook",
        ),
        (ApiForbidden("cannot create resource pods (403)"), Level.unknown, "was not tried"),
        (ApiDenied("exceeded quota: q (403)"), Level.unknown, "is refused by somebody else: exceeded quota"),
        (
            ApiForbidden('admission webhook "pods.hami.io" denied the request: no'),
            Level.warning,
            "refused by the webhook itself",
        ),
    ],
)
def test_a_pod_is_tried_out(answer: Json | ApiError, level: Level, words: str) -> None:
    """The dry run tells whether pods are converted, and who is in the way; who may not create pods is told that."""
    there = world()
    there.answer = answer
    (told,) = (each for each in examined(there) if each.check == "conversion")
    assert told.level is level
    assert words in told.what


def test_other_names_are_no_fault() -> None:
    """Another namespace, other accounts and another driver, all of them agreed upon, are as good as the default."""
    text = json.dumps(world().objects)
    for mine, theirs in (
        ('\\"gpu.hami.io\\"', '\\"hami.example\\"'),
        ('"driver": "gpu.hami.io"', '"driver": "hami.example"'),
        ("hami-system", "gpus"),
        ('"hami-kubeletplugin-own-', '"mine-kubeletplugin-own-'),
        ('"hami-webhook-own-', '"mine-webhook-own-'),
        (":hami-kubeletplugin", ":plugin"),
        ('"serviceAccountName": "hami-kubeletplugin"', '"serviceAccountName": "plugin"'),
        ('{"name": "gpu.hami.io"}', '{"name": "hami.example"}'),
    ):
        assert mine in text
        text = text.replace(mine, theirs)
    there = World(json.loads(text))
    for name in ("names.hami.io", "pods.hami.io", "claims.hami.io"):
        there.hook(name)["clientConfig"]["caBundle"] = bundle(host="hami-webhook.gpus.svc")
    found = examined(there, "hami.example")
    assert [each for each in found if each.level is not Level.ok] == []
    there.remove("ValidatingAdmissionPolicyBinding", "mine-webhook-own-templates")
    (told,) = (each for each in examined(there, "hami.example") if each.level is not Level.ok)
    assert told.mend == "helm upgrade hami-dra charts/hami-dra -n gpus   # without helm: kubectl apply -f webhook.yaml"


def test_the_driver_is_the_daemons() -> None:
    """Which driver it is, the DaemonSet says; who may not read that takes the default."""
    there = world()
    env = there.one("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert driver_of(Cluster(there)) == "gpu.hami.io"
    env.append({"name": "HAMI_DRIVER_NAME", "value": "hami.example"})
    assert driver_of(Cluster(there)) == "hami.example"
    there.forbidden = {"daemonsets"}
    assert driver_of(Cluster(there)) == "gpu.hami.io"


def test_who_may_read_little_is_told_what_is_lacking() -> None:
    """What can't be read is unknown, once, with the right; all else is told. Exit code 3."""
    there = world()
    there.forbidden = {"nodes", "validatingadmissionpolicies"}
    found = examined(there)
    assert {each.check: each.what for each in found if each.level is Level.unknown} == {
        "nodes": "list nodes failed: forbidden (403); allow verb list on nodes in the ClusterRole",
        "policies": "list validatingadmissionpolicies.admissionregistration.k8s.io failed: "
        "forbidden (403); allow verb list on validatingadmissionpolicies.admissionregistration.k8s.io in the ClusterRole",
    }
    assert exit_code(found) == 3
    assert any(each.check == "slices" and each.level is Level.ok for each in found)


def test_gpu_feature_discovery_is_no_device_plugin() -> None:
    """It is in the same image, and the GPU operator runs it without its device plugin, too."""
    container = {"image": "nvcr.io/nvidia/k8s-device-plugin:v0.19.0", "command": ["/usr/bin/gpu-feature-discovery"]}
    spec = {"template": {"spec": {"containers": [container, {**container, "command": ["config-manager"]}]}}}
    daemon_set = {"metadata": {"name": "gfd"}, "spec": spec, "status": {"desiredNumberScheduled": 3}}
    assert list(conflicts.plugins([daemon_set])) == []
    container.pop("command")
    assert [each.level for each in conflicts.plugins([daemon_set])] == [Level.hint]
