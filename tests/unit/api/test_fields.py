"""api.fields: JSON that others wrote, tolerantly and checked."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import AdmissionError

json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


@given(json, st.lists(st.sampled_from("abc"), max_size=4))
def test_at_finds_what_a_plain_look_finds(value: Any, path: list[str]) -> None:
    """What is found is what indexing finds, and None wherever indexing fails; nothing raises."""
    expected = value
    try:
        for field in path:
            expected = {**expected}[field]
    except (KeyError, TypeError):
        expected = None
    assert fields.at(value, *path) == expected


@given(json)
def test_tolerant_readers_give_what_is_there_or_nothing(value: Any) -> None:
    """An object is an object and a list is a list; anything else is an empty one, and never an error."""
    assert fields.mapping(value) == (value if isinstance(value, dict) else {})
    assert list(fields.sequence(value)) == (value if isinstance(value, list) else [])


def test_objects_of_a_list_keep_their_indices() -> None:
    """What is no object is left out, and the indices of the others are those that a message has to name."""
    assert list(fields.mappings([1, {"a": 1}, None, {"b": 2}])) == [(1, {"a": 1}), (3, {"b": 2})]
    assert list(fields.mappings({"a": {}})) == []


@pytest.mark.parametrize(
    ("check", "right", "wrong", "reason"),
    [
        (fields.checked_mapping, {"a": 1}, [1], "must be an object"),
        (fields.checked_sequence, [1], {"a": 1}, "must be a list"),
    ],
)
def test_checked_readers_name_the_field(check: Callable[..., Any], right: Any, wrong: Any, reason: str) -> None:
    """Null is as good as nothing; the wrong type is refused with the field's path, and with the value where that is asked for."""
    assert check(right, "spec.x") == right
    assert not check(None, "spec.x")
    with pytest.raises(AdmissionError) as error:
        check(wrong, "spec.x")
    assert str(error.value) == f"spec.x: {reason}"
    with pytest.raises(AdmissionError) as error:
        check(wrong, "spec.x", show=True)
    assert str(error.value) == f"spec.x: Invalid value: {wrong!r}: {reason}"
