"""webhook.documents: files of manifests in, their DRA form out."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from hami_kubeletplugin.api.errors import AdmissionError, SettingsError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from hami_kubeletplugin.webhook.offline.documents import Result, convert_files

RULES = Conversion()
POD_SPEC = "{containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4000}}}]}"
POD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: one, namespace: shop}}\nspec: {POD_SPEC}\n"
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap # kept\nmetadata: {name: a}\ndata: {a: '08'}\n"


TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def known() -> Sequence[GpuSize]:
    """Two sizes, as people name them."""
    return [GpuSize(None, 40960), GpuSize(None, 81920)]


def converted(*texts: str, rules: Conversion = RULES) -> Result:
    """What becomes of these files."""
    return convert_files({f"{index}.yaml": text for index, text in enumerate(texts, 1)}, rules, known)


def objects(result: Result) -> list[Any]:
    """The documents of the output."""
    return [one for one in yaml.safe_load_all(result.text) if one is not None]


def test_a_pod() -> None:
    """The template comes first, in the pod's namespace, with another label than those that the webhook may remove."""
    template, pod = objects(converted(POD))
    assert template["kind"] == "ResourceClaimTemplate"
    assert template["metadata"] == {
        "name": template["metadata"]["name"],
        "namespace": "shop",
        "labels": {"app.kubernetes.io/managed-by": "hami-webhook-convert"},
    }
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "shop"},
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu-main"}]}}],
            "resourceClaims": [{"name": "gpu-main", "resourceClaimTemplateName": template["metadata"]["name"]}],
            "tolerations": [TOLERATION],
        },
    }


WRAPPED = "{metadata: {labels: {a: b}}, spec: " + POD_SPEC + "}"


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        ("apps/v1 Deployment", f"{{template: {WRAPPED}}}", "spec.template."),
        ("apps/v1 StatefulSet", f"{{template: {WRAPPED}, volumeClaimTemplates: [{{spec: {{}}}}]}}", "spec.template."),
        ("apps/v1 DaemonSet", f"{{template: {WRAPPED}}}", "spec.template."),
        ("apps/v1 ReplicaSet", f"{{template: {WRAPPED}}}", "spec.template."),
        ("v1 ReplicationController", f"{{template: {WRAPPED}}}", "spec.template."),
        ("batch/v1 Job", f"{{template: {WRAPPED}}}", "spec.template."),
        ("batch/v1 CronJob", f"{{jobTemplate: {{spec: {{template: {WRAPPED}}}}}}}", "spec.jobTemplate.spec.template."),
        (
            "kubeflow.org/v1 PyTorchJob",
            f"{{pytorchReplicaSpecs: {{Worker: {{template: {WRAPPED}}}}}}}",
            "spec.pytorchReplicaSpecs.Worker.template.",
        ),
        ("batch.volcano.sh/v1alpha1 Job", f"{{tasks: [{{}}, {{template: {WRAPPED}}}]}}", "spec.tasks[1].template."),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            f"{{leaderWorkerTemplate: {{workerTemplate: {WRAPPED}}}}}",
            "spec.leaderWorkerTemplate.workerTemplate.",
        ),
    ],
)
def test_templates_are_found_by_their_form(kind: str, spec: str, where: str) -> None:
    """Every workload, and every custom resource with a pod template in it, becomes what its pod would become."""
    version, name = kind.split()
    text = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: one}}\nspec: {spec}\n"
    result = converted(text)
    (change,) = result.changes
    assert (change.where, str(change.owner)) == (where, f"{name} one")
    template, made = objects(result)
    assert "namespace" not in template["metadata"]
    expected = convert(change.pod, RULES, known)
    found = made
    for step in change.path:
        found = found[step]
    assert found["spec"].pop("tolerations") == [TOLERATION]
    assert found == patched(dict(change.pod), expected.patch)
    assert template["spec"]["spec"] == expected.templates[0].spec


