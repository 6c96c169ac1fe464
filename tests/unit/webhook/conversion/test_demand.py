"""webhook.demand: HAMi's rules for what a container asks for, one by one, and what is refused."""

from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.demand import Demand, demand
from tests.unit.webhook.pods import ALIAS, CORES, GPU, MEMORY, PERCENT, PRIORITY, container

WHERE = "spec.containers[0]"
LIMITS = f"{WHERE}.resources.limits"


def of(
    limits: dict[str, Any], requests: dict[str, Any] | None = None, *, env: Any = None, **rules: Any
) -> Demand | None:
    """The demand of a container with these resources."""
    one = container("main", limits) | {"env": env}
    one["resources"]["requests"] = requests
    return demand(one, WHERE, Conversion(**rules))


def refusal(limits: Any, requests: Any = None, **rules: Any) -> str:
    """The message with which they are refused."""
    with pytest.raises(AdmissionError) as refused:
        of(limits, requests, **rules)
    return str(refused.value)


@pytest.mark.parametrize(
    ("limits", "rules", "gpus", "mib", "percent", "cores", "exclusive"),
    [
        # Memory and percentage.
        ({GPU: 1, MEMORY: 4000}, {}, 1, 4000, None, 0, False),
        ({GPU: 1, ALIAS: 4000}, {}, 1, 4000, None, 0, False),
        ({GPU: 1, PERCENT: 50}, {}, 1, None, 50, 0, False),
        ({GPU: 1, MEMORY: 4000, PERCENT: 50}, {}, 1, 4000, None, 0, False),
        ({GPU: 1, MEMORY: 0, PERCENT: 50}, {}, 1, None, 50, 0, False),
        ({GPU: 1, MEMORY: 0, PERCENT: 0}, {}, 1, None, 100, 0, False),
        ({GPU: 1, MEMORY: "5k"}, {}, 1, 5000, None, 0, False),
        ({GPU: 1, MEMORY: "4e3"}, {}, 1, 4000, None, 0, False),
        ({GPU: 1, MEMORY: "5Ki"}, {}, 1, 5120, None, 0, False),
        ({GPU: 1, MEMORY: "1999k"}, {}, 1, 1_999_000, None, 0, False),  # the API server's way of writing 1999000
        ({GPU: 1, MEMORY: 2**31 - 1}, {}, 1, 2**31 - 1, None, 0, False),
        # A whole GPU is exclusive unless cores are named; a literal 0 is there.
        ({GPU: 1}, {}, 1, None, 100, 100, True),
        ({GPU: "1"}, {}, 1, None, 100, 100, True),
        ({GPU: 1, PERCENT: 100}, {}, 1, None, 100, 100, True),
        ({GPU: 1, MEMORY: 4000, PERCENT: 100}, {}, 1, 4000, None, 100, True),
        ({GPU: 1, MEMORY: 0}, {}, 1, None, 100, 0, False),
        ({GPU: 1, PERCENT: 0}, {}, 1, None, 100, 0, False),
        ({GPU: 1, CORES: 0}, {}, 1, None, 100, 0, False),
        ({GPU: 1, CORES: 30}, {}, 1, None, 100, 30, False),
        ({GPU: 1, PERCENT: 100, CORES: 30}, {}, 1, None, 100, 30, False),
        ({GPU: 1, MEMORY: 4000, CORES: 100}, {}, 1, 4000, None, 100, True),
        ({GPU: 1, MEMORY: 4000, CORES: 250}, {}, 1, 4000, None, 100, True),
        # The number of GPUs.
        ({MEMORY: 4000}, {}, 1, 4000, None, 0, False),
        ({PERCENT: 50}, {}, 1, None, 50, 0, False),
        ({PERCENT: 100}, {}, 1, None, 100, 100, True),
        ({CORES: 30}, {}, 1, None, 100, 30, False),
        ({MEMORY: 0}, {}, 1, None, 100, 0, False),
        ({MEMORY: 4000}, {"default_gpu_num": 3}, 3, 4000, None, 0, False),
        ({GPU: 1, MEMORY: 4000}, {"default_gpu_num": 3}, 1, 4000, None, 0, False),
        ({GPU: 16}, {}, 16, None, 100, 100, True),
        # Defaults.
        ({GPU: 1}, {"default_memory": 2000}, 1, 2000, None, 100, True),
        ({GPU: 1, MEMORY: 0}, {"default_memory": 2000}, 1, 2000, None, 0, False),
        ({GPU: 1, PERCENT: 0}, {"default_memory": 2000}, 1, 2000, None, 0, False),
        ({GPU: 1, PERCENT: 50}, {"default_memory": 2000}, 1, None, 50, 0, False),
        ({GPU: 1, MEMORY: 4}, {"memory_factor": 1024}, 1, 4096, None, 0, False),
        ({GPU: 1, PERCENT: 50}, {"memory_factor": 1024}, 1, None, 50, 0, False),
        ({GPU: 1, MEMORY: 0}, {"memory_factor": 1024, "default_memory": 2000}, 1, 2000, None, 0, False),
        ({GPU: 1, MEMORY: 1}, {"default_cores": 25}, 1, 1, None, 25, False),
        ({GPU: 1, MEMORY: 1, CORES: 0}, {"default_cores": 25}, 1, 1, None, 0, False),
        ({GPU: 1}, {"default_cores": 25}, 1, None, 100, 100, True),
        ({GPU: 1, MEMORY: 1}, {"default_cores": 100}, 1, 1, None, 100, True),
    ],
)
def test_what_is_asked_for(
    limits: dict[str, Any],
    rules: dict[str, Any],
    gpus: int,
    mib: int | None,
    percent: int | None,
    cores: int,
    exclusive: bool,
) -> None:
    """Each rule of HAMi's webhook and scheduler; the same numbers in requests, or in both lists, mean the same."""
    for lists in ((limits, None), ({}, limits), (limits, limits)):
        found = of(*lists, **rules)
        assert found is not None
        assert (found.gpus, found.memory_mib, found.memory_percent) == (gpus, mib, percent)
        assert (found.cores, found.exclusive) == (cores, exclusive)


