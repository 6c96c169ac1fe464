"""claims.usage: what prepared claims hold of each GPU."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import decode, encode
from hami_kubeletplugin.claims.usage import Usage, usage
from tests.unit.claims.objects import UUID, claim, container, pod, result
from tests.unit.claims.test_plan import planned

shares = st.lists(
    st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 9), st.integers(0, 100), st.booleans()), min_size=1, max_size=4
)


def prepared(number: int, holds: list[tuple[int, int, int, bool]]) -> Prepared:
    """A claim with shares of so many MiB and cores; or admin access."""
    results = [
        result(device, share=None, request=f"r{i}", adminAccess=True)
        if admin
        else result(device, f"{memory}Mi", str(cores), request=f"r{i}")
        for i, (device, memory, cores, admin) in enumerate(holds)
    ]
    containers = [container(f"x{i}", f"c{number}/r{i}") for i in range(len(holds))]
    return planned(claim(f"c{number}", results), [pod("p", *containers)])


@given(st.lists(shares, max_size=4))
def test_usage(claims: list[list[tuple[int, int, int, bool]]]) -> None:
    """Slots, MiB, cores and shares add up by GPU, over a claim; admin access and GPUs without a share are not in it."""
    for number, holds in enumerate(claims):
        expected: dict[str, Usage] = {}
        for device, memory, cores, admin in holds:
            if not admin:
                before = expected.get(UUID[device], Usage(0, 0))
                expected[UUID[device]] = before + Usage(1000, memory, cores, shares=1)
        assert usage(prepared(number, holds), 5) == expected


def test_a_claim_that_is_read_back_holds_the_same() -> None:
    """After a restart, from the records."""
    made = prepared(0, [(0, 1, 10, False), (1, 2, 20, False)])
    assert usage(decode(encode(made), "here"), 5) == usage(made, 5) != {}


@pytest.mark.parametrize(("slots", "held"), [("10k", 10_000), ("3", 3), ("0", 500), (None, 500)])
def test_slots_that_nobody_told(slots: str | None, held: int) -> None:
    """A share that doesn't say how many it has takes one."""
    made = planned(claim("c", [result(0, "10Gi", "0", slots=slots)]), [pod("p", container("x", "c"))])
    assert usage(made, 500) == {UUID[0]: Usage(held, 10 * 1024, shares=1)}


def test_records_of_0_1_0_have_no_slots() -> None:
    """A share takes one, a GPU that is the container's own has all of them taken."""
    whole = planned(claim("c", [result(0, "80Gi", "100", slots="10k")]), [pod("p", container("x", "c"))])
    share = planned(claim("c", [result(0, "1Gi", "10", slots="10k")]), [pod("p", container("x", "c"))])
    for made, slots in ((whole, 10_000), (share, 500)):
        old = replace(made, shares=tuple(replace(one, slots=0) for one in made.shares))
        assert "slots" not in str(encode(old))
        assert usage(decode(encode(old), "here"), 500)[UUID[0]].slots == slots