def test_a_pod_template_object() -> None:
    """Kind PodTemplate has its template beside its metadata."""
    result = converted(f"apiVersion: v1\nkind: PodTemplate\nmetadata: {{name: a}}\ntemplate: {WRAPPED}\n")
    assert [change.where for change in result.changes] == ["template."]


def test_lists() -> None:
    """Items are converted each in its namespace; errors name the item."""
    bad = POD.replace("4000", "-1")
    items = [yaml.safe_load(text) for text in (POD, POD.replace("shop", "other"), CONFIG_MAP)]
    result = converted(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    *templates, made = objects(result)
    assert [template["metadata"]["namespace"] for template in templates] == ["shop", "other"]
    assert made["items"][0]["spec"]["resourceClaims"] == made["items"][1]["spec"]["resourceClaims"]
    assert made["items"][2] == items[2]
    with pytest.raises(AdmissionError) as caught:
        converted(yaml.safe_dump({"apiVersion": "v1", "kind": "PodList", "items": [yaml.safe_load(bad)]}))
    assert str(caught.value).startswith(
        "1.yaml, document 1 (Pod shop/one): items[0].spec.containers[0].resources.limits[nvidia.com/gpumem]: "
    )


def test_what_needs_no_change_is_the_same_text() -> None:
    """Comments, quotes and odd spaces of untouched documents stay, and so does a file in which nothing is ours."""
    text = f"# top\n---  # first\n{CONFIG_MAP}\n---\n---\n{POD}---\n# last\n{CONFIG_MAP}"
    made = converted(text).text
    assert made.startswith(f"# top\n---  # first\n{CONFIG_MAP}\n---\n---\napiVersion: resource.k8s.io/v1\n")
    assert made.endswith(f"---\n# last\n{CONFIG_MAP}")
    alone = f"{CONFIG_MAP}...\n# odd\n{CONFIG_MAP}"
    assert converted(alone).text == alone
    opted_out = POD.replace("namespace: shop", "labels: {hami.io/webhook: ignore}")
    assert converted(opted_out).text == opted_out


def test_a_second_pass_changes_nothing() -> None:
    """What was printed can be given in again."""
    once = converted(POD, CONFIG_MAP).text
    assert converted(once).text == once


def test_the_rest_of_a_changed_document_keeps_its_text() -> None:
    """Values that another YAML reader would take for something else, and the comments before the document."""
    odd = "metadata:\n  name: one\n  annotations:\n    a: \"08\"\n    b: 'on'\n    c: 2026-01-02\n    d: |\n      x\n        y\n"
    made = converted(f"---\n# Source: chart/pod.yaml\napiVersion: v1\nkind: Pod\n{odd}spec: {POD_SPEC}\n").text
    assert f"---\n# Source: chart/pod.yaml\napiVersion: v1\nkind: Pod\n{odd}spec:" in made


def test_one_template_for_each_need_and_namespace() -> None:
    """Also over several files that are applied together."""
    templates = [
        one
        for one in objects(converted(f"{POD}---\n{POD}", POD, POD.replace("shop", "x")))
        if "Template" in one["kind"]
    ]
    assert [template["metadata"]["namespace"] for template in templates] == ["shop", "x"]


def test_shared_containers_are_converted_each_for_itself() -> None:
    """An anchor used by two pod templates with other annotations: each gets the claim that its annotations ask for."""
    text = (
        "apiVersion: example.com/v1\nkind: Two\nmetadata: {name: a}\nspec:\n"
        f"  one: {{template: {{metadata: {{annotations: {{nvidia.com/use-gputype: A100}}}}, spec: &s {POD_SPEC}}}}}\n"
        "  two: {template: {metadata: {annotations: {nvidia.com/use-gputype: H100}}, spec: *s}}\n"
        "  three: {template: {spec: {<<: *s, hostNetwork: true}}}\n"
    )
    *templates, made = objects(converted(text))
    used = [
        made["spec"][which]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        for which in ("one", "two", "three")
    ]
    assert used == [template["metadata"]["name"] for template in templates]
    assert len(set(used)) == 3
    for which in ("one", "two", "three"):
        assert made["spec"][which]["template"]["spec"]["containers"][0]["resources"] == {
            "claims": [{"name": "gpu-main"}]
        }


def test_json() -> None:
    """JSON is taken too, also several objects; what is changed becomes YAML, and kubectl is kept from taking all for JSON."""
    pod, other = json.dumps(yaml.safe_load(POD)), '{"kind": "ConfigMap",\n\t"apiVersion": "v1"}'
    result = converted(f"{other}\n{pod}\n")
    assert result.text.startswith(f"---\n{other}\n---\napiVersion: resource.k8s.io/v1\n")
    assert result.changes[0].document == "1.yaml, document 2"
    assert converted(f"{other}{other}").text == f"{other}{other}"


def test_a_template_of_helm_in_quotes() -> None:
    """It is YAML as it is, but no amount: the message says what to do with charts."""
    with pytest.raises(
        AdmissionError, match=r"\[nvidia.com/gpu\]: .*; it is a template: render it first, helm template"
    ):
        converted(POD.replace("gpu: 1", "gpu: '{{ .Values.gpus }}'"))


def test_a_list_costs_no_more_than_its_items() -> None:
    """Twice as many pods in one document are twice the work, in calls."""
    calls = Counter[int]()
    for count in (100, 200):

        def called(*_: object, count: int = count) -> None:
            calls[count] += 1

        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(POD)] * count})
        sys.setprofile(called)
        try:
            converted(text)
        finally:
            sys.setprofile(None)
    assert calls[200] < 2.1 * calls[100]