@pytest.mark.parametrize(
    ("limits", "rules"),
    [
        ({}, {}),
        ({"cpu": "1", "memory": "4Gi"}, {}),
        ({GPU: 0}, {}),
        ({GPU: "0"}, {}),
        ({GPU: 0, MEMORY: 4000, CORES: 30}, {}),
        ({PRIORITY: 0}, {}),
        ({MEMORY: 4000}, {"default_gpu_num": 0}),
    ],
)
def test_no_gpu(limits: dict[str, Any], rules: dict[str, Any]) -> None:
    """No number and nothing that implies one, an explicit 0, or a default of 0: no GPU."""
    assert of(limits, **rules) is None


def test_names_can_be_set() -> None:
    """Other names are read in place of HAMi's, which then mean nothing."""
    rules: dict[str, Any] = {"resource_count_name": "example.com/vgpu", "resource_memory_name": "example.com/mib"}
    found = of({"example.com/vgpu": 2, "example.com/mib": 7, GPU: 5, MEMORY: 9}, **rules)
    assert found is not None
    assert (found.gpus, found.memory_mib) == (2, 7)


BAD = [
    -1,
    "-1",
    0.5,
    "0.5",
    "500m",
    "1n",
    "one",
    "",
    " 1",
    "1 ",
    "1_0",
    "0x1",
    "\u0661",
    "1,0",
    "nan",
    "inf",
    "1e",
    "1e9999",
]
BAD += ["1e999", "1e-999", "9" * 300, True, False, None, [], [1], {}, float("nan"), float("inf"), 10**400, "9" * 10_000]


@pytest.mark.parametrize("name", [GPU, MEMORY, ALIAS, PERCENT, CORES, PRIORITY])
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad)[:12])
def test_what_is_no_whole_number_is_refused(name: str, bad: Any) -> None:
    """Where HAMi would take it for nothing, the pod is refused, with the path and the value, in one short line."""
    for kind in ("limits", "requests"):
        lists: dict[str, Any] = {"limits": {GPU: 1}, "requests": None, kind: {GPU: 1, name: bad}}
        message = refusal(lists["limits"], lists["requests"])
        assert message.startswith(f"{WHERE}.resources.{kind}[{name}]: Invalid value: ")
        assert len(message) < 400
        assert message.isprintable()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({GPU: 17}, f"{LIMITS}[{GPU}]: Invalid value: 17: must be a whole number of GPUs, from 0 to 16"),
        (
            {GPU: 1, PERCENT: 101},
            f"{LIMITS}[{PERCENT}]: Invalid value: 101: must be a whole number of percent, from 0 to 100",
        ),
        ({GPU: 1, PRIORITY: 2}, f"{LIMITS}[{PRIORITY}]: Invalid value: 2: must be 0 (high) or 1 (low), from 0 to 1"),
        (
            {GPU: 1, MEMORY: 2**31},
            f"{LIMITS}[{MEMORY}]: Invalid value: 2147483648: must be a whole number of MiB, from 0 to ",
        ),
    ],
)
def test_numbers_out_of_range(limits: dict[str, Any], message: str) -> None:
    """The limits are said."""
    assert refusal(limits).startswith(message)


