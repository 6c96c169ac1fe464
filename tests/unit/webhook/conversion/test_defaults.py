"""webhook.defaults: what a LimitRange fills in, before the webhook and once more after it."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.names import TEMPLATE_PREFIX
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import GPU, MEMORY, pods, unhurried

RULES = Conversion()
ANNOTATION = "kubernetes.io/limit-ranger"


def known() -> list[GpuSize]:
    """A cluster's GPUs."""
    return [GpuSize(None, 40960)]


def filled(pod: dict[str, Any], limits: dict[str, Any], requests: dict[str, Any]) -> dict[str, Any]:
    """What LimitRanger makes of a pod (mergePodResourceRequirements): what isn't named is put in, and the annotation says so."""
    made = copy.deepcopy(pod)
    told = []
    for kind, called in (("initContainers", "init container"), ("containers", "container")):
        for container in made["spec"].get(kind) or ():
            resources = container.setdefault("resources", {})
            # The API server's own default, before that.
            resources["requests"] = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            for list_name, defaults, word in (("requests", requests, "request"), ("limits", limits, "limit")):
                put = sorted(name for name in defaults if name not in (resources.get(list_name) or {}))
                if put:
                    resources[list_name] = {
                        **(resources.get(list_name) or {}),
                        **{name: defaults[name] for name in put},
                    }
                    told.append(f"{', '.join(put)} {word} for {called} {container['name']}")
    if told:
        made["metadata"].setdefault("annotations", {})[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(told)}"
    return made


def admitted(pod: dict[str, Any], limits: dict[str, Any], requests: dict[str, Any]) -> Any:
    """What the API server keeps: it fills in, asks the webhook, fills in again, and asks again (reinvocationPolicy: IfNeeded)."""
    for _ in range(2):
        pod = filled(pod, limits, requests)
        pod = patched(pod, convert(pod, RULES, known).patch)
    return pod


def pod(**limits: Any) -> dict[str, Any]:
    """A pod of one container, and of one that names nothing."""
    main = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": dict(limits)}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [main]}}


@pytest.mark.parametrize("defaults", [{GPU: "2"}, {MEMORY: "4k"}, {GPU: "1", MEMORY: "4k", "cpu": "1"}])
def test_one_claim_of_what_was_asked_for(defaults: dict[str, str]) -> None:
    """A container in a namespace with defaults for GPUs gets what it names, or else the default, once and not twice."""
    for named in ({GPU: 1, MEMORY: 2000}, {MEMORY: 2000}, {}):
        asked = pod(**named)
        expected = convert(filled(asked, defaults, defaults), RULES, known)
        spec = admitted(asked, defaults, defaults)["spec"]
        assert spec["resourceClaims"] == [
            {"name": "gpu-main", "resourceClaimTemplateName": expected.templates[0].name},
        ]
        resources = spec["containers"][0]["resources"]
        assert resources["claims"] == [{"name": "gpu-main"}]
        # A limit is there, where a LimitRange has a maximum; and nothing that any scheduler counts.
        zeros = {name: "0" if name in RULES.resources else value for name, value in defaults.items()}
        assert resources["limits"] == resources["requests"] == zeros


def test_requests_alone_go() -> None:
    """`defaultRequest` and `min` fill in requests without limits, which no container may keep."""
    spec = admitted(pod(**{GPU: 1, MEMORY: 2000}), {}, {MEMORY: "100"})["spec"]
    assert len(spec["resourceClaims"]) == 1
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu-main"}]}


def test_what_was_converted_offline_takes_no_second_claim() -> None:
    """Nor does a pod that comes with its claims: what is filled in is no wish of its own."""
    asked = pod(**{GPU: 1, MEMORY: 2000})
    offline = patched(asked, convert(asked, RULES, known).patch)
    assert admitted(offline, {GPU: "2"}, {GPU: "2"})["spec"]["resourceClaims"] == offline["spec"]["resourceClaims"]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "x" * 200_000,
        "; " * 100_000,
        f"LimitRanger plugin set: {'a, ' * 60_000}",
        "set: gpu limit for x",
        "x: " + "; " * 200_000,
        5,
    ],
)
def test_an_annotation_that_says_nothing(said: Any) -> None:
    """Anybody can write it: what is no word of a LimitRange's changes nothing, however long it is."""
    asked = pod(**{GPU: 1})
    asked["metadata"]["annotations"] = {ANNOTATION: said}
    assert len(convert(asked, RULES, known).claims) == 1


def test_claims_with_odd_names() -> None:
    """What the API server would refuse ends no conversion."""
    asked = pod(**{GPU: 1})
    asked["spec"]["resourceClaims"] = [{"name": ["x"], "resourceClaimTemplateName": f"{TEMPLATE_PREFIX}{'0' * 20}"}]
    assert len(convert(asked, RULES, known).claims) == 1


def test_a_claim_of_another_kind_is_none_of_ours() -> None:
    """A container whose only claim is a hand-written one gets the default's GPU as well, as Kubernetes means it."""
    asked = pod()
    asked["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": "mine"}]
    asked["spec"]["containers"][0]["resources"] = {"claims": [{"name": "own"}]}
    names = [claim["name"] for claim in admitted(asked, {GPU: "1"}, {GPU: "1"})["spec"]["resourceClaims"]]
    assert names == ["own", "gpu-main"]


@unhurried
@given(pods(), st.sampled_from([{GPU: "1"}, {GPU: "2", MEMORY: "4k"}, {"cpu": "1"}]))
def test_who_has_a_claim_gets_no_other(asked: dict[str, Any], defaults: dict[str, str]) -> None:
    """Whatever a pod names: the second filling-in gives no container that has a GPU another one."""
    first = filled(asked, defaults, defaults)
    try:
        once = patched(first, convert(first, RULES, known).patch)
    except AdmissionError:  # what is filled in may contradict what is there
        return
    twice = admitted(asked, defaults, defaults)
    ours = {
        claim["name"]
        for claim in once["spec"].get("resourceClaims", ())
        if claim.get("resourceClaimTemplateName", "").startswith(TEMPLATE_PREFIX)
    }
    for before, after in zip(containers(once), containers(twice), strict=True):
        if ours.intersection(claim["name"] for claim in before["resources"].get("claims", ())):
            assert after["resources"]["claims"] == before["resources"]["claims"]


def containers(made: dict[str, Any]) -> list[dict[str, Any]]:
    """All of a pod."""
    return [*made["spec"].get("initContainers", ()), *made["spec"]["containers"]]
