"""The rules of a GPU's state, whatever comes in whatever order."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hami_kubeletplugin.gpu.conditions import What
from hami_kubeletplugin.health.states import ACTIONS, XID_KEPT, Answer, Life, State, after_answer, after_xid
from hami_kubeletplugin.health.xids import APPLICATIONS, XidRules, named

BUS: Final = "0000:07:00.0"
GOOD: Final = Answer(action=0, remap_pending=False, remap_failure=False, life=Life(1, 1000), monitored=True)
OLD_DRIVER: Final = replace(GOOD, action=None)
LOST: Final = Answer(error=15, said="GPU is lost")
RULES: Final = XidRules(frozenset({94}), frozenset({43}))

Xid = tuple[int, int | None]
Input = Xid | Answer

xids: st.SearchStrategy[Xid] = st.tuples(st.sampled_from([13, 43, 45, 48, 79, 94]), st.sampled_from([None, 0, 1, 2, 9]))
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(
        Answer,
        action=st.sampled_from([None, 0, 1, 2]),
        remap_pending=st.sampled_from([None, False, True]),
        remap_failure=st.sampled_from([None, False, True]),
        life=st.builds(Life, st.sampled_from([None, 1, 2]), st.sampled_from([None, 0, 500, 1000])),
        monitored=st.sampled_from([None, False, True]),
    ),
    st.builds(Answer, error=st.sampled_from([15, 16, 28, 999]), said=st.just("why")),
)
stories = st.lists(st.one_of(xids, answers), max_size=12)


def after(state: State, given_in: Input, now: float = 0.0) -> State:
    """The next state."""
    if isinstance(given_in, Answer):
        return after_answer(state, given_in, bus=BUS, now=now)
    return after_xid(state, *given_in, RULES, bus=BUS, now=now)


def told(*story: Input) -> State:
    """The state at the end of a story."""
    state = State()
    for now, given_in in enumerate(story):
        state = after(state, given_in, float(now))
    return state


@given(stories, xids)
def test_an_event_never_takes_anything_away(story: list[Input], xid: Xid) -> None:
    """All that was wrong still is, an action that is known stays known, and began when it did."""
    before = told(*story)
    then = after(before, xid, 100.0)
    assert then.conditions.keys() >= before.conditions.keys()
    for what, condition in before.conditions.items():
        assert then.conditions[what].since == condition.since
        assert then.conditions[what].count >= condition.count
        assert condition.value == "unknown" or then.conditions[what].value != "unknown"


@given(stories, xids)
def test_an_xid_is_told_by_what_the_driver_and_people_say_of_it(story: list[Input], xid: Xid) -> None:
    """As an action to wait for, or as information: one of both, always."""
    number, action = xid
    then = after(told(*story), xid)
    if RULES.counts(number, action):
        assert named(number) in then.conditions[What.ACTION].message
        assert not action or then.conditions[What.ACTION].value == ACTIONS.get(action, f"action-{action}")
    else:
        assert then.conditions[What.XID].value == str(number)


@given(stories, answers)
@example([], Answer(error=15))
def test_what_an_answer_says_holds(story: list[Input], answer: Answer) -> None:
    """Whatever was before: no state hides an action, a loss or a failure that is measured now."""
    then = after(told(*story), answer)
    if answer.error in {15, 28}:
        assert What.LOST in then.conditions
    if answer.error == 16 or answer.action:
        assert What.ACTION in then.conditions
    if answer.remap_failure:
        assert What.ROW_REMAP_FAILURE in then.conditions
    if answer.error is None:
        assert (What.UNMONITORED in then.conditions) == (answer.monitored is False)


@given(stories, answers)
@example([GOOD, replace(GOOD, action=1)], GOOD)
@example([LOST, GOOD], GOOD)
@example([LOST, GOOD, (13, None)], GOOD)
def test_a_worse_state_ends_after_two_good_answers_only(story: list[Input], answer: Answer) -> None:
    """In a row, whatever it tells between them that needs no action; an action only if the driver names none in both."""
    before = told(*story)
    ended = before.conditions.keys() - after(before, answer).conditions.keys()
    for what in ended & {What.LOST, What.ACTION}:
        for good in (next(each for each in reversed(story) if isinstance(each, Answer)), answer):
            assert good.error is None
            assert not (what is What.ACTION and good.action)


@given(stories)
def test_everything_ends_without_a_restart(story: list[Input]) -> None:
    """Once the GPU was reset and answers well, nothing is left of any story, save an Xid for a while."""
    state = told(*story)
    state = after(state, replace(GOOD, life=Life(3, 1000)))
    for energy in (1, 2, 3):
        state = after(state, replace(GOOD, life=Life(4, energy)))
    assert state.conditions.keys() <= {What.XID}
    assert after(state, replace(GOOD, life=Life(4, 4)), 100 + XID_KEPT).conditions == {}
    assert not state.why


@pytest.mark.parametrize(
    ("renewed", "ends"),
    [
        (OLD_DRIVER, False),
        (replace(OLD_DRIVER, life=Life(1, 2000)), False),
        (replace(OLD_DRIVER, life=Life(2, 2000)), True),
        (replace(OLD_DRIVER, life=Life(1, 10)), True),
        (replace(OLD_DRIVER, life=Life(None, None)), False),
    ],
    ids=["nothing", "more energy", "loaded anew", "reset", "not to be told"],
)
def test_without_named_actions_a_reset_has_to_be_seen(renewed: Answer, ends: bool) -> None:
    """The driver's other load, or a count of energy that began anew; then two answers."""
    state = told(OLD_DRIVER, (48, None), renewed)
    assert What.ACTION in state.conditions
    for _ in range(3):
        state = after(state, renewed)
    assert (What.ACTION not in state.conditions) == ends


