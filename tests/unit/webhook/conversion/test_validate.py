"""webhook.validate: claims that people wrote by hand, held against what the devices publish."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.annotations import Selection
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.fleet import CONTEXT_MIB
from hami_kubeletplugin.webhook.conversion.template import GpuSize, template
from hami_kubeletplugin.webhook.conversion.validate import Verdict, validate

RULES = Conversion()
SLOTS = frozenset({1000})
AMOUNTS = "spec.devices.requests[0].exactly.capacity.requests"
CONFIG = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig"}
DISTINCT = {"distinctAttribute": "gpu.hami.io/uuid"}


def claim(devices: dict[str, Any], version: str = "v1", kind: str = "ResourceClaim") -> dict[str, Any]:
    """An object as the API server sends it."""
    spec: dict[str, Any] = {"devices": devices}
    head = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": "one"}}
    return {**head, "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec}


def asking(amounts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request's fields for a GPU of ours."""
    return {"deviceClassName": "gpu.hami.io", "capacity": {"requests": amounts}, **fields}


def exactly(amounts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """`devices` with one request."""
    return {"requests": [{"name": "gpu", "exactly": asking(amounts, **fields)}]}


def judged(amounts: dict[str, Any], slots: frozenset[int] = SLOTS) -> Verdict:
    """What is said about these amounts."""
    return validate(claim(exactly(amounts)), RULES, slots)


@pytest.mark.parametrize(
    "amounts",
    [
        {},
        {"memory": f"{CONTEXT_MIB}Mi"},
        {"memory": "40Gi", "cores": "30", "shares": "1"},
        {"memory": "1073741824", "cores": "0", "shares": "1k"},
        {"cores": "100", "shares": "10k"},
        {"shares": "10000"},
        {"shares": "999"},
    ],
)
def test_what_is_taken_as_written_is_admitted(amounts: dict[str, Any]) -> None:
    """Whole MiB, whole percent, one slot or all of them: nothing to say."""
    assert judged(amounts) == Verdict()


@pytest.mark.parametrize(
    ("name", "amount", "reason"),
    [
        ("memory", "1536Ki", "must be whole MiB; it would be rounded up to 2Mi: write 2Mi"),
        ("memory", "4G", "must be whole MiB; it would be rounded up to 3815Mi: write 3815Mi"),
        ("memory", "4000", "rounded up to 1Mi: write 1Mi, or was a unit forgotten? Without one these are bytes"),
        ("memory", "0", "must be at least 1Mi; leave it out for all of the GPU's memory"),
        ("memory", "-4Gi", "must be at least 1Mi"),
        ("memory", "half", "is not a quantity"),
        ("memory", None, "is not a quantity"),
        ("memory", True, "is not a quantity"),
        ("memory", ["4Gi"], "is not a quantity"),
        ("cores", "30500m", 'must be whole percent; it would be rounded up to 31: write "31"'),
        ("cores", "101", "must be a percentage of the GPU's compute, from 0 (no limit) to 100"),
        ("cores", "-1", "must be a percentage"),
        ("shares", "1500", "is more than one slot, which is 1000, and would be rounded up to the whole GPU: write"),
        ("shares", "9999", 'write "1" for one slot, or "10000" for the whole GPU'),
        ("shares", "0", "must be a whole number from 1 to 10000"),
        ("shares", "10001", "must be a whole number from 1 to 10000"),
        ("shares", "100m", "must be a whole number from 1 to 10000"),
    ],
)
def test_other_amounts_are_refused(name: str, amount: object, reason: str) -> None:
    """Whatever would be rounded up, or could never be had, is refused with its path and what to write."""
    (problem,) = judged({name: amount}).problems
    assert problem.startswith(f"{AMOUNTS}[{name}]: Invalid value: ")
    assert reason in problem


@pytest.mark.parametrize("memory", ["1Mi", "100Mi", "345Mi", "1048576"])
def test_less_memory_than_a_context_takes(memory: str) -> None:
    """A claim can be so small, but no program can use it: its author is warned."""
    problems, (warning,) = judged({"memory": memory})
    assert problems == ()
    assert warning.endswith("are less than a CUDA context takes, some 350: programs will fail to allocate any")
    # With admin access it is no limit.
    assert validate(claim(exactly({"memory": memory}, adminAccess=True)), RULES, SLOTS) == ((), ())


@pytest.mark.parametrize("name", ["memry", "gpu.hami.io/memory", 'x"\n' * 50])
def test_an_unknown_capacity_is_refused(name: str) -> None:
    """No device has it, so the pod would wait for ever; the known names are listed."""
    (problem,) = judged({name: "1Gi"}).problems
    assert problem.endswith(
        "no device has this capacity, so the pod could never be scheduled; known are memory, cores, shares"
    )
    assert "\n" not in problem
    assert len(problem) < 300


def test_every_problem_is_told_at_once() -> None:
    """People mend all of it in one go."""
    devices = exactly({"memory": "1k", "cores": "200"})
    devices["config"] = [{"opaque": {"driver": "gpu.hami.io", "parameters": {}}}]
    assert len(validate(claim(devices), RULES, SLOTS).problems) == 3


def test_slots_that_differ_between_nodes() -> None:
    """What is one slot here and the whole GPU there is refused; what is one slot everywhere is not."""
    slots = frozenset({500, 5000})
    assert judged({"shares": "500"}, slots) == Verdict()
    (problem,) = judged({"shares": "5000"}, slots).problems
    assert "more than one slot, which is 500 on some nodes" in problem


@pytest.mark.parametrize(
    ("shares", "problems", "warnings"),
    [("1", 0, 0), ("100", 0, 0), ("10000", 0, 0), ("1000", 0, 1), ("101", 0, 1), ("1500", 1, 0), ("9999", 1, 0)],
)
def test_shares_before_any_gpu_is_published(shares: str, problems: int, warnings: int) -> None:
    """Claims may come before the nodes: what can be a node's slot passes, with a warning if it might be more than one."""
    verdict = judged({"shares": shares}, frozenset())
    assert (len(verdict.problems), len(verdict.warnings)) == (problems, warnings)


BAD = {"memory": "1500Ki"}


@pytest.mark.parametrize(
    ("kind", "version", "request_fields", "path"),
    [
        ("ResourceClaim", "v1", {"exactly": asking(BAD)}, "spec.devices.requests[0].exactly"),
        ("ResourceClaim", "v1beta2", {"exactly": asking(BAD)}, "spec.devices.requests[0].exactly"),
        ("ResourceClaim", "v1beta1", asking(BAD), "spec.devices.requests[0]"),
        ("ResourceClaimTemplate", "v1", {"exactly": asking(BAD)}, "spec.spec.devices.requests[0].exactly"),
        ("ResourceClaimTemplate", "v1beta1", asking(BAD), "spec.spec.devices.requests[0]"),
        *(
            (
                "ResourceClaim",
                version,
                {"firstAvailable": [asking({}), asking(BAD)]},
                "spec.devices.requests[0].firstAvailable[1]",
            )
            for version in ("v1", "v1beta2", "v1beta1")
        ),
    ],
)
def test_forms_of_the_object(kind: str, version: str, request_fields: dict[str, Any], path: str) -> None:
    """Both kinds in all versions: the path is the one in the manifest."""
    devices = {"requests": [{"name": "gpu", **request_fields}]}
    (problem,) = validate(claim(devices, version, kind), RULES, SLOTS).problems
    assert problem.startswith(f"{path}.capacity.requests[memory]: ")


def test_a_config_is_decoded_strictly() -> None:
    """A typo in a GpuConfig is found when the claim is applied, not when its pod starts; other drivers' configs are theirs."""
    ours = {"requests": ["other"], "opaque": {"driver": "gpu.hami.io", "parameters": {**CONFIG, "corepolicy": "force"}}}
    theirs = {"opaque": {"driver": "gpu.example.com", "parameters": {"corepolicy": "force"}}}
    for kind, root in (("ResourceClaim", "spec"), ("ResourceClaimTemplate", "spec.spec")):
        (problem,) = validate(claim({"config": [theirs, ours]}, kind=kind), RULES, SLOTS).problems
        assert problem.startswith(f"{root}.devices.config[1].opaque.parameters.corepolicy: unknown field; known are")


def test_lists_that_no_api_server_sends() -> None:
    """A claim of a megabyte is judged by what the API server would take of it, before anybody else has to wait."""
    device = {"deviceClassName": "gpu.hami.io", "count": 2, "capacity": {"requests": {"cpu": "1"}}}
    request = {"name": "r", "exactly": device}
    devices = {
        "requests": [request] * 5000,
        "constraints": [{"distinctAttribute": "gpu.hami.io/uuid", "requests": ["other"]}] * 5000,
        "config": [{"opaque": {"driver": "gpu.hami.io", "parameters": {}}}] * 5000,
    }
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}
    problems, warnings = validate(obj, RULES, {1000})
    assert (len(problems), len(warnings)) == (32, 0)
    assert len(validate(obj, Conversion(kubernetes="1.35"), {1000}).warnings) == 32


