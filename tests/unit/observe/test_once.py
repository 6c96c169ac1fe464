"""observe.once: what goes on is said once."""

from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.observe.once import Once


def test_a_reason_is_new_once() -> None:
    """The same reason is new the first time only; another one is, and so is the first when it comes back after that."""
    once = Once[str]()
    assert [once.is_new("disk", reason) for reason in ("full", "full", "slow", "slow", "full")] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_subjects_do_not_touch_each_other() -> None:
    """Of two subjects each has its own reason, the same one too."""
    once = Once[str]()
    assert once.is_new("a", "lost")
    assert once.is_new("b", "lost")
    assert not once.is_new("a", "lost")


def test_what_ended_is_said_to_be_over_once() -> None:
    """Only something that was said can be said to be over, once; after that the same reason is new."""
    once = Once[str]()
    assert not once.ended("server")
    once.is_new("server", "away")
    assert once.ended("server")
    assert not once.ended("server")
    assert once.is_new("server", "away")


def test_without_a_reason_the_subject_itself_is_said() -> None:
    """A subject alone is new once, and known by then."""
    once = Once[str]()
    assert "absent" not in once
    assert [once.is_new("absent"), once.is_new("absent")] == [True, False]
    assert "absent" in once


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2))), st.sets(st.integers(0, 5)))
def test_what_is_gone_is_forgotten(said: list[tuple[int, int]], still: set[int]) -> None:
    """After `keep` nothing is held of the others, however much was said, and what was kept is not said again."""
    once = Once[int]()
    for subject, reason in said:
        once.is_new(subject, reason)
    once.keep(still.__contains__)
    last = dict(said)
    assert {subject for subject in range(6) if subject in once} == last.keys() & still
    assert all(once.is_new(subject, last[subject]) == (subject not in still) for subject in last)
