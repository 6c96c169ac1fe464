"""webhook.placements: how much the scheduler has to try before it says no."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.placements import by_difficulty, placements, unlike


@pytest.mark.parametrize(
    ("counts", "choices"),
    [
        ([1], 0),
        ([8], 127),
        ([9], 255),
        ([10], 511),
        ([16], 32767),
        ([1] * 5, 64),
        ([1] * 6, 325),
        ([1] * 7, 1956),
        ([4, 4], 343),
        ([2] * 4, 2233),
    ],
)
def test_what_was_measured(counts: list[int], choices: int) -> None:
    """13 to 19 microseconds each, on each node: 255 took 0.3 s on 100 nodes, 325 0.6, 2233 4.2, 32767 41."""
    assert placements(counts, 10**9) == choices


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_it_counts_what_an_allocator_tries(counts: list[int]) -> None:
    """One that takes devices in order, and each choice back that leads nowhere."""

    def tries(wanted: list[int], free: list[int], begin: int) -> int:
        if not wanted:
            raise AssertionError("one device is missing")
        made = 0
        for index in range(begin, len(free)):
            rest = free[:index] + free[index + 1 :]
            made += 1
            if wanted[0] > 1:
                made += tries([wanted[0] - 1, *wanted[1:]], rest, index)
            elif len(wanted) > 1:
                made += tries(wanted[1:], rest, 0)
        return made

    if sum(counts) <= 8:
        assert placements(counts, 10**9) == tries(counts, list(range(sum(counts) - 1)), 0)


DEMANDS = st.builds(
    Demand,
    gpus=st.integers(1, 4),
    memory_mib=st.integers(1, 3),
    memory_percent=st.none(),
    cores=st.integers(0, 2),
    exclusive=st.booleans(),
)


@given(st.lists(DEMANDS, min_size=1, max_size=4))
def test_a_claim_without_room_behind_others_that_have_it(claims: list[Demand]) -> None:
    """An allocator that takes back each choice of the claims before tries no more than is said, on 8 GPUs."""
    ordered = list(by_difficulty({f"c{number}": claim for number, claim in enumerate(claims)}).values())

    def room(claim: Demand, gpu: tuple[int, int, bool]) -> bool:
        memory, cores, free = gpu
        return free or not (claim.exclusive or (claim.memory_mib or 0) > memory or claim.cores > cores)

    worst = 0
    for gpu in itertools.product((1, 2, 3), (0, 1, 2), (False, True)):  # what each of the 8 has free
        tried = 1
        for claim in ordered:
            if not room(claim, gpu):
                worst = max(worst, tried) if tried > 1 else worst
                break
            tried *= math.comb(8, claim.gpus)
    assert worst <= unlike(ordered, 10**9)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=256), st.integers(1, 1000))
def test_it_ends_soon(counts: list[int], most: int) -> None:
    """Beyond what is enough to know it does not go on, whatever somebody asks for."""
    assert (placements(counts, most) > most) == (placements(counts, 10**12) > most)
