"""webhook.convert: what becomes of pods, and what stays."""

import copy
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import CORES, GPU, IMAGE, MEMORY, PERCENT, PRIORITY, Json, container, pod

SIZES = (GpuSize("NVIDIA A100-SXM4-40GB", 40960),)
SHARE = {GPU: 1, MEMORY: 4000}


def converted(one: Json, sizes: Any = lambda: SIZES, **rules: Any) -> tuple[Converted, Json]:
    """What is made of a pod, and the pod with the patch applied, which a second pass leaves alone."""
    before = copy.deepcopy(one)
    made = convert(one, Conversion(**rules), sizes)
    assert one == before, "the pod that was given stays as it was"
    result = patched(one, made.patch)
    assert convert(result, Conversion(**rules), sizes) == Converted()
    return made, result


def claims(one: Json) -> dict[str, list[str]]:
    """The claims that each container names."""
    return {
        each["name"]: [used["name"] for used in each.get("resources", {}).get("claims", [])]
        for kind in ("initContainers", "containers")
        for each in one["spec"].get(kind, [])
    }


def refusal(one: Any, **rules: Any) -> str:
    """Why a pod is refused."""
    with pytest.raises(AdmissionError) as refused:
        convert(one, Conversion(**rules), lambda: SIZES)
    return str(refused.value)


def test_the_headline() -> None:
    """Resources become a claim from a template; nothing else changes."""
    one = pod(container("main", SHARE | {"cpu": "1"}, command=["sleep"]), hostname="h", volumes=[{"name": "v"}])
    made, result = converted(one)
    (template,) = made.templates
    assert result == one | {
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "command": ["sleep"],
                    "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "gpu-main"}]},
                }
            ],
            "hostname": "h",
            "volumes": [{"name": "v"}],
            "resourceClaims": [{"name": "gpu-main", "resourceClaimTemplateName": template.name}],
        }
    }
    assert made.warnings == ()


@pytest.mark.parametrize(
    "one",
    [
        {},
        {"spec": None},
        {"metadata": None, "spec": {}},
        {"spec": {"containers": None, "initContainers": []}},
        pod(container("a", {"cpu": "1", "nvidia.com/hostdev": 1, "amd.com/gpu": 1})),
        pod({"name": "a", "image": IMAGE}),
        pod({"name": "a", "resources": None}),
        pod({"name": "a", "resources": {"limits": None, "claims": [{"name": "x"}]}}, resourceClaims=[{"name": "x"}]),
        pod(container("a"), nodeName="n", schedulerName="hami-scheduler"),
        pod(container("a", securityContext={"privileged": True}), annotations={"nvidia.com/numa-bind": "maybe"}),
        pod(container("a"), ephemeralContainers=[container("debug", SHARE)]),
        pod(container("a"), resources={"limits": {"cpu": 1}}, overhead={GPU: 1}),
    ],
)
def test_pods_that_ask_for_nothing_of_ours(one: Json) -> None:
    """No template, no patch, no word; not even about annotations, which only mean something to GPU pods."""
    made, result = converted(one, replace_scheduler="hami-scheduler")
    assert made == Converted()
    assert result == one


