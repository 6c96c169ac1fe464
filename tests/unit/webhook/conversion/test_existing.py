"""Amounts beside the claim that was made of them: what is left where converted output was applied over what others had made."""

import copy
from typing import Any

import pytest
from hypothesis import given

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion import needs
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.template import GpuSize, Template, template
from tests.unit.webhook.conversion.test_reapply import applied
from tests.unit.webhook.pods import CORES, GPU, MEMORY, PERCENT, Json, container, pod, pods, unhurried

RULES = Conversion(max_placements=0)
SHARE = {GPU: 1, MEMORY: 1024}


def sizes() -> list[GpuSize]:
    """The GPUs of the cluster."""
    return [GpuSize("NVIDIA A100-SXM4-40GB", 40960)]


def converted(one: Json, **rules: Any) -> tuple[Converted, Json]:
    """What is made of a pod, and the pod that it becomes."""
    made = convert(one, Conversion(**({"max_placements": 0} | rules)), sizes)
    return made, patched(one, made.patch)


def both(one: Json, **rules: Any) -> Json:
    """A pod as it is converted, with the amounts that it was made of beside its claims."""
    return applied(one, converted(one, **rules)[1])


def refusal(one: Json) -> str:
    """Why a pod is refused."""
    with pytest.raises(AdmissionError) as refused:
        convert(one, RULES, sizes)
    return str(refused.value)


@unhurried
@given(pods())
def test_only_the_amounts_go(one: Json) -> None:
    """Whatever the pod, with or without init containers that share a claim: no claim more, and the same templates as before."""
    try:
        made, result = converted(one)
    except AdmissionError:
        return  # a percentage, and no GPU of the wanted model
    again, mended = converted(applied(one, result))
    assert mended == result
    assert {template.name for template in again.templates} == {template.name for template in made.templates}
    assert [(use.container, use.claim) for use in again.claims] == [(use.container, use.claim) for use in made.claims]


def test_whatever_the_claim_is_called() -> None:
    """It is known by its template; other claims, requests and resources stay."""
    one = pod(
        container("main", SHARE | {"cpu": 1}, restartPolicy="Always"),
        resourceClaims=[{"name": "gpu-main", "resourceClaimName": "theirs"}],
    )
    one["spec"]["containers"][0]["resources"] |= {"requests": {GPU: 1}, "claims": [{"name": "gpu-main"}]}
    _, result = converted(one)
    assert [entry["name"] for entry in result["spec"]["resourceClaims"]] == ["gpu-main", "gpu-main-2"]
    assert converted(applied(one, result))[1] == result


def test_a_claim_that_no_container_names() -> None:
    """It would hold a GPU for nobody: the container gets it, one container only."""
    one = pod(container("a", SHARE), container("b", SHARE))
    _, result = converted(one)
    left = applied(one, result)
    for each in left["spec"]["containers"]:
        del each["resources"]["claims"]
    assert converted(left)[1] == result
    del left["spec"]["resourceClaims"][1]
    names = [entry["name"] for entry in converted(left)[1]["spec"]["resourceClaims"]]
    assert names == ["gpu-a", "gpu-b"]


def test_only_some_have_it_already() -> None:
    """A container that was added meanwhile gets a claim as usual."""
    one = both(pod(container("a", SHARE)))
    one["spec"]["containers"].append(container("b", {GPU: 1}))
    _, result = converted(one)
    assert [each["resources"]["claims"] for each in result["spec"]["containers"]] == [
        [{"name": "gpu-a"}],
        [{"name": "gpu-b"}],
    ]
    assert len(result["spec"]["resourceClaims"]) == 2


@pytest.mark.parametrize("limits", [{GPU: 1, MEMORY: 2048}, {GPU: 2, MEMORY: 1024}, SHARE | {CORES: 10}, {GPU: 1}])
def test_other_amounts(limits: Json) -> None:
    """Which of both is meant nobody knows, and both would be two GPUs: refused, with what to do."""
    one = both(pod(container("main", SHARE)))
    one["spec"]["containers"][0]["resources"]["limits"] = limits
    assert refusal(one) == (
        "spec.containers[0].resources: names the claim 'gpu-main' from the ResourceClaimTemplate "
        "hami-gpu-d33aa3d2c04f4c845566, and beside it amounts that make another one, so the container would get the GPUs of "
        "both. Take the amounts out, or the claim; where converted output was applied over what Helm or kubectl create had "
        "made, use kubectl replace"
    )


def test_claims_of_people() -> None:
    """A claim from a template that somebody wrote is for another GPU, beside that of the amounts."""
    theirs = [{"name": "own", "resourceClaimTemplateName": "hami-gpu-of-mine"}]
    one = pod(container("main", SHARE), resourceClaims=theirs)
    one["spec"]["containers"][0]["resources"]["claims"] = [{"name": "own"}]
    assert len(converted(one)[1]["spec"]["resourceClaims"]) == 2


def test_percentages_when_other_gpus_come() -> None:
    """Their templates list the cluster's sizes. What was made before stays, with a warning; no pod is refused for a new node."""
    one = both(pod(container("main", {PERCENT: 50})))
    later = convert(one, RULES, lambda: [*sizes(), GpuSize("NVIDIA H100 80GB HBM3", 81559)])
    before = copy.deepcopy(one)
    del before["spec"]["containers"][0]["resources"]["limits"]
    assert patched(one, later.patch) == before
    assert later.templates == ()
    assert later.warnings == (
        (
            "spec.containers[0].resources: keeps the claim 'gpu-main', though its percentage makes another one now: it was "
            "another one, or other sizes of GPUs have been published since"
        ),
    )


@pytest.mark.parametrize(("before", "now"), [("1.35", "1.37"), ("1.37", "1.35")])
def test_claims_from_before_an_upgrade(before: str, now: str) -> None:
    """Of other requests, for the same GPUs."""
    one = pod(container("main", {GPU: 2, MEMORY: 1024}))
    _, result = converted(one, kubernetes=before)
    assert converted(applied(one, result), kubernetes=now)[1] == result


def test_two_that_name_one_claim() -> None:
    """What is there stays as it is; the node says who may not share."""
    one = both(pod(container("a", SHARE)))
    one["spec"]["containers"].append({**one["spec"]["containers"][0], "name": "b"})
    _, result = converted(one)
    assert [each["resources"] for each in result["spec"]["containers"]] == [{"claims": [{"name": "gpu-a"}]}] * 2
    assert len(result["spec"]["resourceClaims"]) == 1


def test_what_other_versions_make_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim of ours beside many containers of one need costs a template more, however many they are, and none too large."""
    made: list[Demand] = []

    def counted(demand: Demand, *rest: Any) -> Template:
        made.append(demand)
        return template(demand, *rest)

    monkeypatch.setattr(needs, "template", counted)
    many = pod(*(container(f"c{number}", {GPU: 2, MEMORY: 4000}) for number in range(60)))
    many["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": f"hami-gpu-{'0' * 20}"}]
    assert len(convert(many, Conversion(max_placements=0), lambda: ()).claims) == 60
    assert len(made) == 2