def test_all_errors_are_told() -> None:
    """One line for each thing that can't be converted, with file, document, object and field."""
    percent = POD.replace("gpumem: 4000", "gpumem-percentage: 150")
    with pytest.raises(AdmissionError) as caught:
        converted(f"{CONFIG_MAP}---\n{percent}", POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: many"))
    first, second = str(caught.value).splitlines()
    path = "spec.containers[0].resources.limits"
    assert first.startswith(
        f"1.yaml, document 2 (Pod shop/one): {path}[nvidia.com/gpumem-percentage]: Invalid value: 150: "
    )
    assert second.startswith(f"2.yaml, document 1 (Pod shop/one): {path}[nvidia.com/gpu]: Invalid value: 'many': ")


def test_what_is_named_elsewhere_is_told() -> None:
    """A workflow's container is no pod template, and a quota counts nothing any more: both stay, and a note says so."""
    workflow = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: w-}\nspec:\n"
        "  templates: [{container: {resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1}}}}]\n"
    )
    quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {limits.nvidia.com/gpumem: 1}}\n"
    result = converted(workflow, quota)
    assert result.text == f"{workflow}---\n{quota}"
    first, second = result.notes
    where = (
        "1.yaml, document 1 (Workflow w-): spec.templates[0].container.resources.limits[nvidia.com/gpu] (and 1 more) "
    )
    assert first.startswith(f"{where}is not in a pod template, so it is left as it is: the webhook converts its pods")
    assert second.startswith(
        "2.yaml, document 1 (ResourceQuota q): spec.hard[limits.nvidia.com/gpumem] will count nothing"
    )


def left(kind: str, spec: str, rules: Conversion = RULES, leave: Sequence[str] = ()) -> str:
    """The one note about an object that comes out as it is."""
    version, name = kind.split()
    text = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: one}}\nspec: {spec}\n"
    result = convert_files({"f": text}, rules, known, leave=leave)
    assert (result.text, result.changes) == (text, ())
    (note,) = result.notes
    assert note.startswith(f"f, document 1 ({name} one): ")
    return note.removeprefix(f"f, document 1 ({name} one): ")


NAMELESS = "{containers: [{image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}"