@pytest.mark.parametrize(
    ("written", "factor", "meant"),
    [
        ("4Gi", 1, "4096"),
        ("1500Mi", 1, "1500"),
        ("1Gi", 1, "1024"),  # as a number of MiB these two would be a PiB and more, which no GPU has
        ("4G", 1, "3815"),
        ("4Gi", 1024, "4"),
        ("1.5Gi", 1, "1536"),
        ("4M", 1, "4"),
        ("1M", 1, "1"),
        ("24000M", 1, "22888"),
        ("1T", 1, "953674"),
    ],
)
def test_memory_with_a_unit(written: str, factor: int, meant: str) -> None:
    """Who writes bytes, as everywhere else in Kubernetes, hears which number to write."""
    message = refusal({GPU: 1, MEMORY: written}, memory_factor=factor)
    assert message.startswith(f"{LIMITS}[{MEMORY}]: ")
    assert message.endswith(f"for {written} write {meant}")


@pytest.mark.parametrize("written", ["4e6", 4000000, "4000000", 4294967296])
def test_memory_as_a_number_of_bytes(written: Any) -> None:
    """The API server makes 4M of 4000000, so millions are refused however they are written."""
    meant = 4 if int(float(written)) == 4000000 else 4096
    assert refusal({GPU: 1, MEMORY: written}).endswith(f"for bytes write {meant}")


@pytest.mark.parametrize(
    ("written", "mib"), [("4k", 4000), ("4e3", 4000), (4000, 4000), ("1443k", 1443000), ("2Ki", 2048)]
)
def test_memory_as_the_api_server_writes_it(written: Any, mib: int) -> None:
    """It makes 4k of 4000."""
    found = of({GPU: 1, MEMORY: written})
    assert found is not None
    assert found.memory_mib == mib


@pytest.mark.parametrize("factor", [1, 3, 1024])
def test_memory_stays_within_32_bits(factor: int) -> None:
    """The product of number and factor is what HAMi can hold."""
    most = (2**31 - 1) // factor
    found = of({MEMORY: most}, memory_factor=factor)
    assert found is not None
    assert found.memory_mib == most * factor
    assert refusal({MEMORY: most + 1}, memory_factor=factor).startswith(f"{LIMITS}[{MEMORY}]")


@pytest.mark.parametrize("name", [GPU, MEMORY, PERCENT, CORES, PRIORITY])
def test_limits_and_requests_at_odds(name: str) -> None:
    """Different numbers are refused, as the API server does for extended resources; the same in other words are not."""
    message = refusal({GPU: 1, name: 1}, {name: 0})
    assert message == f"{WHERE}.resources.requests[{name}]: Invalid value: 0: must equal the limit, which is 1"
    assert of({GPU: 1, name: 1}, {name: "1.0"}) is not None


def test_both_names_of_memory() -> None:
    """They may say the same, but not different things."""
    found = of({GPU: 1, MEMORY: 4000, ALIAS: "4k"})
    assert found is not None
    assert found.memory_mib == 4000
    assert refusal({GPU: 1, MEMORY: 4000, ALIAS: 4001}).startswith(
        f"{LIMITS}: {MEMORY} and {ALIAS} mean the same, but differ"
    )


@pytest.mark.parametrize("bad", [[], "x", 1, True])
def test_resources_that_are_no_objects(bad: Any) -> None:
    """The path of what should be an object is named."""
    with pytest.raises(
        AdmissionError, match=r"^spec\.containers\[0\]\.resources: Invalid value: .*: must be an object$"
    ):
        demand({"resources": bad}, WHERE, Conversion())
    with pytest.raises(
        AdmissionError, match=r"^spec\.containers\[0\]\.resources\.requests: Invalid value: .* an object$"
    ):
        demand({"resources": {"requests": bad}}, WHERE, Conversion())
    assert demand({"resources": None}, WHERE, Conversion()) is None
    assert demand({"resources": {"limits": None}}, WHERE, Conversion()) is None


