"""webhook.sharing: whose claim an init container uses, and how far it is raised."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion.claims import ContainerPath, Holder
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.sharing import shared
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import CORES, GPU, MEMORY, PERCENT, Json, container, pod

SIZES = (GpuSize("NVIDIA A100-SXM4-40GB", 40960), GpuSize("Tesla T4", 15360))
SIDECAR = {"restartPolicy": "Always"}


def share(memory: int, **more: Any) -> Json:
    """Limits for a share of one GPU."""
    return {GPU: 1, MEMORY: memory} | {f"nvidia.com/{name}": amount for name, amount in more.items()}


def converted(init: Sequence[Json], *containers: Json, **rules: Any) -> tuple[Converted, Json]:
    """What is made of a pod with these init containers, and the pod that it becomes."""
    one = pod(*containers, initContainers=list(init))
    made = convert(one, Conversion(**({"max_placements": 0} | rules)), lambda: SIZES)
    return made, patched(one, made.patch)


def claims(made: Converted) -> dict[str, str]:
    """By container, its claim."""
    return {use.container: use.claim for use in made.claims}


def capacity(made: Converted, name: str) -> dict[str, Any]:
    """What the claim of a container asks for: count, and capacity of each."""
    (use,) = [use for use in made.claims if use.container == name]
    request = use.template.spec["devices"]["requests"][0]["exactly"]
    return {"count": request["count"], **request["capacity"]["requests"]}


def config(made: Converted, name: str) -> Json:
    """The GpuConfig in the claim of a container."""
    (use,) = [use for use in made.claims if use.container == name]
    (one,) = use.template.spec["devices"].get("config") or [{"opaque": {"parameters": {}}}]
    parameters: Json = one["opaque"]["parameters"]
    return {field: value for field, value in parameters.items() if field not in {"apiVersion", "kind"}}


def test_the_larger_of_both() -> None:
    """As in HAMi, a pod whose init container asks for 20 GiB and whose container asks for 10 takes 20, not 30."""
    made, result = converted([container("i", share(20480))], container("m", share(10240)))
    assert claims(made) == {"i": "gpu-m", "m": "gpu-m"}
    assert len(result["spec"]["resourceClaims"]) == len(made.templates) == 1
    assert capacity(made, "m") == {"count": 1, "memory": "20Gi", "cores": "0", "shares": "1"}
    assert made.warnings == ("spec.containers[0] (m): gets 20480 MiB, as init container i asks for that",)


def test_a_whole_gpu_has_room_for_a_share() -> None:
    """An init container with a share uses the whole GPU of a later one, if it is as large; nobody is told, as nobody has less."""
    made, _ = converted([container("dl", share(1000))], container("m", {GPU: 1}))
    assert capacity(made, "m") == {"count": 1, "cores": "100", "shares": "10k"}
    [selector] = made.templates[0].spec["devices"]["requests"][0]["exactly"]["selectors"]
    assert selector["cel"]["expression"].endswith('.memory.compareTo(quantity("1000Mi")) >= 0')
    assert (claims(made)["dl"], made.warnings) == ("gpu-m", ())


@pytest.mark.parametrize(
    ("init", "main", "given", "told"),
    [
        (
            {GPU: 2, MEMORY: 1000},
            share(2000),
            {"count": 2, "memory": "2000Mi", "cores": "0", "shares": "1"},
            "gets 2 GPUs, as",
        ),
        (
            {GPU: 2, MEMORY: 2000, CORES: 50},
            share(1000, gpucores=20),
            {"count": 2, "memory": "2000Mi", "cores": "50", "shares": "1"},
            "gets 2 GPUs, 2000 MiB of each GPU, 50 percent of the compute, as",
        ),
        (
            {GPU: 1},
            share(1000, gpucores=20),
            {"count": 1, "cores": "100", "shares": "10k"},
            "gets all of the memory, nobody else on it, as",
        ),
        (
            share(2000, gpucores=100),
            share(1000),
            {"count": 1, "memory": "2000Mi", "cores": "100", "shares": "10k"},
            "gets 2000 MiB, nobody else on it, as",
        ),
        (
            {GPU: 1, PERCENT: 100, CORES: 0},
            share(1000),
            {"count": 1, "cores": "0", "shares": "1"},
            "gets all of the memory, as",
        ),
    ],
)
def test_every_amount(init: Json, main: Json, given: Json, told: str) -> None:
    """Number of GPUs, memory, compute and being alone are each the larger of both, and who gets more is told."""
    made, _ = converted([container("i", init)], container("m", main))
    assert capacity(made, "m") == given
    assert made.warnings == (f"spec.containers[0] (m): {told} init container i asks for that",)


def test_percentages_and_mib() -> None:
    """Which is the larger depends on the GPU; one that can't have so many MiB is not asked for."""
    made, _ = converted([container("i", share(10000))], container("m", {GPU: 1, PERCENT: 50}))
    alternatives = made.templates[0].spec["devices"]["requests"][0]["firstAvailable"]
    memory = {each["name"]: each["capacity"]["requests"]["memory"] for each in alternatives}
    assert memory == {"of-15360": "10000Mi", "of-40960": "20Gi"}
    assert made.warnings == (
        "spec.containers[0] (m): gets 50 percent of the memory, at least 10000 MiB, as init container i asks for that",
    )
    made, _ = converted([container("i", {GPU: 1, PERCENT: 50})], container("m", share(16000)))
    [alternative] = made.templates[0].spec["devices"]["requests"][0]["firstAvailable"]
    assert (alternative["name"], alternative["capacity"]["requests"]["memory"]) == ("of-40960", "20Gi")
    made, _ = converted([container("i", {GPU: 1, PERCENT: 50})], container("m", share(50000)))
    assert len(made.templates[0].spec["devices"]["requests"][0]["firstAvailable"]) == 2