@pytest.mark.parametrize(
    ("kind", "spec", "where", "why"),
    [
        ("serving.knative.dev/v1 Service", f"{{template: {{spec: {NAMELESS}}}}}", "spec.template.spec.", "Knative"),
        (
            "serving.knative.dev/v1 Configuration",
            f"{{template: {{spec: {NAMELESS}}}}}",
            "spec.template.spec.",
            "Knative",
        ),
        (
            "ray.io/v1 RayCluster",
            f"{{workerGroupSpecs: [{{template: {WRAPPED}}}]}}",
            "spec.workerGroupSpecs[0].",
            "KubeRay",
        ),
        (
            "ray.io/v1 RayJob",
            f"{{rayClusterSpec: {{headGroupSpec: {{template: {WRAPPED}}}}}}}",
            "spec.rayClusterSpec.headGroupSpec.template.",
            "KubeRay",
        ),
        (
            "ray.io/v1 RayService",
            f"{{rayClusterConfig: {{a: {{template: {WRAPPED}}}}}}}",
            "spec.rayClusterConfig.",
            "KubeRay",
        ),
        (
            "trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime",
            f"{{template: {{spec: {{replicatedJobs: [{{template: {{spec: {{template: {WRAPPED}}}}}}}]}}}}}}",
            "spec.template.spec.replicatedJobs[0].template.spec.template.spec.",
            "Kubeflow Trainer",
        ),
        (
            "trainer.kubeflow.org/v1alpha1 TrainJob",
            "{trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 2}}}}",
            "spec.trainer.resourcesPerNode.",
            "Kubeflow Trainer",
        ),
        ("example.com/v1 ClusterThing", f"{{template: {WRAPPED}}}", "spec.template.", "other namespaces"),
        (
            "sparkoperator.k8s.io/v1beta2 SparkApplication",
            "{executor: {gpu: {name: nvidia.com/gpu, quantity: 1}}}",
            "spec.executor.gpu.name ",
            "Spark",
        ),
        (
            "sparkoperator.k8s.io/v1beta2 ScheduledSparkApplication",
            "{template: {driver: {gpu: {name: nvidia.com/gpu, quantity: 1}}}}",
            "spec.template.driver.gpu.name ",
            "Spark",
        ),
        (
            "work.open-cluster-management.io/v1 ManifestWork",
            "{workload: {manifests: [{apiVersion: v1, kind: Pod, spec: " + POD_SPEC + "}]}}",
            "spec.workload.manifests[0].",
            "other clusters",
        ),
    ],
)
def test_kinds_whose_controllers_read_or_refuse_it(kind: str, spec: str, where: str, why: str) -> None:
    """They come out as they are, and a note says why, and what they need."""
    if "ManifestWork" in kind:
        (note,) = converted(f"apiVersion: {kind.split(maxsplit=1)[0]}\nkind: ManifestWork\nspec: {spec}\n").notes
        note = note.partition("): ")[2]
    else:
        note = left(kind, spec)
    assert note.startswith(where)
    assert why in note
    assert "left as it is, since" in note
    assert note.endswith("the webhook converts its pods when they are created, and has to be in the cluster for that")


def test_a_kind_that_is_called_cluster_and_has_a_namespace() -> None:
    """Its pods are in that namespace, so they are converted."""
    named = f"apiVersion: example.com/v1\nkind: ClusterJob\nmetadata: {{name: one%s}}\nspec: {{template: {WRAPPED}}}\n"
    assert convert_files({"f": named % ", namespace: team"}, RULES, known).changes
    assert not convert_files({"f": named % ""}, RULES, known).changes


def test_more_kinds_can_be_left() -> None:
    """Patterns of GROUP/KIND; what is no pattern is refused."""
    kind, spec = "example.com/v1 Odd", f"{{template: {WRAPPED}}}"
    for pattern in ("example.com/Odd", "example.com/*", "*/Odd"):
        assert "since --leave says so" in left(kind, spec, leave=["other.io/*", pattern])
    assert convert_files({"f": POD}, RULES, known, leave=["example.com/Odd"]).changes
    for pattern in ("Odd", "example.com/", "example.com/v1/Odd", ""):
        with pytest.raises(SettingsError, match="--leave: must be GROUP/KIND, with "):
            convert_files({"f": POD}, RULES, known, leave=[pattern])


COUNTS = "will count nothing, since pods no longer name it: limit claims instead (docs/migrating-from-hami.md, Quotas)"