@pytest.mark.parametrize(
    ("limits", "env", "rules", "priority", "policy", "notes"),
    [
        ({}, None, {}, None, None, 0),
        ({PRIORITY: 0}, None, {}, "high", None, 0),
        ({PRIORITY: 1}, None, {}, "low", None, 0),
        ({}, [("CUDA_TASK_PRIORITY", "0")], {}, "high", None, 0),
        ({}, [("CUDA_TASK_PRIORITY", "1")], {}, "low", None, 0),
        ({PRIORITY: 1}, [("CUDA_TASK_PRIORITY", "0")], {}, "low", None, 0),
        ({}, [("CUDA_TASK_PRIORITY", "0"), ("CUDA_TASK_PRIORITY", "1")], {}, "low", None, 0),
        ({}, [("CUDA_TASK_PRIORITY", "2")], {}, None, None, 1),
        ({}, [("CUDA_TASK_PRIORITY", "\u0661")], {}, None, None, 1),
        ({}, [("CUDA_TASK_PRIORITY", None)], {}, None, None, 0),
        ({}, [("GPU_CORE_UTILIZATION_POLICY", "force")], {}, None, "force", 0),
        ({}, [("GPU_CORE_UTILIZATION_POLICY", "disable")], {"gpu_core_policy": "force"}, None, "disable", 0),
        ({}, [("GPU_CORE_UTILIZATION_POLICY", "default")], {"gpu_core_policy": "force"}, None, "default", 0),
        ({}, [("GPU_CORE_UTILIZATION_POLICY", "FORCE")], {}, None, "force", 0),
        ({}, [("GPU_CORE_UTILIZATION_POLICY", "DISABLE")], {"gpu_core_policy": "force"}, None, "disable", 0),
        ({}, [("GPU_CORE_UTILIZATION_POLICY", "Disable")], {"gpu_core_policy": "force"}, None, "force", 1),
        ({}, [("gpu_core_utilization_policy", "force")], {}, None, None, 0),
        ({}, None, {"gpu_core_policy": "disable"}, None, "disable", 0),
    ],
)
def test_priority_and_policy(
    limits: dict[str, Any],
    env: list[tuple[str, str]] | None,
    rules: dict[str, Any],
    priority: str | None,
    policy: str | None,
    notes: int,
) -> None:
    """The resource beats the variable, the container's policy the settings'; the last of two variables counts, as in a pod.

    What HAMi-core doesn't know is left out with a note.
    """
    variables = None if env is None else [{"name": name, "value": value} for name, value in env]
    found = of({GPU: 1} | limits, env=variables, **rules)
    assert found is not None
    assert (found.priority, found.core_policy, len(found.notes)) == (priority, policy, notes)
    assert all(note.startswith(f"{WHERE}.env: ") for note in found.notes)


@pytest.mark.parametrize(
    ("value", "level", "notes"),
    [("0", 0, 0), ("1", 1, 0), ("4", 4, 0), ("5", None, 1), ("debug", None, 1), ("", None, 1), ("01", None, 1)],
)
def test_log_level(value: str, level: int | None, notes: int) -> None:
    """The container's level goes into the claim, since the driver sets the variable; what is none is noted."""
    found = of({GPU: 1}, env=[{"name": "LIBCUDA_LOG_LEVEL", "value": value}])
    assert found is not None
    assert (found.log_level, len(found.notes)) == (level, notes)
    assert notes == 0 or "known are 0 to 4" in found.notes[0]


@pytest.mark.parametrize("name", ["GPU_CORE_UTILIZATION_POLICY", "CUDA_TASK_PRIORITY", "LIBCUDA_LOG_LEVEL"])
def test_values_from_elsewhere(name: str) -> None:
    """What a ConfigMap holds can't be read here, and the driver's value wins: the note says so, and what to write."""
    source = {"configMapKeyRef": {"name": "c", "key": "k"}}
    found = of({GPU: 1}, env=[{"name": name, "valueFrom": source}], gpu_core_policy="force")
    assert found is not None
    assert (found.priority, found.core_policy, found.log_level) == (None, "force", None)
    (note,) = found.notes
    assert note.startswith(
        f"{WHERE}.env: {name} is ignored, as valueFrom can't be read here: write its value; known are "
    )


@pytest.mark.parametrize("env", [[], [1], ["x"], [{}], [{"name": [1]}], [{"name": {}, "value": "0"}], [None]])
def test_env_entries_that_are_none(env: Any) -> None:
    """The API server refuses them in its own words."""
    assert of({GPU: 1}, env=env) == of({GPU: 1})


@pytest.mark.parametrize("value", [0, True, 1.5, [1], {"a": 1}])
def test_env_values_that_are_no_text(value: Any) -> None:
    """Neither do they set anything that isn't 0 or 1."""
    found = of({GPU: 1}, env=[{"name": "CUDA_TASK_PRIORITY", "value": value}])
    assert found is not None
    assert found.priority == ("high" if value == 0 else None)


@pytest.mark.parametrize("env", [5, "text", {"name": "CUDA_TASK_PRIORITY"}, True])
def test_env_that_is_no_list(env: Any) -> None:
    """It is refused with its path."""
    with pytest.raises(AdmissionError, match=r"^spec\.containers\[0\]\.env: Invalid value: .*: must be a list$"):
        of({GPU: 1}, env=env)


@pytest.mark.parametrize(
    ("limits", "note"),
    [
        ({GPU: 1, CORES: 101}, f"{WHERE}: {CORES}: 101 is taken as 100, the percent of each GPU"),
        ({GPU: 1, MEMORY: 1, PERCENT: 50}, f"{WHERE}: {PERCENT} has no effect beside {MEMORY}"),
    ],
)
def test_what_is_not_taken_as_written_is_noted(limits: dict[str, Any], note: str) -> None:
    """People read it as a warning of kubectl."""
    found = of(limits)
    assert found is not None
    assert found.notes == (note,)
