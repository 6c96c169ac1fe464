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
    """The template comes first, in the pod's namespace, without the label of those that the webhook may remove."""
    template, pod = objects(converted(POD))
    assert template["kind"] == "ResourceClaimTemplate"
    assert template["metadata"] == {"name": template["metadata"]["name"], "namespace": "shop"}
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "shop"},
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu-main"}]}}],
            "resourceClaims": [{"name": "gpu-main", "resourceClaimTemplateName": template["metadata"]["name"]}],
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
    assert found == patched(dict(change.pod), expected.patch)
    assert template == expected.templates[0].object()


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
        "  templates: [{container: {resources: {limits: {nvidia.com/gpu: 1}}}}]\n"
    )
    quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {limits.nvidia.com/gpumem: 1}}\n"
    result = converted(workflow, quota)
    assert result.text == f"{workflow}---\n{quota}"
    first, second = result.notes
    assert first.startswith(
        "1.yaml, document 1 (Workflow w-): spec.templates[0].container.resources.limits[nvidia.com/gpu] is not"
    )
    assert second.startswith(
        "2.yaml, document 1 (ResourceQuota q): spec.hard[limits.nvidia.com/gpumem] will count nothing"
    )


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
