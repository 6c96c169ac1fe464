"""The variables say exactly what was allocated, as HAMi-core will read it."""

import itertools
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hami_kubeletplugin.api.gpuconfig import Policy
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.hamicore.contract import CONTAINER_REGION
from hami_kubeletplugin.hamicore.contract import variables as made
from hami_kubeletplugin.hamicore.region import LAYOUTS, region

MIB = 1024**2
variables = partial(made, region=CONTAINER_REGION)
limits_of_a_container = st.lists(
    st.builds(Limit, memory_mib=st.integers(1, 4 * 1024**2), cores=st.integers(0, 250)), min_size=1, max_size=16
)


def parse_limit(text: str) -> int:
    """HAMi-core's own parser, rebuilt from multiprocess_memory_limit.c:95-136: suffix, then strtoul(base 0), overflow is 0."""
    if not text:
        return 0
    scale = {"g": 1024**3, "m": MIB, "k": 1024}.get(text[-1].lower(), 1)
    text = text.lstrip(" \t\n\v\f\r")
    negative, digits = text.startswith("-"), text.lstrip("+-").lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    digits = digits[2:] if base == 16 else digits
    legal = "0123456789abcdef"[:base]
    number = int("".join(itertools.takewhile(lambda c: c in legal, digits)) or "0", base)
    number = min(-number % 2**64 if negative else number, 2**64 - 1)
    return number * scale if number * scale < 2**64 else 0


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4000m", 4000 * MIB),
        ("1m", MIB),
        ("512k", 512 * 1024),
        ("4Gi", 4),
        ("4000Mi", 4000),
        ("4GB", 4),
        ("010m", 8 * MIB),
        ("1.5g", 1024**3),
        ("-1m", 0),
        ("", 0),
        ("0m", 0),
        ("0x10m", 16 * MIB),
    ],
)
def test_the_parser_of_these_tests_is_the_librarys(text: str, meant: int) -> None:
    """The parser that the next test trusts reads the documented oddities as the real library does."""
    assert parse_limit(text) == meant


@given(limits_of_a_container)
def test_the_library_reads_back_what_was_allocated(limits: list[Limit]) -> None:
    """Each index carries its GPU's memory to the byte, its cores only when asked, and there is no index too many."""
    environment = variables(limits)
    for index, limit in enumerate(limits):
        assert parse_limit(environment[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"]) == limit.memory_mib * MIB
        cores = environment.get(f"CUDA_DEVICE_SM_LIMIT_{index}")
        assert (cores is None) if limit.cores == 0 else (parse_limit(cores or "") == min(limit.cores, 100))
    assert sum(name.startswith("CUDA_DEVICE_MEMORY_LIMIT") for name in environment) == len(limits)


@given(limits_of_a_container)
@example([Limit(1)] * 16)
def test_gpus_are_numbered_by_identity_in_bus_order(limits: list[Limit]) -> None:
    """CUDA_VISIBLE_DEVICES is 0..n-1 in PCI bus order, whatever the image or the pod would have said."""
    environment = variables(limits)
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["CUDA_VISIBLE_DEVICES"].split(",") == [str(index) for index in range(len(limits))]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), {"GPU_CORE_UTILIZATION_POLICY": "default", "CUDA_TASK_PRIORITY": "1", "LIBCUDA_LOG_LEVEL": "1"}),
        (
            Policy("force", "high", 0),
            {"GPU_CORE_UTILIZATION_POLICY": "force", "CUDA_TASK_PRIORITY": "0", "LIBCUDA_LOG_LEVEL": "0"},
        ),
        (
            Policy("disable", "low", 4),
            {"GPU_CORE_UTILIZATION_POLICY": "disable", "CUDA_TASK_PRIORITY": "1", "LIBCUDA_LOG_LEVEL": "4"},
        ),
    ],
)
def test_policy_and_priority_are_always_written(policy: Policy, expected: dict[str, str | None]) -> None:
    """A pod can't lift its core limit by a variable of its own, since ours is always there; the log level only if set."""
    environment = variables([Limit(1000, 30)], policy=policy)
    assert {name: environment.get(name) for name in expected} == expected
    assert environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/tmp/cudevshr.cache"


@pytest.mark.parametrize("limits", [[Limit(0)], [Limit(1000), Limit(0, 30)]])
def test_a_limit_that_would_mean_unlimited_is_refused(limits: list[Limit]) -> None:
    """0 MiB is 'no limit' to the library, so nothing is written that says so: neither variables nor a region."""
    with pytest.raises(ValueError, match="at least 1 MiB"):
        variables(limits)
    with pytest.raises(ValueError, match="at least 1 MiB"):
        region(LAYOUTS["1.2"], {f"GPU-{number}": limit for number, limit in enumerate(limits)})


@pytest.mark.parametrize(("memory", "cores"), [(-1, 0), (1, -1)])
def test_a_negative_limit_can_not_be_made(memory: int, cores: int) -> None:
    """There is no such amount."""
    with pytest.raises(ValueError, match="negative"):
        Limit(memory, cores)


@pytest.mark.parametrize("count", [0, 17])
def test_only_one_to_sixteen_gpus_can_be_limited(count: int) -> None:
    """The library's arrays hold 16 GPUs; a 17th would go unlimited."""
    with pytest.raises(ValueError, match="1 to 16"):
        variables([Limit(1)] * count)
