"""webhook.bounds: what one pod may have the webhook write, and how much of it is looked at."""

import json
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.bounds import MOST_ENTRIES
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.reapply import reapplied
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import GPU, MEMORY, PERCENT, Json, container, pod

SIZES = [GpuSize("NVIDIA A100", 1000 * number) for number in range(1, 9)]
SHARE = {GPU: 1, MEMORY: 4000}
UUIDS = {"nvidia.com/use-gpuuuid": ",".join(f"GPU-{number:036}" for number in range(128))}


def converted(one: Json, where: str = "", **rules: Any) -> Converted:
    """What becomes of it."""
    return convert(one, Conversion(max_placements=0, **rules), lambda: SIZES, where=where)


def refusal(one: Json, where: str = "", **rules: Any) -> str:
    """Why it is refused."""
    with pytest.raises(AdmissionError) as refused:
        converted(one, where, **rules)
    return str(refused.value)


def different(count: int, annotations: Json | None = None) -> Json:
    """A pod whose containers all need another template."""
    return pod(
        *(container(f"c{number}", {GPU: 1, MEMORY: number + 1}) for number in range(count)), annotations=annotations
    )


def test_ways_to_ask_for_gpus() -> None:
    """Eight different templates of a pod are made; of nine none is, and the message says how many, and what to do."""
    assert len(converted(different(8)).templates) == 8
    message = refusal(different(9), "spec.template.")
    assert message.startswith("spec.template.spec: its containers ask for GPUs in 9 different ways")
    assert "a pod may have 8: " in message
    assert message.endswith("raise --max-pod-templates")
    assert len(converted(different(9), max_pod_templates=9).templates) == 9
    alike = pod(*(container(f"c{number}", SHARE) for number in range(100)))
    assert len(converted(alike).templates) == 1


def test_notes_make_no_other_way() -> None:
    """Containers that ask for the same are one way, whatever is remarked about each."""
    noted = [container(f"c{number}", {GPU: 1, MEMORY: 1000, PERCENT: 50}) for number in range(20)]
    made = converted(pod(*noted))
    assert (len(made.templates), len(made.warnings)) == (1, 20)


def test_bytes_of_all_templates() -> None:
    """A list of 128 GPUs is written for each of 8 memory sizes; for two different percentages too, it is too much."""
    half, third = ({GPU: 1, PERCENT: percent} for percent in (50, 33))
    (one,) = converted(pod(container("a", half), annotations=UUIDS)).templates
    assert 40_000 < one.size == len(json.dumps(one.spec, separators=(",", ":"))) < 65_536
    both = pod(container("a", half), container("b", third), annotations=UUIDS)
    message = refusal(both)
    assert message.startswith("metadata.annotations: the lists of GPUs and types")
    assert "those of a pod may have 65536 together: shorten the lists" in message
    assert message.endswith("raise --max-pod-template-bytes")
    assert len(converted(both, max_pod_template_bytes=110_000).templates) == 2


def test_a_list_of_gpus_is_written_once() -> None:
    """One `in [...]`, and one request for several GPUs: 128 UUIDs cost some 50 bytes each."""
    (one,) = converted(pod(container("a", {GPU: 8, MEMORY: 1000}), annotations=UUIDS)).templates
    assert one.size < 128 * 50


def test_what_was_converted_before_can_be_applied_again() -> None:
    """A pod that has more templates than it would get now, as from 0.1.0, keeps them: its manifest can still be applied."""
    manifest = different(20)
    made = converted(manifest, max_pod_templates=20)
    live = json.loads(json.dumps(manifest))
    for operation in made.patch:
        _, spec, *path = operation["path"].split("/")
        if path == ["resourceClaims"]:
            live[spec]["resourceClaims"] = operation["value"]
        else:
            live[spec][path[0]][int(path[1])]["resources"] = operation["value"]
    update = json.loads(json.dumps(live))
    for new, old in zip(update["spec"]["containers"], manifest["spec"]["containers"], strict=True):
        new["resources"] = new["resources"] | old["resources"]
    again = reapplied(update, live, Conversion(), lambda: SIZES)
    assert [operation["value"] for operation in again] == [one["resources"] for one in live["spec"]["containers"]]


MOUNT = {"name": "v", "mountPath": "/data"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"env": [{"name": "A"}] * MOST_ENTRIES}, "spec.containers[0].env"),
        ({"volumeMounts": [MOUNT] * MOST_ENTRIES}, "spec.containers[0].volumeMounts"),
        ({"volumeDevices": [{"devicePath": "/d"}] * MOST_ENTRIES}, "spec.containers[0].volumeDevices"),
        (
            {"resources": {"limits": SHARE, "claims": [{"name": "a"}] * MOST_ENTRIES}},
            "spec.containers[0].resources.claims",
        ),
        (
            {"resources": {"limits": SHARE | {f"x/{number}": 1 for number in range(MOST_ENTRIES)}}},
            "spec.containers[0].resources.limits",
        ),
    ],
)
def test_lists_that_no_sane_pod_has(fields: Json, path: str) -> None:
    """They are refused before they are walked, with their path, their length and the bound; containers without GPU may."""
    one = pod(container("a", SHARE) | fields)
    message = refusal(one)
    assert message.startswith(f"{path}: ")
    assert f"entries, at most {MOST_ENTRIES} are taken" in message
    assert "\n" not in message
    fields = {name: value for name, value in fields.items() if name != "resources"}
    assert converted(pod(container("a", SHARE), container("b") | fields)).templates


def test_claims_and_containers_count_together() -> None:
    """The bound is for the whole pod."""
    half = [{"name": "A"}] * (MOST_ENTRIES // 2)
    two = [container(name, SHARE) | {"env": half} for name in "ab"]
    assert refusal(pod(*two)).startswith("spec.containers[0].env: 2500 entries, at most 5000 are taken ")
    claims = [{"name": f"c{number}"} for number in range(MOST_ENTRIES + 1)]
    assert refusal(pod(container("a", SHARE), resourceClaims=claims)).startswith("spec.resourceClaims: ")


def test_a_large_pod() -> None:
    """Thirty GPU containers with a hundred variables and twenty volumes each are converted."""
    env = [{"name": f"V{number}", "value": "x" * 40} for number in range(100)]
    mounts = [{"name": "v", "mountPath": f"/data/{number}"} for number in range(20)]
    large = [container(f"c{number}", SHARE, env=env, volumeMounts=mounts) for number in range(30)]
    assert len(converted(pod(*large)).claims) == 30


@pytest.mark.parametrize(("kind", "field"), [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")])
def test_paths_longer_than_linux_takes(kind: str, field: str) -> None:
    """They are refused, not passed over: a runtime may shorten them to one that matters. As long as can be is read to its end."""
    prefix = "/x/.." * 800
    inside = container("a", SHARE, **{kind: [{"name": "v", field: f"{prefix}/tmp/vgpulock/x"}]})
    assert "HAMi-core" in refusal(pod(inside))
    longer = container("a", SHARE, **{kind: [{"name": "v", field: f"{prefix}{prefix}/overrideEnv"}]})
    assert refusal(pod(longer)) == (
        f"spec.containers[0].{kind}[0].{field}: 8012 characters, and Linux takes 4095 of a path: shorten it"
    )