def test_an_action_is_kept_while_the_driver_can_not_be_asked_for_it() -> None:
    """Answers that say nothing of actions take none back."""
    state = told(GOOD, replace(GOOD, action=1), *[OLD_DRIVER] * 5)
    assert state.conditions[What.ACTION].value == "gpu-reset"
    assert told(GOOD, replace(GOOD, action=1), OLD_DRIVER, GOOD, GOOD).conditions == {}


def test_two_errors_of_any_kind_in_a_row_are_a_loss() -> None:
    """One is not; nor are two with an answer between them."""
    odd = Answer(error=999, said="Unknown Error")
    assert told(GOOD, odd).conditions == {}
    assert told(GOOD, odd, GOOD, odd).conditions == {}
    lost = told(GOOD, odd, odd).conditions[What.LOST]
    assert "Unknown Error" in lost.message
    assert told(GOOD, odd, odd, GOOD).conditions != {}
    assert told(GOOD, odd, odd, GOOD, GOOD).conditions == {}


def test_how_often_and_since_when() -> None:
    """Counted are Xids, not polls; it began with the first."""
    state = told((79, 1), replace(GOOD, action=1), (79, 1), replace(GOOD, action=1))
    assert (state.conditions[What.ACTION].since, state.conditions[What.ACTION].count) == (0.0, 2)
    assert told((13, 0), (31, 0), (31, 0)).conditions[What.XID].count == 3


def test_messages_say_what_to_do() -> None:
    """With the very command, or who has to do something; known numbers in words."""
    reset = told((79, 1)).conditions[What.ACTION].message
    assert reset == (
        "Xid 79 (the GPU has fallen off the bus); the GPU waits for: gpu-reset; "
        "end the pods that use the GPU, then `nvidia-smi --gpu-reset -i 0000:07:00.0`"
    )
    assert "reboot" in told((79, 2)).conditions[What.ACTION].message
    assert "waits to be reset" in told((7000, None)).conditions[What.ACTION].message
    assert "nothing to do" in told((31, 0)).conditions[What.XID].message
    assert told((31, 9)).conditions[What.ACTION].value == "action-9"


@given(st.integers(0, 1000))
def test_rules_of_xids(xid: int) -> None:
    """The driver's word counts before any list but the critical one; without it the six and the list are harmless."""
    rules = XidRules(frozenset({xid}), frozenset())
    assert not rules.counts(xid, None)
    assert rules.counts(xid, 1)
    assert XidRules(critical=frozenset({xid})).counts(xid, 0)
    assert XidRules().counts(xid, None) == (xid not in APPLICATIONS)
    assert not XidRules().counts(xid, 0)
