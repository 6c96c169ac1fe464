"""`--fits`: where something has room, as the scheduler would find it, and what is missing elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.fake.scheduler import FakeScheduler
from hami_kubeletplugin.kubectl import fits, fits_view
from tests.unit.kubectl.objects import Json, a100s, claim, exactly, gpus, seen, share, slice_

TAINT: Json = {"key": "gpu.hami.io/lost", "effect": "NoSchedule"}


def reasons(text: str, device: Json, *claims: Json) -> list[str]:
    """What is missing on one GPU."""
    (gpu,) = gpus([slice_("n1", device)], *claims)
    return [lack.text for lack in fits.lacks(gpu, fits.parse(text))]


@pytest.mark.parametrize(
    ("text", "consumed", "missing"),
    [
        ("memory=20Gi,cores=50", share("20Gi", "50"), []),
        ("memory=20Gi,cores=51", share("20Gi", "50"), ["cores: 51 wanted, 50 of 100 available"]),
        ("memory=21Gi", share("20Gi"), ["memory: 21Gi wanted, 20Gi of 40Gi available"]),
        ("memory=41Gi", None, ["memory: 41Gi wanted, one claim may have 40Gi of it"]),
        # Who names no memory gets all of it.
        ("cores=10", share(), ["memory: 40Gi wanted, 36960Mi of 40Gi available"]),
        ("memory=1Gi,shares=10000", share(), ["the whole GPU is wanted, team/c has a share of it"]),
        ("memory=1Gi", share("1Gi", shares="10k"), ["team/c has the whole GPU"]),
    ],
)
def test_what_is_missing(text: str, consumed: dict[str, str] | None, missing: list[str]) -> None:
    """Each amount is held against what is left, with the defaults of what isn't named; the reason has both numbers."""
    claims = [claim("c", on={"n1/hami-gpu-0": consumed})] if consumed else []
    assert reasons(text, a100s(1)[0], *claims) == missing


def test_no_slot_is_free() -> None:
    """Ten may share a GPU; the eleventh is told who has it."""
    full = [claim(f"c{number}", on={"n1/hami-gpu-0": share("1Gi")}) for number in range(10)]
    assert reasons("memory=1Gi", a100s(1)[0], *full) == [
        "no slot to share it is free, team/c0, team/c1 and 8 more have one"
    ]


def test_taints_and_pools() -> None:
    """Nothing fits on a tainted GPU, or one of a pool that isn't whole; a taint that only tells something is no reason."""
    assert reasons("memory=1Gi", a100s(1, taints=[TAINT])[0]) == ["taint gpu.hami.io/lost:NoSchedule is not tolerated"]
    assert reasons("memory=1Gi", a100s(1, taints=[TAINT | {"effect": "None"}])[0]) == []
    (gpu,) = gpus([slice_("n1", *a100s(1), of=2)])
    assert [lack.what for lack in fits.lacks(gpu, fits.parse("memory=1Gi"))] == ["pool"]


def test_several_gpus_are_of_one_node() -> None:
    """With a count only nodes are named that have so many GPUs with room; of others it is said how many they have."""
    slices = [slice_("n1", *a100s(2)), slice_("n2", *a100s(2))]
    used = claim("c", on={"n1/hami-gpu-0": share("40Gi")})
    answer = fits_view.answer(seen(slices, used).inventory, fits.parse("memory=10Gi,count=2"))
    assert {(pool.node, gpu.name) for pool, gpu, _ in answer.there} == {("n2", "hami-gpu-0"), ("n2", "hami-gpu-1")}
    assert [often for _, _, often in answer.there] == [4, 4]
    assert list(fits_view.notes(answer)) == [
        "nodes with room on too few GPUs: 1; 1 GPUs at the most, and 2 are wanted",
        "GPUs without room: 1; memory on 1",
    ]
    assert fits_view.as_json(answer)["lacking"][0]["missing"][0]["what"] == "memory"
    assert "it fits nowhere now" in list(fits_view.notes(fits_view.answer(seen([]).inventory, fits.parse("cores=1"))))


@given(
    taken=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), max_size=8),
    memory=st.integers(1, 41),
    cores=st.integers(0, 101),
)
def test_as_the_scheduler(taken: list[tuple[int, int]], memory: int, cores: int) -> None:
    """Whatever was given out before, a GPU is said to have room just if the scheduler would give it out."""
    made = slice_("n1", *a100s(1))
    scheduler = FakeScheduler([made])
    owner = pod_object()
    given_out = []
    for number, (mem, core) in enumerate(taken):
        try:
            given_out.append(scheduler.allocate(claim(f"c{number}", exactly(memory=f"{mem}Gi", cores=core)), owner))
        except LookupError:
            continue
    (gpu,) = gpus([made], *map(dict, given_out))
    wanted = fits.parse(f"memory={memory}Gi,cores={cores}")
    try:
        scheduler.allocate(claim("new", exactly(memory=f"{memory}Gi", cores=cores)), owner)
    except LookupError:
        assert fits.lacks(gpu, wanted)
    else:
        assert not fits.lacks(gpu, wanted) or cores > 100


def pod_object() -> Json:
    """The owner of claims."""
    return {"metadata": {"name": "p", "uid": "u"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory", "got 'memory'"),
        ("gpus=1", "got 'gpus=1'"),
        ("memory=2Gi,memory=1Gi", "each once"),
        ("cores=x", "got 'cores=x'"),
        ("memory=1Gi,count=0", "count must be a number of GPUs from 1 to 999, got '0'"),
        ("memory=4000", "are bytes: for MiB write 4000Mi"),
        ("", "must be amounts such as memory=20Gi"),
    ],
)
def test_what_is_not_understood(text: str, words: str) -> None:
    """A mistake is quoted, with what is meant."""
    with pytest.raises(SettingsError, match="--fits") as caught:
        fits.parse(text)
    assert words in str(caught.value)
