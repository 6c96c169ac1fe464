"""webhook.above: what stands above a pod template."""

from typing import Any

import pytest
import yaml

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.offline.documents import convert_files
from tests.unit.webhook.pods import GPU, MEMORY, Json, container

DEPLOYMENT = "f.yaml, document 1 (Deployment d): "
CRON = "f.yaml, document 1 (CronJob c): "


def deployment(annotations: Json | None = None, labels: Json | None = None, template: Json | None = None) -> Json:
    """With a GPU container."""
    spec = {"containers": [container("main", {GPU: 1, MEMORY: 4000})]}
    metadata = {"name": "d", "annotations": annotations, "labels": labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"template": {"metadata": template, "spec": spec}},
    }


def notes(document: Any) -> list[str]:
    """What is said of a file with it."""
    return [*convert_files({"f.yaml": yaml.safe_dump(document)}, Conversion(), lambda: ()).notes]


@pytest.mark.parametrize(
    ("annotations", "labels", "told"),
    [
        (
            {"nvidia.com/use-gpuuuid": "GPU-1"},
            {},
            "metadata.annotations[nvidia.com/use-gpuuuid] has no effect: it belongs in spec.template.metadata.annotations",
        ),
        (
            {"hami.io/gpu-scheduler-policy": "mutex"},
            {},
            "metadata.annotations[hami.io/gpu-scheduler-policy] has no effect: it belongs in spec.template.metadata.annotations",
        ),
        (
            {"nvidia.com/gpumem": "4000"},
            {},
            "metadata.annotations[nvidia.com/gpumem] has no effect: amounts belong in resources.limits of a container",
        ),
        (
            {},
            {"hami.io/webhook": "ignore"},
            "metadata.labels[hami.io/webhook] has no effect: it belongs in spec.template.metadata.labels",
        ),
    ],
)
def test_a_deployments_own_metadata(annotations: Json, labels: Json, told: str) -> None:
    """Its pods don't get it, so nobody reads it: a warning says where it belongs. The same in a List."""
    made = deployment(annotations, labels)
    assert notes(made) == [f"{DEPLOYMENT}{told}"]
    (told_of_item,) = notes({"apiVersion": "v1", "kind": "List", "items": [{}, made]})
    assert told_of_item == f"{DEPLOYMENT}items[1].{told.replace('spec.template', 'items[1].spec.template')}"


def test_a_cron_job() -> None:
    """Between the object and its pods there is one more template, whose annotations don't reach them either."""
    job = deployment({"nvidia.com/use-gputype": "A100"})
    made = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": job}}
    del job["kind"], job["apiVersion"]
    there = "spec.jobTemplate.spec.template.metadata.annotations"
    path = "spec.jobTemplate.metadata.annotations[nvidia.com/use-gputype]"
    assert notes(made) == [f"{CRON}{path} has no effect: it belongs in {there}"]


@pytest.mark.parametrize(
    "made",
    [
        deployment({"nvidia.com/use-gputype": "A100"}, template={"annotations": {"nvidia.com/use-gputype": "A100"}}),
        deployment({"nvidia.com/use-gputype": "A100"}, template={"labels": {"hami.io/webhook": "ignore"}}),
        deployment({"example.com/x": "y"}, {"hami.io/webhook": "x"}),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {"nvidia.com/use-gputype": "A"}}, "spec": {}},
    ],
)
def test_what_is_right(made: Json) -> None:
    """The pod template has it too, or is left alone; or it is a pod."""
    assert notes(made) == []


def test_a_pod_without_gpus_that_names_nearly_ours() -> None:
    """It needs no change, and its author is warned all the same."""
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}
    made["spec"] = {"containers": [container("main", {"nvidia.com/vgpu": 1})]}
    text = yaml.safe_dump(made)
    result = convert_files({"f.yaml": text}, Conversion(), lambda: ())
    assert result.text == text
    (note,) = result.notes
    assert note.startswith(
        "f.yaml, document 1 (Pod p): spec.containers[0].resources.limits[nvidia.com/vgpu]: is not converted"
    )