def test_the_label_to_be_left_alone() -> None:
    """As in HAMi; another value of it is none."""
    one = pod(container("a", {GPU: "garbage"}))
    one["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert converted(one)[0] == Converted()
    one["metadata"]["labels"] = {"hami.io/webhook": "Ignore"}
    assert refusal(one).startswith("spec.containers[0].resources.limits[nvidia.com/gpu]: ")


def test_containers_of_the_same_need_share_a_template_not_a_claim() -> None:
    """Side by side they hold a share each."""
    made, result = converted(pod(container("a", SHARE), container("b", SHARE), container("c", {GPU: 1})))
    assert len(made.templates) == 2
    assert claims(result) == {"a": ["gpu-a"], "b": ["gpu-b"], "c": ["gpu-c"]}
    used = [entry["resourceClaimTemplateName"] for entry in result["spec"]["resourceClaims"]]
    assert used[0] != used[1] == used[2]


def test_the_most_demanding_claim_comes_first() -> None:
    """The scheduler takes claims in order: what fits nowhere is found out before all places of all others were tried."""
    one = pod(
        container("little", {MEMORY: 100}),
        container("cores", {MEMORY: 100, CORES: 50}),
        container("huge", {MEMORY: 999_999}),
        container("half", {PERCENT: 50}),
        container("all", {PERCENT: 100, CORES: 10}),
        container("two", {GPU: 2, MEMORY: 100}),
        container("whole", {GPU: 1}),
        resourceClaims=[{"name": "theirs", "resourceClaimName": "c"}],
    )
    _, result = converted(one, max_placements=0)
    names = [entry["name"] for entry in result["spec"]["resourceClaims"]]
    assert names == ["theirs", "gpu-whole", "gpu-two", "gpu-all", "gpu-huge", "gpu-half", "gpu-cores", "gpu-little"]


def amounts(memory: int, cores: int) -> dict[str, int]:
    """Limits of a container with one share of a GPU."""
    return {GPU: 1, MEMORY: memory, CORES: cores}


@pytest.mark.parametrize(
    ("limits", "version", "told"),
    [
        ([{GPU: 9}], "", None),
        ([{GPU: 10}], "", "(10)"),
        ([SHARE] * 5, "", None),
        ([SHARE] * 6, "", "(1 + 1 + 1 + 1 + 1 + 1)"),
        ([{GPU: 4}, {GPU: 3}, SHARE], "", "(4 + 3 + 1)"),
        ([SHARE] * 17, "", "(1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + ...)"),
        # Neither demands as much as the other: the last may have room nowhere, and those before it everywhere.
        ([amounts(4000 - 1000 * n, 10 + 10 * n) for n in range(3)], "", None),
        ([amounts(4000 - 1000 * n, 10 + 10 * n) for n in range(4)], "", "(1 + 1 + 1 + 1)"),
        ([amounts(4000 - 500 * n, 50 - 10 * n) for n in range(5)], "", None),
        ([{GPU: 1}, *[amounts(4000 - 1000 * n, 10 + 10 * n) for n in range(3)]], "", "(1 + 1 + 1 + 1)"),
        ([*[{GPU: 1}] * 3, amounts(4000, 10)], "", None),
        ([*[{GPU: 1}] * 3, amounts(999_999, 10)], "", "(1 + 1 + 1 + 1)"),
        ([*[{GPU: 1}] * 3, amounts(999_999, 100)], "", "(1 + 1 + 1 + 1)"),
        ([{GPU: 5}], "1.35", None),
        ([{GPU: 6}], "1.35", "(1 + 1 + 1 + 1 + 1 + 1)"),
    ],
)
def test_pods_that_would_hold_up_the_scheduler(limits: list[Any], version: str, told: str | None) -> None:
    """Refused with how many GPUs and how many choices, and what to do; an administrator may allow more, or all."""
    one = pod(*(container(f"c{number}", each) for number, each in enumerate(limits)))
    rules = Conversion(kubernetes=version)
    if told is None:
        assert convert(one, rules, lambda: SIZES).templates
        return
    with pytest.raises(AdmissionError) as caught:
        convert(one, rules, lambda: SIZES, where="spec.template.")
    assert str(caught.value) == (
        f"spec.template.spec: on a node without room for the GPUs of this pod {told} the scheduler has more than 300 choices to "
        "try before it knows, and schedules no other pod of the cluster meanwhile. Ask for fewer GPUs in one pod, or have an "
        "administrator raise --max-placements"
    )
    assert convert(one, Conversion(kubernetes=version, max_placements=0), lambda: SIZES).templates


def test_an_init_container_with_the_same_need_is_no_choice_more() -> None:
    """It uses a later container's claim."""
    init = [container(f"i{number}", SHARE) for number in range(20)]
    assert converted(pod(*(container(f"c{number}", SHARE) for number in range(5)), initContainers=init))[0].templates


def test_init_containers() -> None:
    """They have ended when the others start, and use the claim of a later one; a sidecar runs on and has its own."""
    sidecar = container("side", SHARE, restartPolicy="Always")
    init = [container("first", SHARE), sidecar, container("second", {GPU: 1}), container("third", {GPU: 1})]
    made, result = converted(pod(container("a", SHARE), container("b", SHARE), initContainers=init))
    assert claims(result) == {
        "first": ["gpu-side"],
        "side": ["gpu-side"],
        "second": ["gpu-a"],
        "third": ["gpu-a"],
        "a": ["gpu-a"],
        "b": ["gpu-b"],
    }
    assert len(result["spec"]["resourceClaims"]) == 3
    assert [use.container for use in made.claims] == ["first", "side", "second", "third", "a", "b"]


def test_init_containers_beside_a_sidecar_of_the_same_need() -> None:
    """The claim of a sidecar that started before is its own, also when no other container asks for a GPU."""
    sidecar = container("side", SHARE, restartPolicy="Always")
    _, result = converted(pod(container("a"), initContainers=[sidecar, container("first", SHARE)]))
    assert claims(result) == {"side": ["gpu-side"], "first": ["gpu-first"], "a": []}
    _, result = converted(
        pod(container("a", SHARE, restartPolicy="Always"), initContainers=[container("first", SHARE)])
    )
    assert claims(result) == {"first": ["gpu-a"], "a": ["gpu-a"]}, (
        "restartPolicy makes a sidecar of an init container only"
    )


def test_what_is_there_stays() -> None:
    """Claims of the pod and the container come first, in their order; other resources and fields are kept."""
    theirs = [{"name": "net", "resourceClaimName": "x"}, {"name": "gpu-a", "resourceClaimTemplateName": "y"}]
    one = container("a", SHARE | {"example.com/x": 1})
    one["resources"] |= {
        "requests": {GPU: 1, "cpu": "1"},
        "claims": [{"name": "net", "request": "r"}],
        "later": {"k": 1},
    }
    made, result = converted(pod(one, resourceClaims=theirs))
    assert result["spec"]["resourceClaims"] == [
        *theirs,
        {"name": "gpu-a-2", "resourceClaimTemplateName": made.templates[0].name},
    ]
    assert result["spec"]["containers"][0]["resources"] == {
        "limits": {"example.com/x": 1},
        "requests": {"cpu": "1"},
        "claims": [{"name": "net", "request": "r"}, {"name": "gpu-a-2"}],
        "later": {"k": 1},
    }


def test_names_of_claims() -> None:
    """DNS labels, also for the longest names, and no two alike."""
    names = ["x" * 63, "x" * 62 + "y", "x" * 59, "x" * 60, "x" * 53 + "-" * 9 + "z", "a", "a-2"]
    taken = [{"name": "gpu-a", "resourceClaimName": "c"}, {"name": "gpu-" + "x" * 59, "resourceClaimName": "c"}]
    made, result = converted(pod(*(container(name, SHARE) for name in names), resourceClaims=taken), max_placements=0)
    found = [entry["name"] for entry in result["spec"]["resourceClaims"]]
    assert len(set(found)) == len(names) + 2
    assert all(len(name) <= 63 and not name.endswith("-") for name in found)
    assert claims(result)["a"] == ["gpu-a-2"]
    assert claims(result)["a-2"] == ["gpu-a-2-2"]
    again = pod(*(container(name, SHARE) for name in names), resourceClaims=taken)
    assert made == converted(again, max_placements=0)[0]


def test_128_containers() -> None:
    """Each has its claim, one template is enough, also when all have one name (which the API server will refuse)."""
    for name in ("c{}", "c"):
        made, result = converted(pod(*(container(name.format(n), SHARE) for n in range(128))), max_placements=0)
        assert len(made.templates) == 1
        assert len({entry["name"] for entry in result["spec"]["resourceClaims"]}) == 128


def test_no_gpu_after_all() -> None:
    """What would be left for the scheduler to look for in vain is taken out, and said; no claim is made."""
    one = pod(container("a", {GPU: 0, MEMORY: 4000}), container("b", {PRIORITY: 1, "cpu": "1"}), nodeName="n")
    made, result = converted(one)
    assert "resourceClaims" not in result["spec"]
    assert [each["resources"] for each in result["spec"]["containers"]] == [{}, {"limits": {"cpu": "1"}}]
    assert not made.templates
    assert not made.claims
    assert made.warnings == (
        "spec.containers[0]: asks for no GPU, so nvidia.com/gpu, nvidia.com/gpumem is left out",
        "spec.containers[1]: asks for no GPU, so nvidia.com/priority is left out",
    )


def test_sizes_are_asked_for_when_needed() -> None:
    """Only a percentage below 100 needs to know the cluster; a refusal says for which container."""

    def unknown() -> tuple[GpuSize, ...]:
        raise AssertionError

    for limits in (SHARE, {GPU: 1}, {PERCENT: 100}, SHARE | {PERCENT: 50}):
        converted(pod(container("a", limits)), unknown)
    with pytest.raises(AdmissionError, match=r"^spec\.containers\[1\]: nvidia\.com/gpumem-percentage needs "):
        convert(pod(container("a"), container("b", {PERCENT: 50})), Conversion(), lambda: ())
    assert converted(pod(container("b", {PERCENT: 50})))[0].templates


def test_schedulers() -> None:
    """HAMi's is replaced where that is wished, for GPU pods only; others are kept."""
    for name, replaced, after in (
        ("hami-scheduler", "hami-scheduler", "default-scheduler"),
        ("hami-scheduler", None, "hami-scheduler"),
        ("other", "hami-scheduler", "other"),
    ):
        one = pod(container("a", SHARE), schedulerName=name)
        assert converted(one, replace_scheduler=replaced)[1]["spec"]["schedulerName"] == after
    assert "schedulerName" not in converted(pod(container("a", SHARE)), replace_scheduler="hami-scheduler")[1]["spec"]


def test_pods_without_a_name_yet() -> None:
    """GenerateName is all that a Deployment's pods have; the template doesn't depend on it."""
    one = pod(container("a", SHARE))
    nameless = one | {"metadata": {"generateName": "web-7d4b-"}}
    assert converted(one)[0].templates == converted(nameless)[0].templates
    assert converted(one | {"metadata": None})[0].templates == converted(nameless)[0].templates


def test_variables_go_into_the_claim_and_stay() -> None:
    """The driver's edits win over the container's own variables; those are not taken out of the pod."""
    env = [{"name": "CUDA_TASK_PRIORITY", "value": "0"}, {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    made, result = converted(pod(container("a", SHARE, env=env)))
    (config,) = made.templates[0].spec["devices"]["config"]
    assert config["opaque"]["parameters"] == {
        "apiVersion": "gpu.hami.io/v1alpha1",
        "kind": "GpuConfig",
        "corePolicy": "force",
        "priority": "high",
    }
    assert result["spec"]["containers"][0]["env"] == env


def test_annotations_reach_every_claim() -> None:
    """They are the pod's, so they hold for each of its containers, and notes about them come once."""
    annotations = {"nvidia.com/use-gputype": "A100", "hami.io/gpu-scheduler-policy": "spread", "x": "y"}
    one = pod(container("a", SHARE), container("b", {GPU: 2, PERCENT: 50}), annotations=annotations)
    made, result = converted(one)
    first, second = (template.spec["devices"]["requests"] for template in made.templates)
    assert "a100" in str(first)
    assert "a100" in str(second)
    assert len(made.warnings) == 1
    assert result["metadata"] == one["metadata"]


def test_warnings_of_containers() -> None:
    """What is not taken as written is said with the container's path."""
    made, _ = converted(pod(container("z"), container("a", SHARE | {CORES: 150})))
    assert [warning.split(": ")[0] for warning in made.warnings] == ["spec.containers[1]"]