@pytest.mark.parametrize(
    ("kind", "spec", "what"),
    [
        ("v1 ResourceQuota", "{hard: {requests.nvidia.com/gpu: 4}}", COUNTS),
        (
            "kueue.x-k8s.io/v1beta1 ClusterQueue",
            "{resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{resources: [{name: nvidia.com/gpu}]}]}]}",
            COUNTS,
        ),
        ("kueue.x-k8s.io/v1beta2 Cohort", "{resourceGroups: [{coveredResources: [nvidia.com/gpu]}]}", COUNTS),
        ("scheduling.volcano.sh/v1beta1 Queue", "{capability: {nvidia.com/gpu: 4}}", COUNTS),
        ("scheduling.x-k8s.io/v1alpha1 ElasticQuota", "{max: {nvidia.com/gpu: 4}}", COUNTS),
        ("scheduling.sigs.k8s.io/v1alpha1 ElasticQuota", "{min: {nvidia.com/gpu: 4}}", COUNTS),
        ("karpenter.sh/v1 NodePool", "{limits: {nvidia.com/gpu: 4}}", COUNTS),
        ("scheduling.volcano.sh/v1beta1 PodGroup", "{minResources: {nvidia.com/gpu: 4}}", "will be waited for in vain"),
        ("scheduling.x-k8s.io/v1alpha1 PodGroup", "{minResources: {nvidia.com/gpu: 4}}", "will be waited for in vain"),
        (
            "v1 LimitRange",
            "{limits: [{type: Container, max: {nvidia.com/gpu: 2}}]}",
            "bounds nothing any more, but is put into",
        ),
        (
            "v1 LimitRange",
            "{limits: [{type: Container, min: {nvidia.com/gpu: 1}}]}",
            "refuses all pods of the namespace",
        ),
        (
            "v1 LimitRange",
            "{limits: [{maxLimitRequestRatio: {nvidia.com/gpu: 1}}]}",
            "refuses all pods of the namespace",
        ),
        (
            "v1 LimitRange",
            "{limits: [{default: {nvidia.com/gpumem: 4000}}]}",
            "is put into each container that doesn't name",
        ),
        (
            "v1 LimitRange",
            "{limits: [{defaultRequest: {nvidia.com/gpumem: 1}}]}",
            "is put into each container that doesn't",
        ),
    ],
)
def test_quotas_and_queues(kind: str, spec: str, what: str) -> None:
    """No pods are made from them: the note says what becomes of them, and what to write instead."""
    note = left(kind, spec)
    assert what in note
    assert "pods made from it" not in note
    assert "webhook converts" not in note


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {capacity: {nvidia.com/gpu: 8}}\n",
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\nspec: {extendedResourceName: nvidia.com/gpu}\n",
        "apiVersion: example.com/v1\nkind: Odd\nspec: {tolerations: [{key: nvidia.com/gpu, operator: Exists}]}\n",
    ],
)
def test_nothing_to_say(text: str) -> None:
    """What names the resource and asks for none."""
    assert converted(text) == (text, (), ())


