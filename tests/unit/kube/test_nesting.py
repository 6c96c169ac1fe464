"""kube.nesting: JSON deeper than Python goes."""

import json

import pytest

from hami_kubeletplugin.kube.nesting import DEEPEST, cut


@pytest.mark.parametrize("level", ["[{}]", '[1, "[[[", {}]', '{{"a\\\\": "]", "\\"}}": {}, "z": 2}}'])
def test_what_is_deeper_becomes_null(level: str) -> None:
    """Everything else stays: brackets in texts, what comes before and behind."""
    deep, shallow = "1", "null"
    for number in range(5000):
        deep = level.format(deep)
        if number < DEEPEST - 1:
            shallow = level.format(shallow)
    made = json.loads(cut(f'{{"items": {deep}, "metadata": {{"name": "b"}}}}'.encode()))
    assert made == json.loads(f'{{"items": {shallow}, "metadata": {{"name": "b"}}}}')


@pytest.mark.parametrize("text", ["", "[" * DEEPEST + "]" * DEEPEST, '{"a": "\\"[[["}', "]]]", "[[", '"', "[" * 5000])
def test_the_rest_stays(text: str) -> None:
    """What is not that deep, or no JSON, is as it was, or still no JSON."""
    assert cut(text.encode()) in {text.encode(), b"[" * DEEPEST + text.encode()}
