"""claims.usage: what prepared claims hold of each GPU."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.limits import Limit
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
    """Shares, MiB and cores add up by GPU, over claims and within one; admin access and GPUs without a claim are not in it."""
    expected: dict[str, Usage] = {}
    for device, memory, cores, admin in chain.from_iterable(claims):
        if not admin:
            before = expected.get(UUID[device], Usage(0, Limit(0)))
            expected[UUID[device]] = Usage(before.shares + 1, before.limit + Limit(memory, cores))
    assert usage(prepared(number, holds) for number, holds in enumerate(claims)) == expected


def test_a_claim_that_is_read_back_holds_the_same() -> None:
    """After a restart, from the records."""
    made = prepared(0, [(0, 1, 10, False), (1, 2, 20, False)])
    assert usage([decode(encode(made), "here")]) == usage([made]) != {}