def test_requests_of_other_classes_are_not_ours() -> None:
    """What another driver's devices take isn't known here."""
    theirs = {"deviceClassName": "gpu.example.com", "capacity": {"requests": {"memory": "1500Ki", "fans": "2"}}}
    assert validate(claim({"requests": [{"name": "a", "exactly": theirs}]}), RULES, SLOTS) == Verdict()


def test_names_of_class_and_driver_follow_the_settings() -> None:
    """A cluster that comes from HAMi-DRA has other names."""
    rules = Conversion(driver_name="hami-core-gpu.project-hami.io", kubernetes="1.35")
    devices = {"requests": [{"name": "a", "exactly": {**asking(BAD, count=2), "deviceClassName": rules.device_class}}]}
    verdict = validate(claim(devices), rules, SLOTS)
    assert len(verdict.problems) == 1
    assert verdict.warnings[0].endswith("distinctAttribute: hami-core-gpu.project-hami.io/uuid")


@pytest.mark.parametrize(
    ("count", "constraints", "warned"),
    [
        (1, [], False),
        (2, [], True),
        (2, [DISTINCT], False),
        (2, [{**DISTINCT, "requests": ["gpu"]}], False),
        (2, [{**DISTINCT, "requests": ["other"]}], True),
        (2, [{"matchAttribute": "gpu.hami.io/uuid"}], True),
        (3, [DISTINCT], True),
    ],
)
def test_a_count_that_may_land_on_one_gpu(count: int, constraints: list[Any], *, warned: bool) -> None:
    """Kubernetes 1.35 puts `count: 2` on one GPU unless a constraint forbids it, and 3 even then: a warning, no more."""
    obj = claim({**exactly({}, count=count), "constraints": constraints})
    assert validate(obj, RULES, SLOTS) == Verdict(), "newer ones never do"
    verdict = validate(obj, Conversion(kubernetes="1.35"), SLOTS)
    assert not verdict.problems
    assert [warning.split(": ")[0] for warning in verdict.warnings] == (
        ["spec.devices.requests[0].exactly.count"] if warned else []
    )