def test_containers_without_names() -> None:
    """Where a custom resource lets them have none, their claims are called by their number, and never `gpu-None`."""
    kind = "apiVersion: example.com/v1\nkind: Odd\nmetadata: {name: a}\n"
    one = "{image: x, resources: {limits: {nvidia.com/gpu: 1}}}"
    spec = f"{{containers: [{{name: a}}, {one}], initContainers: [{{restartPolicy: Always, {one[1:]}]}}"
    *_, made = objects(converted(f"{kind}spec: {{template: {{spec: {spec}}}}}\n"))
    assert [claim["name"] for claim in made["spec"]["template"]["spec"]["resourceClaims"]] == ["gpu-init-0", "gpu-1"]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("", [TOLERATION]),
        (", tolerations: [{key: other, operator: Exists}]", [{"key": "other", "operator": "Exists"}, TOLERATION]),
        (", tolerations: [{operator: Exists}]", [{"operator": "Exists"}]),
        (", tolerations: [{key: nvidia.com/gpu, operator: Exists}]", [{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        (
            ", tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoExecute}]",
            [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, TOLERATION],
        ),
    ],
)
def test_the_toleration_of_gke_and_aks(there: str, expected: object) -> None:
    """Their API servers make it of the resource that pods name; it is added, unless it is there."""
    text = POD.replace("nvidia.com/gpumem: 4000}}}]", f"nvidia.com/gpumem: 4000}}}}}}]{there}")
    assert objects(converted(text))[-1]["spec"]["tolerations"] == expected


def test_whom_nothing_is_tolerated_for() -> None:
    """A pod without a GPU gets no toleration; under another name of the resource it is of that one."""
    assert "tolerations" not in objects(converted(POD.replace("gpu: 1", "gpu: 0")))[-1]["spec"]
    other = POD.replace("nvidia.com/gpu:", "example.com/vgpu:")
    made = objects(converted(other, rules=Conversion(resource_count_name="example.com/vgpu")))[-1]
    assert made["spec"]["tolerations"] == [{**TOLERATION, "key": "example.com/vgpu"}]


def test_named_sizes_serve_every_type() -> None:
    """Sizes that people name have no model, so they count for every use-gputype."""
    text = POD.replace("gpumem: 4000", "gpumem-percentage: 50").replace(
        "name: one", "name: one, annotations: {nvidia.com/use-gputype: A100}"
    )
    template, _ = objects(converted(text))
    alternatives = template["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
    assert [one["capacity"]["requests"]["memory"] for one in alternatives] == ["20Gi", "40Gi"]


def test_names_follow_the_settings() -> None:
    """Resources under other names are converted, and those under HAMi's are then nobody's."""
    rules = Conversion(resource_count_name="example.com/vgpu")
    assert (
        "resourceClaims"
        in objects(converted(POD.replace("nvidia.com/gpu:", "example.com/vgpu:"), rules=rules))[-1]["spec"]
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "# only\n",
        "---\n---\n",
        "hello\n",
        "- 1\n- {template: 5}\n",
        "template: {spec: {containers: 5}}\n",
        "kind: Pod\n",
        "a: {kind: Pod, apiVersion: v1}\n",
    ],
)
def test_odd_files_come_out_as_they_are(text: str) -> None:
    """What is no manifest is none of our business."""
    assert converted(text).text == text


def test_a_malformed_pod_is_refused_with_its_path() -> None:
    """As the webhook would."""
    with pytest.raises(AdmissionError, match=r"document 1 \(Pod a\): spec.containers\[0\]: must be an object"):
        converted("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [5]}\n")


LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
)


@pytest.mark.parametrize("resources", ["{claims: *a8}", "{claims: [*a8]}", "{limits: {nvidia.com/gpu: 1}, x: *a8}"])
def test_aliases_of_aliases(resources: str) -> None:
    """A file that is small by aliases only and would take for ever is refused, wherever in it they are used."""
    for text in (LAUGHS, f"{LAUGHS}\n{POD}".replace("resources: {", f"x: {resources}, resources: {{x: *a8, ")):
        with pytest.raises(SettingsError, match=r"1.yaml, document 1, line \d+: .* too large"):
            converted(text)


def test_merges_of_merges() -> None:
    """Mappings that are merged many times over are merged once."""
    lines = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9) if n else ''}], k{n}: 1}}" for n in range(20)]
    text = "\n".join([*lines, POD.replace("metadata: {", "metadata: {<<: *a19, ")])
    assert objects(converted(text))[-1]["metadata"].keys() >= {"k0", "k19", "name"}


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "0" + "7" * 6000, "1" * 5000, "0b" + "1" * 20_000])
def test_numbers_that_nobody_can_write(number: str) -> None:
    """Endless digits are refused by their line, whatever they are for."""
    for text in (POD.replace("gpu: 1", f"gpu: {number}"), POD.replace("image: x", f"image: {number}")):
        with pytest.raises(SettingsError, match=r"1.yaml, document 1, line 4: is not YAML: '\w{60}' is no int"):
            converted(text)