def test_compute_set_aside_is_no_limit_for_one_without() -> None:
    """The container runs as fast as it may; as much compute as the init container asks for is set aside for the pod."""
    made, _ = converted([container("i", share(1000, gpucores=30))], container("m", share(2000)))
    assert capacity(made, "m")["cores"] == "30"
    assert config(made, "m") == {"corePolicy": "disable"}
    assert made.warnings == (
        "spec.containers[0] (m): gets 30 percent of the compute set aside, as init container i asks for that",
    )
    whole, _ = converted(
        [container("i", share(1000, gpucores=30)), container("j", {GPU: 1})], container("m", share(2000))
    )
    assert (capacity(whole, "m")["cores"], config(whole, "m")) == ("100", {})


def test_how_limits_are_kept_is_up_to_the_last() -> None:
    """The container's limit on compute stays, and its priority; an init container that asked for others is told."""
    init = container("i", share(2000, priority=0))
    made, _ = converted([init], container("m", share(2000, gpucores=30)))
    assert (capacity(made, "m")["cores"], config(made, "m")) == ("30", {})
    assert made.warnings == (
        "spec.initContainers[0] (i): is limited to 30 percent of the compute, as it uses the claim of container m, which says so",
        "spec.initContainers[0] (i): has priority low, as it uses the claim of container m, which says so",
    )
    env = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    made, _ = converted([container("i", share(1))], container("m", share(2000, gpucores=30, priority=0), env=env))
    assert config(made, "m") == {"corePolicy": "force", "priority": "high"}


def test_the_log_level_is_the_last_ones() -> None:
    """What HAMi-core says is up to the container whose claim it is; with the same amounts the claim is the one it has alone."""
    main = container("m", share(2000)) | {"env": [{"name": "LIBCUDA_LOG_LEVEL", "value": "3"}]}
    alone, _ = converted([], main)
    for amount in (500, 2000):
        made, _ = converted([container("i", share(amount))], main)
        assert config(made, "m") == config(made, "i") == {"logLevel": 3}
        assert [one.name for one in made.templates] == [one.name for one in alone.templates]


def test_the_one_of_which_least_is_raised() -> None:
    """Equal need first, then one that has room, then the one that is nearest; the largest init container chooses first."""
    main = [container("a", share(4000)), container("b", share(2000)), container("c", {GPU: 2, MEMORY: 4200})]
    init = [
        container("equal", share(2000)),
        container("less", share(1500)),
        container("more", share(4500)),
        container("two", {GPU: 2, MEMORY: 1000}),
        container("after-more", share(4500, gpucores=1)),
    ]
    made, _ = converted(init, *main)
    assert claims(made) == {
        "equal": "gpu-b",
        "less": "gpu-b",
        "more": "gpu-a",
        "two": "gpu-c",
        "after-more": "gpu-a",
        "a": "gpu-a",
        "b": "gpu-b",
        "c": "gpu-c",
    }
    assert made.warnings == (
        (
            "spec.containers[0] (a): gets 4500 MiB, 1 percent of the compute set aside, as init containers after-more, more "
            "ask for that"
        ),
    )