@pytest.mark.parametrize(
    ("ours", "constraint", "warned"),
    [
        (3, DISTINCT, 0),
        (4, DISTINCT, 4),
        (16, DISTINCT, 16),
        (16, {**DISTINCT, "requests": ["r0", "r1", "r2", "other"]}, 0),
        (16, {**DISTINCT, "requests": ["r0", "r1", "r2", "r3"]}, 4),
        (16, {"matchAttribute": "gpu.hami.io/uuid"}, 0),
        (16, {"distinctAttribute": "gpu.example.com/uuid"}, 0),
    ],
)
def test_requests_kept_apart_hold_up_the_scheduler(ours: int, constraint: dict[str, Any], warned: int) -> None:
    """From four equal requests on there is a warning that says what to write; other drivers' requests don't count."""
    requests = [{"name": f"r{number}", "exactly": asking({})} for number in range(ours)]
    theirs = {"name": "other", "exactly": {"deviceClassName": "gpu.example.com"}}
    verdict = validate(claim({"requests": [*requests, theirs], "constraints": [constraint]}), RULES, SLOTS)
    assert not verdict.problems
    assert [
        bool(re.search(rf"constraints\[0\]\.distinctAttribute: {warned} requests .*count: {warned} ", said))
        for said in verdict.warnings
    ] == ([True] if warned else [])


def test_alternatives_are_one_request() -> None:
    """What counts is how many requests there are to put in order."""
    some = [{"name": "a", **asking({})}, {"name": "b", **asking({})}]
    requests = [{"name": f"r{number}", "firstAvailable": some} for number in range(3)]
    assert validate(claim({"requests": requests, "constraints": [DISTINCT]}), RULES, SLOTS) == Verdict()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "devices",
                    "requests",
                    "exactly",
                    "firstAvailable",
                    "capacity",
                    "memory",
                    "shares",
                    "config",
                    "opaque",
                    "name",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(
    spec=json_values,
    requests=json_values,
    amounts=json_values,
    kind=st.sampled_from(["ResourceClaim", "ResourceClaimTemplate", None]),
    version=st.sampled_from(["v1", "v1beta1"]),
)
def test_nothing_raises(spec: Any, requests: Any, amounts: Any, kind: Any, version: str) -> None:
    """Whatever stands in for a part of an object, a verdict comes."""
    for devices in (
        spec,
        {"requests": requests, "config": spec},
        exactly(amounts if isinstance(amounts, dict) else {"memory": amounts}),
    ):
        assert isinstance(validate(claim(devices, version, kind), RULES, SLOTS), Verdict)
    assert isinstance(validate({"kind": kind, "spec": spec}, RULES, ()), Verdict)


@given(
    gpus=st.integers(1, 16),
    memory=st.none() | st.integers(CONTEXT_MIB, 2**31 - 1),
    percent=st.integers(1, 100),
    cores=st.integers(0, 100),
    exclusive=st.booleans(),
    slots=st.sampled_from([frozenset(), frozenset({1000}), frozenset({100, 5000})]),
)
def test_what_the_webhook_writes_is_valid(
    gpus: int, memory: int | None, percent: int, cores: int, exclusive: bool, slots: frozenset[int]
) -> None:
    """Templates of the mutating half pass the validating half, without a word, in every cluster."""
    wanted = Demand(gpus, memory, None if memory else percent, cores, exclusive, "high", "force")
    made = template(wanted, Selection(types=("A100",)), RULES, [GpuSize("A100", 40960), GpuSize("A100", 81920)])
    assert validate(made.object("default"), RULES, slots) == Verdict()