def test_sidecars() -> None:
    """A sidecar has its own claim; who has ended before it starts may use it, who starts later may not."""
    side = container("side", share(2000), **SIDECAR)
    made, _ = converted([container("before", share(1500)), side, container("behind", share(1000))], container("m"))
    assert claims(made) == {"before": "gpu-side", "side": "gpu-side", "behind": "gpu-behind"}
    made, _ = converted([side, container("behind", share(9000))], container("m", share(1)))
    assert claims(made) == {"side": "gpu-side", "behind": "gpu-m", "m": "gpu-m"}


def test_init_containers_only() -> None:
    """They have one claim among them, the largest of all in every amount."""
    made, result = converted([container("i", share(3000)), container("j", share(1000, gpucores=5))], container("m"))
    assert claims(made) == {"i": "gpu-j", "j": "gpu-j"}
    assert capacity(made, "i") == {"count": 1, "memory": "3000Mi", "cores": "5", "shares": "1"}
    assert len(result["spec"]["resourceClaims"]) == 1


def test_other_claims() -> None:
    """A node refuses containers of which one sees more GPUs than the other: they share only if they name the same claims else."""
    mine = {"claims": [{"name": "mine"}]}
    main = container("m", share(1000))
    main["resources"] |= mine
    init = [container("i", share(1000)), container("j", share(1000))]
    init[0]["resources"] |= mine
    made, _ = converted(init, main)
    assert claims(made) == {"i": "gpu-m", "j": "gpu-j", "m": "gpu-m"}


def test_bounds_count_what_is_raised() -> None:
    """Different init containers are no more templates, and no more choices, than the claims that there are."""
    init = [container(f"i{number}", share(1000 + number)) for number in range(20)]
    made, _ = converted(init, container("m", share(1)), max_placements=300)
    assert len(made.templates) == 1
    init = [container("i", {GPU: 16, MEMORY: 1})]
    with pytest.raises(AdmissionError, match=r"for the GPUs of this pod \(16\)"):
        converted(init, container("m", share(1)), max_placements=300)


DEMANDS = st.builds(
    Demand,
    gpus=st.integers(1, 3),
    memory_mib=st.sampled_from([None, 1000, 4000, 20000]),
    memory_percent=st.sampled_from([None, 10, 50, 100]),
    cores=st.sampled_from([0, 30, 60]),
    exclusive=st.booleans(),
).filter(lambda each: (each.memory_mib is None) != (each.memory_percent is None))
KINDS = st.sampled_from(["init", "init", "sidecar", "app"])


@given(st.lists(st.tuples(KINDS, DEMANDS), min_size=1, max_size=8))
def test_as_few_claims_as_can_be(wanted: list[tuple[str, Demand]]) -> None:
    """One for each that runs beside others, one more if an init container comes last; each holds the most that one asks for."""
    wanted.sort(key=lambda each: each[0] == "app")
    init = sum(kind != "app" for kind, _ in wanted)
    holders = [
        Holder(
            ContainerPath("containers", number - init) if kind == "app" else ContainerPath("initContainers", number),
            {"name": f"c{number}", "resources": {}} | (SIDECAR if kind == "sidecar" else {}),
            demand,
        )
        for number, (kind, demand) in enumerate(wanted)
    ]
    sharings = shared(holders, "")
    beside = sum(kind != "init" for kind, _ in wanted)
    assert len(sharings) == beside + (wanted[-1][0] == "init")
    assert sorted(user.name for each in sharings for user in each.users) == sorted(each.name for each in holders)
    for each in sharings:
        users = [user.demand for user in each.users]
        assert each.demand.gpus == max(demand.gpus for demand in users)
        assert (each.demand.memory_mib or 0) == max(demand.memory_mib or 0 for demand in users)
        assert (each.demand.memory_percent or 0) == max(demand.memory_percent or 0 for demand in users)
        assert each.demand.cores == max(demand.cores for demand in users)
        assert each.demand.exclusive == any(demand.exclusive for demand in users)
